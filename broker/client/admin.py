"""Topics and the state of the cluster. Changes of topics are Kafka's own requests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from headgate.broker.client import kafka
from headgate.broker.client.cluster import ADMIN, ClusterClient
from headgate.broker.client.errors import from_message
from headgate.broker.client.rows import from_row, from_rows
from headgate.broker.client.types import (
    Broker,
    CheckedRecords,
    ClusterStatus,
    ConfigEntry,
    OffsetAndTimestamp,
    Partition,
    Start,
    Topic,
    TopicDescription,
    TopicPartition,
    TopicStatus,
    UnreadableBatch,
)
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2
from headgate.broker.wire.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from headgate.broker.wire.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headgate.broker.wire.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from headgate.broker.wire.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from headgate.broker.wire.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC = 2
"""Kafka's number for resources with settings that are topics."""
SET, DELETE = 0, 1
"""Operations on a setting."""
UP_TO_END = -1
"""Delete all records that are readable now."""


class Admin(ClusterClient):
    """Manages topics. An async context manager; any number of tasks may call its methods.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        timeout_ms: longest wait for one call, with its retries.

    Methods raise HeadgateError: InvalidError for a wrong request (`reason` says how: UNKNOWN_TOPIC, TOPIC_EXISTS ...),
    RetryError when the cluster did not answer in time. Calls are repeated until then, at any broker that answers. A change whose
    answer was lost (the broker died) is made once: when the next attempt finds it done, it counts as done.
    """

    async def status(self, *, rate_window_ms: int = 0) -> ClusterStatus:
        """The cluster, its brokers and topics; with a window (at most 10,000 ms) the traffic is measured for that long first."""
        response: admin_pb2.StatusResponse = await self._cluster.call(
            ADMIN["Status"],
            admin_pb2.StatusRequest(rate_window_ms=rate_window_ms),
            retry=True,
            extra_s=rate_window_ms / 1000,
        )
        topics = tuple(from_row(TopicStatus, row, id=uuid.UUID(bytes=row.id)) for row in response.topics)
        return from_row(ClusterStatus, response, brokers=from_rows(Broker, response.brokers), topics=topics)

    async def list_topics(self) -> list[Topic]:
        """All topics, by name."""
        response: admin_pb2.ListTopicsResponse = await self._cluster.call(
            ADMIN["ListTopics"], admin_pb2.ListTopicsRequest(), retry=True
        )
        return [_topic(row) for row in response.topics]

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic. Raises InvalidError(UNKNOWN_TOPIC)."""
        response: admin_pb2.DescribeTopicsResponse = await self._cluster.call(
            ADMIN["DescribeTopics"], admin_pb2.DescribeTopicsRequest(names=[name]), retry=True
        )
        row = response.topics[0]
        if row.HasField("error"):
            raise from_message(row.error)
        return TopicDescription(
            topic=_topic(row.topic),
            partitions=tuple(_partition(partition) for partition in row.partitions),
            config=from_rows(ConfigEntry, row.config),
        )

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic. Raises InvalidError: TOPIC_EXISTS, INVALID_TOPIC, INVALID_PARTITIONS, INVALID_CONFIG.

        Args:
            partitions: None: the broker's `num_partitions`.
            config: settings that differ from the defaults, such as ``{"retention.ms": "3600000"}``.
            validate_only: check, and change nothing.
        """
        # A value that is not a number travels as 0, which the broker refuses with its own message.
        count = -1 if partitions is None else partitions if 0 <= partitions < 2**31 else 0
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        row = CreatableTopic(name=name, num_partitions=count, replication_factor=-1, configs=settings)
        request = CreateTopicsRequest(topics=[row], timeout_ms=kafka.TIMEOUT_MS, validate_only=validate_only)

        read = kafka.first("topics", f"topic=`{name}`")
        made = await kafka.change(self._cluster, request, CreateTopicsResponse, read, already=Reason.TOPIC_EXISTS)
        if made is not None and (validate_only or made.topic_config_error_code):
            return Topic(name=name, id=made.topic_id, partitions=max(made.num_partitions, 0), created_ms=0)
        found = (await self.describe_topic(name)).topic
        if made is None and partitions not in (None, found.partitions):
            raise InvalidError(
                Reason.TOPIC_EXISTS, f"topic exists already, with other partitions. topic=`{name}` partitions=`{found.partitions}`"
            )
        return found

    async def alter_topic_config(
        self, name: str, set: Mapping[str, str] | None = None, unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        """Change single settings, and reset others to their defaults; all other settings stay."""
        changes = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in (set or {}).items()]
        changes += [AlterableConfig(name=key, config_operation=DELETE, value=None) for key in unset]
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)

        read = kafka.first("responses", f"topic=`{name}`")
        await kafka.change(self._cluster, request, IncrementalAlterConfigsResponse, read)

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> None:
        """Increase the number of a topic's partitions to `total`."""
        row = CreatePartitionsTopic(name=name, count=total if 0 <= total < 2**31 else 0, assignments=None)
        request = CreatePartitionsRequest(topics=[row], timeout_ms=kafka.TIMEOUT_MS, validate_only=validate_only)

        read = kafka.first("results", f"topic=`{name}`")
        already = Reason.INVALID_PARTITIONS
        if await kafka.change(self._cluster, request, CreatePartitionsResponse, read, already=already) is None:
            found = (await self.describe_topic(name)).topic.partitions
            if found != total:
                raise InvalidError(
                    Reason.INVALID_PARTITIONS, f"the topic was given another number of partitions. topic=`{name}` has=`{found}`"
                )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=kafka.TIMEOUT_MS)

        read = kafka.first("responses", f"topic=`{name}`")
        await kafka.change(self._cluster, request, DeleteTopicsResponse, read, already=Reason.UNKNOWN_TOPIC)

    async def delete_records(self, topic: str, before: Mapping[int, int | None]) -> dict[int, int]:
        """Make records unreadable for ever.

        Args:
            before: by partition, the first offset to keep; None deletes all records that are readable now.

        Returns:
            The new first offsets, by partition.

        Raises:
            HeadgateError: of the first partition that failed; earlier partitions are done. POLICY_VIOLATION where the topic is only
                compacted.
        """
        first: dict[int, int] = {}

        async def attempt() -> None:
            view = await self._cluster.topic(topic, refresh=True)
            by_lead: dict[int, list[int]] = {}
            for partition in before:
                if partition not in first:
                    self._cluster.leader(view, partition)  # raises for a partition without one
                    by_lead.setdefault(view.leaders[partition], []).append(partition)
            for lead, partitions in by_lead.items():
                asked = {partition: before[partition] for partition in partitions}
                first.update(await self._delete_records(lead, topic, asked))

        await self._cluster.retry_until_timeout(attempt)
        return first

    async def _delete_records(self, lead: int, topic: str, before: Mapping[int, int | None]) -> dict[int, int]:
        for partition, offset in before.items():
            if offset is not None and not 0 <= offset < 2**63:
                raise InvalidError(
                    Reason.OFFSET_OUT_OF_RANGE, f"offset is out of range. topic=`{topic}` partition=`{partition}` offset=`{offset}`"
                )
        rows = [
            DeleteRecordsPartition(partition_index=partition, offset=UP_TO_END if offset is None else offset)
            for partition, offset in before.items()
        ]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=rows)], timeout_ms=kafka.TIMEOUT_MS)

        def read(answer: DeleteRecordsResponse) -> dict[int, int]:
            found = {row.partition_index: row for row in answer.topics[0].partitions}
            for partition, offset in before.items():
                where = f"topic=`{topic}` partition=`{partition}`" + ("" if offset is None else f" offset=`{offset}`")
                kafka.check(found[partition].error_code, None, where)
            return {partition: found[partition].low_watermark for partition in before}

        return await kafka.ask_broker(self._cluster, lead, request, DeleteRecordsResponse, read)

    async def check_records(
        self, topic: str, partition: int, first_offset: int | None = None, last_offset: int | None = None
    ) -> CheckedRecords:
        """Find batches that consumers cannot read, in a part of a partition: the next call goes on from `next_offset`.

        Args:
            first_offset, last_offset: None: the first and the last that can be read.
        """
        request = admin_pb2.CheckRecordsRequest(
            topic=topic, partition=partition, first_offset=first_offset, last_offset=last_offset
        )

        async def attempt() -> CheckedRecords:
            row: admin_pb2.CheckRecordsResponse = await self._cluster.call(ADMIN["CheckRecords"], request, retry=True)
            return from_row(CheckedRecords, row, unreadable=from_rows(UnreadableBatch, row.unreadable))

        return await self._cluster.retry_until_timeout(attempt)

    async def skip_records(
        self, topic: str, partition: int, first_offset: int, last_offset: int, *, validate_only: bool = False
    ) -> tuple[int, int]:
        """Let readers step over records for ever. A batch is skipped whole, so more offsets than asked for may be.

        Returns:
            What is skipped: the first offset, and one more than the last.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE; INVALID_REQUEST where there is no record, or the records are a gate's.
        """
        request = admin_pb2.SkipRecordsRequest(
            topic=topic, partition=partition, first_offset=first_offset, last_offset=last_offset, validate_only=validate_only
        )

        async def attempt() -> tuple[int, int]:
            row: admin_pb2.SkipRecordsResponse = await self._cluster.call(ADMIN["SkipRecords"], request, retry=True)
            return row.base_offset, row.end_offset

        return await self._cluster.retry_until_timeout(attempt)

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Turn places into offsets: earliest, latest, by time; for several topics at once.

        Raises InvalidError: UNKNOWN_TOPIC; OFFSET_OUT_OF_RANGE for a number that is not an offset of the log.
        """
        return await self._cluster.offsets(starts)


def _topic(row: admin_pb2.Topic) -> Topic:
    return from_row(Topic, row, id=uuid.UUID(bytes=row.id))


def _partition(row: admin_pb2.Partition) -> Partition:
    skipped = tuple((span.base_offset, span.end_offset) for span in row.skipped)
    return from_row(Partition, row, number=row.partition, records=row.records if row.HasField("records") else -1, skipped=skipped)
