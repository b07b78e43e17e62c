"""The benchmark's own honesty: the bytes that its load client sends, and its arithmetic. No times are measured.

The requests and canned responses are judged by kio (generated from Kafka's schema) and the batches by kafka-python. A mismatch
means that the ceiling would be measured with traffic that no broker would accept, or that an error would count as an answer.
"""

from __future__ import annotations

import struct

import pytest
from kafka.record.memory_records import MemoryRecords
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.create_topics.v2.request import CreateTopicsRequest
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.produce.v9.request import ProduceRequest
from kio.schema.produce.v9.response import ProduceResponse
from kio.serial import entity_reader

from tests.bench import frames
from tests.bench.__main__ import TITLES, chosen
from tests.bench.cases import ALL, durable, fetch, produce, sink
from tests.bench.compare import Figure, compare, figure
from tests.bench.harness import Bench
from tests.bench.native import NO_COMPILER, Cores
from tests.bench.report import Goal, Row, Verdict, as_json, judge, paired, table


def _parse(entity, data: bytes):
    """Header and body of a whole frame; every byte must be used."""
    (length,) = struct.unpack_from(">i", data)
    assert length == len(data) - 4
    header, at = entity_reader(entity.__header_schema__)(data, 4)
    body, used = entity_reader(entity)(data, 4 + at)
    assert 4 + at + used == len(data)
    return header, body


@pytest.mark.parametrize("size", [100, 1 << 10, 16 << 10, 64 << 10, 1 << 20, *range(200, 340)])
def test_a_batch_has_exactly_the_size_asked_for_and_is_valid(size: int) -> None:
    data = frames.batch(size)
    assert len(data) == size
    (batch,) = list(_batches(data))
    assert batch.magic == 2
    assert batch.validate_crc()
    offsets = [record.offset for record in batch]
    assert offsets == list(range(struct.unpack_from(">i", data, 57)[0]))


def _batches(data: bytes):
    records = MemoryRecords(data)
    assert records.valid_bytes() == len(data)
    while records.has_next():
        yield records.next_batch()


def test_a_batch_too_small_for_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no record"):
        frames.batch(61)


def test_the_produce_request_is_what_kafka_clients_send() -> None:
    batch = frames.batch(1 << 10)
    header, request = _parse(ProduceRequest, frames.produce_request("bench", 3, batch))
    assert (header.client_id, header.correlation_id) == ("bench", 0)
    assert (request.acks, request.transactional_id) == (-1, None)
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, bytes(partition.records)) == ("bench", 3, batch)


def test_the_correlation_id_stands_where_the_client_patches_it() -> None:
    request = bytearray(frames.produce_request("bench", 0, frames.batch(200)))
    request[8:12] = struct.pack(">i", 77)
    assert _parse(ProduceRequest, bytes(request))[0].correlation_id == 77


def test_the_canned_produce_answer_is_a_success_and_its_error_code_is_where_the_client_looks() -> None:
    answer = bytearray(frames.produce_response("bench", 0))
    for code in (0, 87):
        struct.pack_into(">h", answer, frames.produce_error_at("bench"), code)
        _, response = _parse(ProduceResponse, bytes(answer))
        (partition,) = response.responses[0].partition_responses
        assert partition.error_code.value == code


def test_the_fetch_request_and_its_canned_answer_are_kafkas() -> None:
    _, request = _parse(FetchRequest, frames.fetch_request("bench", 2, 12345, bytes_max=1 << 20))
    (partition,) = request.topics[0].partitions
    assert (partition.partition, partition.fetch_offset, partition.partition_max_bytes) == (2, 12345, 1 << 20)
    batch = frames.batch(300)
    answer = bytearray(frames.fetch_response("bench", 2, batch, high_watermark=9))
    for code in (0, 1):
        struct.pack_into(">h", answer, frames.fetch_error_at("bench"), code)
        _, response = _parse(FetchResponse, bytes(answer))
        (data,) = response.responses[0].partitions
        assert (data.error_code.value, data.high_watermark, bytes(data.records)) == (code, 9, batch)


def test_the_canned_fetch_answer_is_as_long_as_the_brokers() -> None:
    """The overhead is that of an answer of about 1 MB; its length takes three bytes."""
    records = bytes(1 << 20)
    assert len(fetch.canned_response(1 << 20)) == len(records) + frames.fetch_overhead_bytes(fetch.TOPIC)


def test_the_small_requests_are_kafkas() -> None:
    _parse(ApiVersionsRequest, frames.api_versions_request())
    _, request = _parse(CreateTopicsRequest, frames.create_topic_request("bench", 8, {"retention.ms": "1000"}))
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.configs[0].name, topic.configs[0].value) == ("bench", 8, "retention.ms", "1000")


@pytest.mark.parametrize(
    "traffic",
    [produce.shape(1 << 10, 50), durable.shape(16 << 10, 32, 8), fetch.shape(16, 64)],
    ids=["produce", "durable", "fetch"],
)
def test_all_frames_of_a_shape_have_one_length(traffic) -> None:
    assert {len(frame) for frame in traffic.frames} == {traffic.frame_bytes}


