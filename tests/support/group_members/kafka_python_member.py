"""A group member of kafka-python."""

from __future__ import annotations

import logging
import warnings
from typing import Any

warnings.filterwarnings("ignore", category=DeprecationWarning)

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition  # noqa: E402
from kafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: E402
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor  # noqa: E402
from kafka.errors import KafkaConnectionError, KafkaError  # noqa: E402
from kafka.structs import OffsetAndMetadata  # noqa: E402

from tests.support.group_members.common import settings, tell, until_stdin_closes  # noqa: E402

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        tell("assigned", partitions=[one.partition for one in assigned])

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        tell("revoked", partitions=[one.partition for one in revoked])


def main() -> None:
    given = settings()
    stop = until_stdin_closes()
    logging.disable(logging.ERROR)
    options: dict[str, Any] = {} if given["instance"] is None else {"group_instance_id": given["instance"]}
    consumer = KafkaConsumer(
        bootstrap_servers=given["bootstrap"],
        group_id=given["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[ASSIGNORS[given["assignor"]]],
        session_timeout_ms=given["session_ms"],
        heartbeat_interval_ms=500,
        fetch_max_wait_ms=100,
        retry_backoff_ms=50,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=200,
        **options,
    )
    consumer.subscribe([given["topic"]], listener=Listener())
    # A group leader that assigns before it has seen its topic rejoins when it sees the topic. If a poll's time ends within that
    # second join, kafka-python 3.0 drops the answer: the member stays without partitions and sends no heartbeats, with any broker.
    consumer.partitions_for_topic(given["topic"])
    while not stop.is_set():
        try:
            batches = consumer.poll(timeout_ms=200, max_records=500)
        except KafkaConnectionError as error:
            # Raised when a coordinator disappears at the wrong moment; the consumer is fine, and the next poll finds another one.
            tell("poll_failed", text=repr(error))
            continue
        positions = {}
        for place, records in batches.items():
            for record in records:
                tell("record", partition=record.partition, offset=record.offset)
            positions[place] = records[-1].offset + 1
        if positions:
            try:
                consumer.commit({place: OffsetAndMetadata(offset, "", -1) for place, offset in positions.items()})
            except KafkaError as error:
                tell("commit_failed", text=repr(error))
            else:
                tell("committed", offsets={place.partition: offset for place, offset in positions.items()})
    consumer.close()
    tell("stopped")


if __name__ == "__main__":
    main()
