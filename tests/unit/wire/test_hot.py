"""The hand-written encodings of Produce and Fetch against the generated ones.

Runs: `wire/kafka/produce.py` and `fetch.py`, without an engine and without an event loop. Compared: requests that the generated
messages encode with the fields that the hand-written readers find, and hand-written responses, byte by byte, with the generated
ones. A mismatch means that a client gets other bytes than Kafka's schema says.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import headgate.broker.testing.messages.fetch as fetch_messages
import headgate.broker.testing.messages.produce as produce_messages
import pytest

from headgate.broker.runtime.steps import finish
from headgate.broker.wire.kafka import fetch, hot, produce
from headgate.broker.wire.kafka.primitives import PARSE_ERRORS, DecodeError, skip_tags

TOPIC_ID = uuid.UUID(int=7)
NODES = [hot.Node(3, "host", 9092, None), hot.Node(4, "häst", 9093, "a")]
REFUSED = [
    produce.Refused(1, 6, lead=(3, 9)),
    produce.Refused(2, 87, 5, "wrong record", (4,)),
    produce.Refused(2, 87, 5, "wrong records", (0, 4, 5, 300, 70_000)),
    produce.Refused(3, 2, 5, "ä" * 10),
    produce.Refused(4, 6, lead=(4, 0)),
]


def key_of(version: int) -> bytes:
    return TOPIC_ID.bytes if version >= hot.TOPIC_IDS else b"topic"


def body_at(flexible: bool) -> int:
    return 9 if flexible else 8


@pytest.mark.parametrize("version", range(produce.VERSION_MIN, produce.VERSION_MAX + 1))
def test_a_produce_response(version: int) -> None:
    row = produce.appended_row(version, 0, (17, -1, 3))
    rows: list[bytes | produce.Refused] = [row, *REFUSED]
    response = finish(produce.encode(version, 77, [(key_of(version), rows)], NODES))
    expected = produce_messages.ProduceResponse(
        responses=[
            produce_messages.TopicProduceResponse(
                **({"topic_id": TOPIC_ID} if version >= hot.TOPIC_IDS else {"name": "topic"}),
                partition_responses=[
                    produce_messages.PartitionProduceResponse(base_offset=17, **({"log_start_offset": 3} if version >= 5 else {})),
                    *[_refused_message(one, version) for one in REFUSED],
                ],
            )
        ],
        node_endpoints=[
            produce_messages.NodeEndpoint(node_id=one.broker_id, host=one.host, port=one.port, rack=one.rack)
            for one in (NODES if version >= produce.HINTS else ())
        ],
    ).encode(version)
    assert response[: body_at(version >= produce.FLEXIBLE)] == (
        (len(response) - 4).to_bytes(4, "big") + (77).to_bytes(4, "big") + (b"\0" if version >= produce.FLEXIBLE else b"")
    )
    assert response[body_at(version >= produce.FLEXIBLE) :] == expected


def _refused_message(one: produce.Refused, version: int) -> produce_messages.PartitionProduceResponse:
    message = produce_messages.PartitionProduceResponse(index=one.number, error_code=one.code, base_offset=-1)
    if version >= 5:
        message.log_start_offset = one.log_start
    if version >= 8:
        message.error_message = one.message
        texts = [one.message] * 3 + [None] * len(one.records)
        message.record_errors = [
            produce_messages.BatchIndexAndErrorMessage(batch_index=record, batch_index_error_message=text)
            for record, text in zip(one.records, texts, strict=False)
        ]
    if version >= produce.HINTS and one.lead is not None:
        message.current_leader = produce_messages.LeaderIdAndEpoch(leader_id=one.lead[0], leader_epoch=one.lead[1])
    return message


@pytest.mark.parametrize(("topics", "rows"), [(1, 5_000), (5_000, 0), (50, 100)])
def test_a_long_produce_response_is_written_in_small_steps(topics: int, rows: int) -> None:
    """No step handles more elements than it announces, in one topic and in many."""
    response = [(b"topic", [produce.Refused(number, 6) for number in range(rows)]) for _ in range(topics)]
    announced = sum(produce.encode(9, 1, response))
    assert topics * (1 + rows) - produce.STEP_ELEMENTS < announced <= topics * (1 + rows)


@pytest.mark.parametrize("version", range(produce.VERSION_MIN, produce.VERSION_MAX + 1))
def test_a_shape_answers_as_the_encoder_does(version: int) -> None:
    shape = produce.Shape(None, version, key_of(version), 7, b"key", 1, 4)
    appended = (1 << 40, 5, 3)
    row = produce.appended_row(version, 7, appended)
    assert shape.respond(77, appended) == finish(produce.encode(version, 77, [(key_of(version), [row])]))


@pytest.mark.parametrize("version", range(produce.VERSION_MIN, produce.VERSION_MAX + 1))
def test_a_produce_request_and_every_part_of_it(version: int) -> None:
    where = {"topic_id": TOPIC_ID} if version >= hot.TOPIC_IDS else {"name": "topic"}
    rows = [produce_messages.PartitionProduceData(index=index, records=b"x" * (index * 100)) for index in (1, 2)]
    frame = produce_messages.ProduceRequest(
        acks=-1, timeout_ms=1, topic_data=[produce_messages.TopicProduceData(partition_data=rows, **where)]
    ).encode(version)

    def read(part: bytes) -> list[object]:
        view = memoryview(part)
        acks, topics, at = produce.read_head(view, 0, version)
        found: list[object] = [acks, topics]
        for _ in range(topics):
            key, partitions, at = produce.read_topic(view, at, version)
            found.append(key)
            for _ in range(partitions):
                number, start, end = produce.read_records(view, at, version >= produce.FLEXIBLE)
                found.append((number, end - start))
                at = skip_tags(view, end) if version >= produce.FLEXIBLE else end
        return found

    assert read(frame) == [-1, 1, key_of(version), (1, 100), (2, 200)]
    for end in range(len(frame) - (3 if version >= produce.FLEXIBLE else 0)):
        with pytest.raises((DecodeError, *PARSE_ERRORS)):
            read(frame[:end])


@pytest.mark.parametrize("version", range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1))
def test_a_fetch_request_and_its_response(version: int) -> None:
    topic = {"topic_id": TOPIC_ID} if version >= hot.TOPIC_IDS else {"topic": "topic"}
    frame = fetch_messages.FetchRequest(
        max_wait_ms=10,
        min_bytes=20,
        max_bytes=30,
        topics=[
            fetch_messages.FetchTopic(
                partitions=[
                    fetch_messages.FetchPartition(
                        partition=number,
                        fetch_offset=number * 10,
                        partition_max_bytes=number * 100,
                        **({"current_leader_epoch": 4} if version >= 9 else {}),
                    )
                    for number in (0, 1, 2)
                ],
                **topic,
            )
        ],
        **({"rack_id": "east"} if version >= fetch.RACKS else {}),
    ).encode(version)
    logs: list[SimpleNamespace | None] = [SimpleNamespace(), None]
    request, portions = fetch.parse(memoryview(frame), 0, version, {"topic": logs}, {TOPIC_ID: logs})
    (portion,) = portions
    assert request.rack == ("east" if version >= fetch.RACKS else "")
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.topics) == (10, 20, 30, 1)
    ((key, is_first, count, wanted, is_last),) = portion
    assert (key, is_first, count, is_last) == (key_of(version), True, 3, True)
    assert [(one.log, one.exists, one.number, one.offset, one.max_bytes) for one in wanted] == [
        (logs[0], True, 0, 0, 0),
        (None, True, 1, 10, 100),
        (None, False, 2, 20, 200),
    ]
    assert all(one.epoch == (4 if version >= 9 else -1) for one in wanted)
    wanted[0].slices, wanted[0].bytes, wanted[0].high_watermark, wanted[0].log_start = (
        [memoryview(b"re"), memoryview(b"s")],
        3,
        9,
        1,
    )
    wanted[0].stable_end, wanted[0].aborted = 8, [(77, 2), (78, 5)]
    wanted[1].code, wanted[2].code, wanted[2].preferred = 6, 3, 5
    if version >= fetch.HINTS:
        wanted[1].lead = (3, 9)
    response = fetch.Response(version, 0, request.topics, 77)
    response.add(portion)
    parts = response.end(NODES)
    assert parts[1:3] == [b"re", b"s"], "records are not copied"
    expected = fetch_messages.FetchResponse(
        responses=[
            fetch_messages.FetchableTopicResponse(
                **topic,
                partitions=[
                    fetch_messages.PartitionData(
                        partition_index=number,
                        error_code=(0, 6, 3)[number],
                        high_watermark=(9, -1, -1)[number],
                        last_stable_offset=(8, -1, -1)[number],
                        **({"log_start_offset": (1, -1, -1)[number]} if version >= 5 else {}),
                        aborted_transactions=[
                            fetch_messages.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                            for producer_id, first_offset in (((77, 2), (78, 5)) if number == 0 else ())
                        ],
                        records=(b"res", b"", b"")[number],
                        **({"preferred_read_replica": (-1, -1, 5)[number]} if version >= fetch.RACKS else {}),
                        **(
                            {"current_leader": fetch_messages.LeaderIdAndEpoch(leader_id=3, leader_epoch=9)}
                            if version >= fetch.HINTS and number == 1
                            else {}
                        ),
                    )
                    for number in (0, 1, 2)
                ],
            )
        ],
        node_endpoints=[
            fetch_messages.NodeEndpoint(node_id=one.broker_id, host=one.host, port=one.port, rack=one.rack)
            for one in (NODES if version >= fetch.HINTS else ())
        ],
    ).encode(version)
    joined = b"".join(parts)
    start = body_at(version >= fetch.FLEXIBLE)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4
    assert joined[4:8] == (77).to_bytes(4, "big")
    assert joined[start:] == expected