def test_paired_compares_neighbours_in_time_not_medians() -> None:
    """The machine became twice as fast half-way; every pair still gives 50 %."""
    assert paired([50, 50, 100], [100, 100, 200]).median == 0.5
    ratio = paired([50, 90, 60], [100, 100, 100])
    assert (ratio.low, ratio.median, ratio.high) == (0.5, 0.6, 0.9)
    with pytest.raises(ValueError, match="incomplete"):
        paired([1.0], [])


@pytest.mark.parametrize(
    ("ratio", "goal", "side", "of_ceiling", "verdict"),
    [
        (0.55, 0.55, Goal.AT_LEAST, True, Verdict.MET),
        (0.549, 0.55, Goal.AT_LEAST, True, Verdict.MISSED),
        (1.01, 0.55, Goal.AT_LEAST, True, Verdict.WRONG),
        (1.01, None, Goal.AT_LEAST, True, Verdict.WRONG),
        (1.01, None, Goal.AT_LEAST, False, Verdict.INFO),
        (2.2, 2.2, Goal.AT_MOST, False, Verdict.MET),
        (2.3, 2.2, Goal.AT_MOST, False, Verdict.MISSED),
        (None, 0.5, Goal.AT_LEAST, True, Verdict.UNMEASURED),
        (None, None, Goal.AT_LEAST, False, Verdict.INFO),
    ],
)
def test_verdicts(ratio: float | None, goal: float | None, side: Goal, of_ceiling: bool, verdict: Verdict) -> None:
    assert judge(ratio, goal, side, of_ceiling=of_ceiling) is verdict


def test_without_a_compiler_a_ratio_is_not_measured_and_says_why(tmp_path) -> None:
    bench = Bench(native=None, directory=tmp_path, cores=Cores(None, None), quick=True)
    (row,) = produce.CASES[0].rows(bench)
    assert (row.verdict, row.note) == (Verdict.UNMEASURED, NO_COMPILER)


def test_without_the_connector_of_spark_the_sink_is_not_measured_and_says_why(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bench = Bench(native=None, directory=tmp_path, cores=Cores(None, None), quick=True)
    (row,) = sink.CASES[0].rows(bench)
    assert row.verdict is Verdict.UNMEASURED
    assert row.note == "Spark's Kafka connector cannot be downloaded: java is not installed"


def test_the_cpu_of_a_job_is_without_what_its_server_takes_in_any_case() -> None:
    def job(seconds: float, cpu_s: float, idle_cpu_s: float) -> sink.Job:
        return sink.Job(seconds, 1.0, cpu_s, idle_cpu_s, 0.0, 0.0, {})

    others = [job(20, 9, 0.2), job(10, 5, 0.3), job(10, 5, 0.1)]
    assert sink.own_cpu_s(job(10, 0.5, 0.9), others) == pytest.approx(0.4)
    assert sink.own_cpu_s(job(10, 0.05, 0.9), others) == 0


def test_rows_become_a_table_and_json() -> None:
    row = Row(group="g", case="c", ratio=0.5, low=0.4, high=0.6, goal=0.45, of_ceiling=True)
    assert (as_json([row])[0]["verdict"], as_json([row])[0]["ratio"]) == ("met", 0.5)
    assert table("g", [row]).row_count == 1


def test_every_case_is_in_a_titled_group_and_can_be_picked() -> None:
    assert {case.group for case in ALL} == set(TITLES)
    assert len({(case.group, case.name) for case in ALL}) == len(ALL)
    assert chosen([], "produce/1 KB")
    assert {case.group for case in chosen(["memory"], None)} == {"memory"}


def test_the_figure_of_a_row() -> None:
    """A ratio if there is one; else the time or size at the beginning of the text; other texts have none."""
    rows = as_json(
        [
            Row(group="g", case="ratio", ratio=0.5, measured="7 ms"),
            Row(group="g", case="time", measured="1,234.5 ms beside others"),
            Row(group="g", case="rate", measured="300 MB/s"),
            Row(group="g", case="words", measured="all of them"),
        ]
    )
    at_most = Figure(1234.5, "ms", Goal.AT_MOST)
    assert [figure(row) for row in rows] == [Figure(0.5, "%", Goal.AT_LEAST), at_most, None, None]


def test_two_checkouts_are_compared_by_medians() -> None:
    """More than 1 means that this checkout is better, for rates and for times; a row that one round misses is left out."""
    rate, time = ("g", "rate"), ("g", "time")

    def rounds(*pairs: tuple[float, float]) -> list[dict[tuple[str, str], Figure]]:
        return [{rate: Figure(r, "%", Goal.AT_LEAST), time: Figure(t, "ms", Goal.AT_MOST)} for r, t in pairs]

    compared = compare(rounds((0.4, 10), (0.5, 99), (9, 8)), rounds((1, 5), (1, 5), (0, 0)))
    assert [(one.case, one.other, one.here, one.ratio) for one in compared] == [(rate, 0.5, 1, 2), (time, 10, 5, 2)]
    assert [one.case for one in compare([{}, *rounds((1, 1))], rounds((1, 1)))] == []
