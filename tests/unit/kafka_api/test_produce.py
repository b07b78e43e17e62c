"""Produce, the hand-written hot path, in every version it serves.

Runs: `produce.produce` on a real engine over a store in memory, with requests that the generated messages encode and responses
that they decode. Compared: offsets and error codes of every partition with Apache Kafka's answers. A mismatch means that the
hand-written reader or writer and Kafka's schema disagree, or that a client gets a wrong answer.
"""

from __future__ import annotations

import struct
import uuid

import pytest
from headgate.broker.testing.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

from headgate.broker.log.batch import parse_header
from headgate.broker.log.check import NAMED_MAX, SenderTrust
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.steps import finish
from headgate.broker.server.kafka import produce
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka import produce as wire
from headgate.broker.wire.kafka.hot import TOPIC_IDS
from headgate.broker.wire.kafka.primitives import REQUEST_ELEMENTS_MAX, DecodeError, skip_tags, write_uvarint
from tests.support.batches import batch
from tests.unit.kafka_api.conftest import NOW_MS, Kafka

VERSIONS = range(wire.VERSION_MIN, wire.VERSION_MAX + 1)
CORRELATION_ID = 77


def send(
    kafka: Kafka, version: int, wanted: dict[str, dict[int, bytes]], *, acks: int = -1
) -> tuple[dict[tuple[str, int], PartitionProduceResponse], produce.LogShape | None]:
    """The answer for each (topic, partition), and the request shape that the connection would remember."""
    ids = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in wanted}
    ids |= {topic.name: topic.id for topic in kafka.engine.topics()}
    names = {topic_id: name for name, topic_id in ids.items()}
    data = []
    for name, partitions in wanted.items():
        rows = [PartitionProduceData(index=number, records=records) for number, records in partitions.items()]
        where = {"topic_id": ids[name]} if version >= TOPIC_IDS else {"name": name}
        data.append(TopicProduceData(partition_data=rows, **where))
    body = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=data).encode(version)
    frame = memoryview(bytearray(body))
    said_acks, made, shape = produce.produce(kafka.engine, frame, 0, 0, version, CORRELATION_ID, NOW_MS, SenderTrust())
    response = finish(made.encode(kafka.engine, "PLAINTEXT")) if isinstance(made, produce.Answer) else made
    assert said_acks == acks
    assert int.from_bytes(response[:4], "big") == len(response) - 4
    assert int.from_bytes(response[4:8], "big") == CORRELATION_ID
    header_end = 9 if version >= wire.FLEXIBLE else 8
    answer, end = ProduceResponse.decode(response, header_end, version)
    assert end == len(response)
    answers = {
        (names[topic.topic_id] if version >= TOPIC_IDS else topic.name, row.index): row
        for topic in answer.responses
        for row in topic.partition_responses
    }
    bad = sum(row.error_code != 0 for row in answers.values())
    assert bool(bad) == isinstance(made, produce.Answer)
    return answers, shape


@pytest.mark.parametrize("version", [7, 8, 12])
async def test_the_wrong_records_of_a_batch_are_named(kafka: Kafka, version: int) -> None:
    """KIP-467: a client fails these, and may send the others again. Ten of a hundred records have no key, or a time too late."""
    await kafka.engine.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    await kafka.engine.create_topic("timed", 1, {"message.timestamp.after.max.ms": "1000"})
    wrong = range(5, 100, 10)
    records = [Record(0, NOW_MS, None if index in wrong else b"k", b"v") for index in range(100)]
    late = [Record(0, NOW_MS + (5000 if index in wrong else 0), b"k", b"v") for index in range(100)]
    for name, code, some in (("compacted", ErrorCode.INVALID_RECORD, records), ("timed", ErrorCode.INVALID_TIMESTAMP, late)):
        for codec in (Codec.NONE, Codec.ZSTD):
            answers, _ = send(kafka, version, {name: {0: encode_batch(some, compression=codec)}})
            row = answers[name, 0]
            assert row.error_code == code
            named = [(one.batch_index, one.batch_index_error_message) for one in row.record_errors]
            if version < 8:
                assert not named
                continue
            assert [index for index, _ in named] == list(wrong)
            assert row.error_message and [text for _, text in named] == [row.error_message] * 3 + [None] * 7
    every = [Record(0, NOW_MS, None, b"v")] * (NAMED_MAX + 500)
    answers, _ = send(kafka, 12, {"compacted": {0: encode_batch(every)}})
    assert [one.batch_index for one in answers["compacted", 0].record_errors] == list(range(NAMED_MAX))


