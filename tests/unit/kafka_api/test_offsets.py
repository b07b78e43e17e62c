"""ListOffsets, OffsetForLeaderEpoch, InitProducerId and DescribeProducers over a real engine.

Compared: each answer with Kafka 4.2's. A mismatch means that a consumer starts at the wrong record, or that the broker does not
recognise a producer's retries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.broker.runtime.config import Settings
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.wire.kafka.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headgate.broker.wire.kafka.messages.init_producer_id import InitProducerIdRequest
from headgate.broker.wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headgate.broker.wire.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.unit.kafka_api.conftest import NOW_MS, Kafka

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


async def ask(
    kafka: Kafka, timestamp: int, *, version: int = 10, topic: str = "a", partition: int = 0, epoch: int = -1
) -> tuple[int, int, int]:
    """(error code, offset, timestamp)."""
    one = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    response = await kafka.call(ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[one])]), version)
    (answer,) = response.topics[0].partitions
    assert answer.partition_index == partition
    return answer.error_code, answer.offset, answer.timestamp


@pytest.fixture
async def written(kafka: Kafka) -> Kafka:
    """Topic `a` with three batches: offsets 0-1, 2 (the newest time), 3-4."""
    await kafka.engine.create_topic("a", 2, {})
    await kafka.append("a", [b"0", b"1"], timestamp_ms=NOW_MS)
    await kafka.append("a", [b"2"], timestamp_ms=NOW_MS + 1000)
    await kafka.append("a", [b"3", b"4"], timestamp_ms=NOW_MS + 500)
    return kafka


@pytest.mark.parametrize("version", range(1, 11))
async def test_offsets_by_name(written: Kafka, version: int) -> None:
    assert await ask(written, EARLIEST, version=version) == (0, 0, -1)
    assert await ask(written, LATEST, version=version) == (0, 5, -1)
    unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
    assert await ask(written, MAX_TIMESTAMP, version=version) == (unsupported if version < 7 else (0, 2, NOW_MS + 1000))
    assert await ask(written, EARLIEST_LOCAL, version=version) == (unsupported if version < 8 else (0, 0, -1))
    assert await ask(written, LATEST_TIERED, version=version) == (unsupported if version < 9 else (0, -1, -1))
    for timestamp in (-6, -7, -(2**63)):
        assert await ask(written, timestamp, version=version) == unsupported


@pytest.mark.parametrize("version", [1, 4, 7, 10])
async def test_offsets_by_time(written: Kafka, version: int) -> None:
    assert await ask(written, 0, version=version) == (0, 0, NOW_MS)
    assert await ask(written, NOW_MS + 1, version=version) == (0, 1, NOW_MS + 1)
    assert await ask(written, NOW_MS + 2, version=version) == (0, 2, NOW_MS + 1000)
    assert await ask(written, NOW_MS + 1001, version=version) == (0, -1, -1)
    assert await ask(written, 2**63 - 1, version=version) == (0, -1, -1)


async def test_offsets_of_an_empty_partition(written: Kafka) -> None:
    for timestamp, offset in ((EARLIEST, 0), (LATEST, 0), (MAX_TIMESTAMP, -1), (0, -1)):
        assert await ask(written, timestamp, partition=1) == (0, offset, -1)


async def test_offsets_after_deletion(written: Kafka) -> None:
    log = written.engine.partition(written.engine.topic("a"), 0)
    await written.engine.delete_records(log, 3)
    assert await ask(written, EARLIEST) == (0, 3, -1)
    assert await ask(written, 0) == (0, 3, NOW_MS + 500)
    assert await ask(written, MAX_TIMESTAMP) == (0, 4, NOW_MS + 501)


@pytest.mark.parametrize("timestamp", [EARLIEST, LATEST, MAX_TIMESTAMP, 0])
async def test_offsets_of_what_is_not_there(written: Kafka, timestamp: int) -> None:
    missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert await ask(written, timestamp, topic="no") == missing
    assert await ask(written, timestamp, partition=2) == missing
    assert await ask(written, timestamp, partition=-1) == missing


@pytest.mark.parametrize("timestamp", [EARLIEST, LATEST, MAX_TIMESTAMP, 0])
async def test_leader_epochs_that_are_not_the_partitions(timestamp: int) -> None:
    async for kafka, first, current in reopened():
        assert first < current
        assert (await ask(kafka, timestamp, epoch=current))[0] == 0
        assert (await ask(kafka, timestamp, epoch=current - 1))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await ask(kafka, timestamp, epoch=current + 1))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


async def reopened() -> AsyncIterator[tuple[Kafka, int, int]]:
    """A broker with a topic `a` that has offset 0 from its first run and offset 1 from this one, and the leader epochs of both.

    Epochs also number the leader's terms and the incarnations, so at least one epoch lies between these two, and one before them.
    """
    objects = MemoryObjects()
    first = Kafka(Settings(), MemoryStore(objects))
    await first.open()
    await first.engine.create_topic("a", 1, {})
    await first.append("a", [b"0"])
    first_epoch = first.epoch("a")
    await first.close()
    second = Kafka(Settings(), MemoryStore(objects))
    await second.open()
    await second.append("a", [b"1"])
    assert 0 < first_epoch < second.epoch("a") - 1
    yield second, first_epoch, second.epoch("a")
    await second.close()


async def epoch_end(kafka: Kafka, epoch: int, *, current: int = -1, topic: str = "a", version: int = 4) -> tuple[int, int, int]:
    one = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[one])])
    response = await kafka.call(request, version)
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.leader_epoch, answer.end_offset


async def test_ends_of_leader_epochs() -> None:
    async for kafka, first, current in reopened():
        for version in (2, 3, 4):
            assert await epoch_end(kafka, 0, version=version) == (0, 0, 0)
            assert await epoch_end(kafka, first, version=version) == (0, first, 1)
            assert await epoch_end(kafka, current - 1, version=version) == (0, first, 1)
            assert await epoch_end(kafka, current, version=version) == (0, current, 2)
            assert await epoch_end(kafka, current + 1, version=version) == (0, -1, -1)
        assert (await epoch_end(kafka, first, current=first))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await epoch_end(kafka, first, current=current + 1))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await epoch_end(kafka, 0, topic="no") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


async def test_offsets_carry_the_epoch_that_they_were_written_in() -> None:
    async for kafka, first, current in reopened():
        found = []
        for timestamp in (EARLIEST, LATEST, 0):
            one = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            response = await kafka.call(ListOffsetsRequest(topics=[ListOffsetsTopic(name="a", partitions=[one])]), 4)
            found.append(response.topics[0].partitions[0].leader_epoch)
        assert found == [first, current, first]


async def test_a_partition_asked_for_twice(written: Kafka) -> None:
    two = [ListOffsetsPartition(partition_index=0, timestamp=timestamp) for timestamp in (LATEST, EARLIEST)]
    response = await written.call(ListOffsetsRequest(topics=[ListOffsetsTopic(name="a", partitions=two)]), 7)
    assert [one.error_code for one in response.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2


async def test_many_searches_at_once(kafka: Kafka) -> None:
    await kafka.engine.create_topic("many", 40, {})
    for number in range(40):
        await kafka.append("many", [b"x"], partition=number, timestamp_ms=NOW_MS + number)
    parts = [ListOffsetsPartition(partition_index=number, timestamp=0) for number in range(40)]
    response = await kafka.call(ListOffsetsRequest(topics=[ListOffsetsTopic(name="many", partitions=parts)]), 7)
    found = [(one.partition_index, one.offset, one.timestamp) for one in response.topics[0].partitions]
    assert found == [(number, 0, NOW_MS + number) for number in range(40)]


# -- producers


@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_new_each_time(kafka: Kafka, version: int) -> None:
    answers = [await kafka.call(InitProducerIdRequest(transactional_id=None), version) for _ in range(3)]
    assert [(one.error_code, one.producer_epoch) for one in answers] == [(0, 0)] * 3
    assert len({one.producer_id for one in answers}) == 3


async def test_a_producer_that_starts_again_gets_a_new_id(kafka: Kafka) -> None:
    first = await kafka.call(InitProducerIdRequest(transactional_id=None), 4)
    again = InitProducerIdRequest(transactional_id=None, producer_id=first.producer_id, producer_epoch=0)
    second = await kafka.call(again, 4)
    assert (second.error_code, second.producer_epoch) == (0, 0)
    assert second.producer_id != first.producer_id


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitProducerIdRequest(transactional_id="tx"), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest(transactional_id=""), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(transactional_id=None, producer_id=5), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(transactional_id=None, producer_epoch=5), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_producer_ids_that_are_refused(kafka: Kafka, request_: InitProducerIdRequest, code: int) -> None:
    answer = await kafka.call(request_, 4)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


async def test_describe_producers(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 2, {})
    await kafka.append("a", [b"0", b"1"], producer_id=9, producer_epoch=3, base_sequence=0)
    request = DescribeProducersRequest(
        topics=[TopicRequest(name="a", partition_indexes=[0, 1, 0, 2]), TopicRequest(name="no", partition_indexes=[0])]
    )
    response = await kafka.call(request, 0)
    known, unknown = response.topics
    assert [(one.partition_index, one.error_code) for one in known.partitions] == [(0, 0), (1, 0), (2, 3)]
    assert [(one.partition_index, one.error_code) for one in unknown.partitions] == [(0, 3)]
    (producer,) = known.partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence, producer.last_timestamp) == (9, 3, 1, NOW_MS)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
    assert known.partitions[1].active_producers == []


async def test_a_broker_without_proof_of_its_lead_tells_nothing_of_producers(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    await kafka.append("a", [b"0"], producer_id=9, producer_epoch=3, base_sequence=0)
    request = DescribeProducersRequest(topics=[TopicRequest(name="a", partition_indexes=[0])])
    (known,) = (await kafka.call(request, 0)).topics[0].partitions
    assert known.error_code == 0 and known.active_producers
    await kafka.fence()
    (answer,) = (await kafka.call(request, 0)).topics[0].partitions
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and answer.active_producers == []
