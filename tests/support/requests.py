"""One ordinary request of every API, as plain values: tests derive hostile requests from them."""

from __future__ import annotations

from typing import Any

from tests.support import oracle
from tests.support.batches import batch


def ordinary(topic: str) -> dict[int, dict[str, Any]]:
    """By API key: a request about partition 0 of `topic` that a broker accepts, for every version (see `oracle.encode`)."""
    records = batch([b"value"], key=b"key")
    resource = {"resource_type": 2, "resource_name": topic}
    setting = {"name": "retention.ms", "value": "600000", "config_operation": 0}
    return {
        oracle.PRODUCE: {
            "acks": -1,
            "timeout": 60_000,
            "topic_data": ({"name": topic, "partition_data": ({"index": 0, "records": records},)},),
        },
        oracle.FETCH: {
            "replica_id": -1,
            "max_wait": 10,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": (
                {
                    "topic": topic,
                    "partitions": (
                        {
                            "partition": 0,
                            "fetch_offset": 0,
                            "partition_max_bytes": 1 << 20,
                            "current_leader_epoch": -1,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                        },
                    ),
                },
            ),
        },
        oracle.LIST_OFFSETS: {
            "replica_id": -1,
            "topics": ({"name": topic, "partitions": ({"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1},)},),
        },
        oracle.METADATA: {"topics": ({"name": topic},), "allow_auto_topic_creation": False},
        oracle.API_VERSIONS: {"client_software_name": "hostile", "client_software_version": "1.0"},
        oracle.CREATE_TOPICS: {
            "topics": ({"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": (setting,)},),
            "timeout": 10_000,
        },
        oracle.DELETE_TOPICS: {"topic_names": ("no-such-topic",), "topics": ({"name": "no-such-topic"},), "timeout": 10_000},
        oracle.DELETE_RECORDS: {
            "topics": ({"name": topic, "partitions": ({"partition_index": 0, "offset": 0},)},),
            "timeout": 10_000,
        },
        oracle.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 1_000, "producer_id": -1, "producer_epoch": -1},
        oracle.OFFSET_FOR_LEADER_EPOCH: {
            "replica_id": -1,
            "topics": ({"topic": topic, "partitions": ({"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1},)},),
        },
        oracle.DESCRIBE_CONFIGS: {"resources": ({**resource, "configuration_keys": ("retention.ms",)},)},
        oracle.ALTER_CONFIGS: {"resources": ({**resource, "configs": (setting,)},)},
        oracle.DESCRIBE_LOG_DIRS: {"topics": ({"topic": topic, "partitions": (0,)},)},
        oracle.CREATE_PARTITIONS: {"topics": ({"name": topic, "count": 1, "assignments": None},), "timeout": 10_000},
        oracle.INCREMENTAL_ALTER_CONFIGS: {"resources": ({**resource, "configs": (setting,)},)},
        oracle.DESCRIBE_CLUSTER: {"endpoint_type": 1},
        oracle.DESCRIBE_PRODUCERS: {"topics": ({"name": topic, "partition_indexes": (0,)},)},
        oracle.DESCRIBE_TOPIC_PARTITIONS: {"topics": ({"name": topic},), "response_partition_limit": 100},
    }