@pytest.mark.parametrize("version", VERSIONS)
async def test_one_partition_and_the_same_shape_again(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 2, {})
    records = batch([b"x", b"y"], timestamp_ms=NOW_MS)
    answers, shape = send(kafka, version, {"a": {1: records}})
    assert answers["a", 1].error_code == 0
    assert answers["a", 1].base_offset == 0
    assert shape is not None
    body = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                partition_data=[PartitionProduceData(index=1, records=records)],
                **({"topic_id": kafka.engine.topic("a").id} if version >= TOPIC_IDS else {"name": "a"}),
            )
        ],
    ).encode(version)
    assert body.startswith(shape.key)
    frame = memoryview(bytearray(struct.pack(">hhi", 0, version, CORRELATION_ID) + body))
    again = produce.produce_again(kafka.engine, shape, frame, 0, len(frame), NOW_MS, None, SenderTrust())
    assert isinstance(again, bytes)
    answer, _ = ProduceResponse.decode(again, 9 if version >= wire.FLEXIBLE else 8, version)
    assert answer.responses[0].partition_responses[0].base_offset == 2
    await kafka.engine.durable()
    log = kafka.engine.partition(kafka.engine.topic("a"), 1)
    assert [parse_header(part).base_offset for part in await kafka.engine.read(log, 2, 1)] == [2]


@pytest.mark.parametrize("version", VERSIONS)
async def test_several_partitions_are_judged_one_by_one(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 2, {})
    await kafka.engine.create_topic("b", 1, {"max.message.bytes": "100"})
    good = batch([b"x"], timestamp_ms=NOW_MS)
    corrupt = bytearray(good)
    corrupt[-1] ^= 1
    large = batch([b"x" * 100], timestamp_ms=NOW_MS)
    nowhere = ("no", "not a name", "")
    answers, shape = send(
        kafka,
        version,
        {
            "a": {0: good, 1: bytes(corrupt), 7: good, -1: good, 2**31 - 1: good},
            "b": {0: large},
            **{name: {0: good} for name in nowhere},
        },
    )
    assert shape is None
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_IDS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {where: row.error_code for where, row in answers.items()} == {
        ("a", 0): 0,
        ("a", 1): ErrorCode.CORRUPT_MESSAGE,
        **dict.fromkeys([("a", number) for number in (7, -1, 2**31 - 1)], unknown),
        ("b", 0): ErrorCode.MESSAGE_TOO_LARGE,
        **dict.fromkeys([(name, 0) for name in nowhere], unknown),
    }
    assert {where: row.base_offset for where, row in answers.items()} == {
        where: 0 if where == ("a", 0) else -1 for where in answers
    }
    assert [topic.name for topic in kafka.engine.topics()] == ["a", "b"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_refused_before_it_is_looked_at(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 1, {})
    good = batch([b"x"], timestamp_ms=NOW_MS)
    answers, _ = send(kafka, version, {"a": {0: good}}, acks=2)
    assert answers["a", 0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
    await kafka.engine.create_topic("__consumer_offsets", 2, {})
    for wanted in ({"__consumer_offsets": {1: good}}, {"__consumer_offsets": {0: good, 1: good}}):
        answers, shape = send(kafka, version, wanted)
        assert {row.error_code for row in answers.values()} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert shape is None
    log = kafka.engine.partition(kafka.engine.topic("__consumer_offsets"), 1)
    assert log.next_offset == 0


@pytest.mark.parametrize("version", [0, *VERSIONS])
@pytest.mark.parametrize(("topics", "partitions"), [(REQUEST_ELEMENTS_MAX + 1, 0), (2, REQUEST_ELEMENTS_MAX // 2 + 1)])
async def test_requests_with_more_elements_than_one_may_have(kafka: Kafka, version: int, topics: int, partitions: int) -> None:
    """Each row has a few bytes, and all of them are sent: a frame has room for millions, and other clients would wait for all of
    them."""
    rows = [PartitionProduceData(index=7, records=b"")] * partitions
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(partition_data=rows)] * topics)
    with pytest.raises(DecodeError, match="too many elements"):
        if version < wire.VERSION_MIN:
            # The transactional id, which versions 0-2 do not have, is two bytes.
            wire.refuse_version(memoryview(request.encode(wire.VERSION_MIN)), 2, version, CORRELATION_ID)
        else:
            produce.produce(
                kafka.engine, memoryview(bytearray(request.encode(version))), 0, 0, version, CORRELATION_ID, NOW_MS, SenderTrust()
            )


def test_more_tagged_fields_than_anybody_has() -> None:
    many = bytearray()
    write_uvarint(many, 5_000)
    with pytest.raises(DecodeError, match="too many tagged fields"):
        skip_tags(memoryview(many + bytes(10_000)), 0)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_producer_that_is_not_known_is_told_where_the_log_begins(kafka: Kafka, version: int) -> None:
    """Stands for a producer after its topic was deleted and created again: Java's producer retries for ever without the log
    start."""
    await kafka.engine.create_topic("a", 2, {"history.room": "100"})
    first = batch([b"x"], timestamp_ms=NOW_MS, producer_id=5, producer_epoch=0, base_sequence=0)
    late = batch([b"y"], timestamp_ms=NOW_MS, producer_id=6, producer_epoch=0, base_sequence=3)
    begins = kafka.engine.partition(kafka.engine.topic("a"), 0).log_start
    assert begins == 100
    for wanted in ({"a": {0: late}}, {"a": {0: late, 1: first}}):
        answers, _ = send(kafka, version, wanted)
        assert answers["a", 0].error_code == ErrorCode.UNKNOWN_PRODUCER_ID
        assert answers["a", 0].log_start_offset == (begins if version >= 5 else -1)
    assert answers["a", 1].error_code == 0
