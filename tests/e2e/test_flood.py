"""Floods from end to end: real Spark, a real broker process, and foreign Kafka clients that read the result.

Compared: every record (partition, order, time, key, value) with the source, as plain Python computes it; the certificate with
both. A mismatch means that history is lost, doubled, torn apart or out of order. If any process dies in the middle, no partial
result may be readable, and a second run of the same flood must give the same topic.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.cli.flood import run_flood
from headgate.broker.client import Admin
from headgate.broker.client.gate_admin import Gate, GateAdmin, GateState, Place
from headgate.broker.log.partitioner import partition_for_key
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.progress import Phase, Progress
from headgate.pipelines.session import LazySession
from headgate.pipelines.verify import verify
from tests.support import commands
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.flood_sources import Event, as_json, events, expected, read_json, write
from tests.support.records import Read, Record
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JUDGE = CLIENTS["confluent"]
PARTITIONS = 3
TIMEOUT_S = 280


broker = broker_of_module()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    rows = events(5000)
    return write(tmp_path_factory.mktemp("source") / "events", rows), rows


@pytest.fixture
def lazy(spark: SparkSession) -> LazySession:
    """The session as the command line and Dagster give it to a flood: plain columns do without Spark. For floods of which the
    gates and the topic are tested, not the work on rows."""
    return LazySession(lambda: spark, "local[2]", {})


def cluster(broker: BrokerProcess) -> str:
    return f"{HOST}:{broker.grpc_port}"


def flood(broker: BrokerProcess, topic: str, source: Path | str, **changed: Any) -> Backfill:
    usual: dict[str, Any] = {"key": "user", "value": "payload", "event_time": "at", "partitions": PARTITIONS}
    return Backfill(cluster=cluster(broker), topic=topic, source=str(source), **{**usual, **changed})


def read(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS, client: str = "confluent") -> dict[int, list[Read]]:
    return dict(CLIENTS[client].consume(broker.bootstrap, topic, range(partitions)))


def content(found: dict[int, list[Read]]) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    for rows in found.values():
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets))
    return {number: [(row.timestamp_ms, row.key, row.value) for row in rows] for number, rows in found.items()}


def gates(broker: BrokerProcess, topic: str) -> list[Gate]:
    async def ask() -> list[Gate]:
        async with GateAdmin(cluster(broker)) as admin:
            return await admin.list(topic)

    return asyncio.run(ask())


def create(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS, **config: str) -> None:
    async def ask() -> None:
        async with Admin(cluster(broker)) as admin:
            await admin.create_topic(topic, partitions, config)

    asyncio.run(ask())


# -- right results


def test_a_flood_is_whole_in_order_and_counted(
    broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession
) -> None:
    path, rows = source
    seen: list[Progress] = []
    certificate = run(flood(broker, "whole", path, verify=True, file_bytes=64 << 10), spark, progress=seen.append)
    assert certificate.verified and certificate.added_rows == certificate.rows == len(rows)
    assert certificate.files > 0 and (certificate.gap_rows, certificate.duplicate_rows, certificate.disordered_rows) == (0, 0, 0)
    assert certificate.timestamp_min_ms == min(row.at_ms for row in rows)
    assert certificate.timestamp_max_ms == max(row.at_ms for row in rows)
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert content(read(broker, "whole")) == expected(rows, PARTITIONS)
    assert content(read(broker, "whole", client="kafka-python")) == expected(rows, PARTITIONS)
    phases = list(dict.fromkeys(one.phase for one in seen))
    assert phases[:2] == [Phase.COUNTING, Phase.OPENING] and Phase.COMMITTING in phases and Phase.VERIFYING in phases

    again = run(flood(broker, "whole", path), spark, progress=seen.append)
    assert (again.added_rows, again.already_filled, again.rows, again.complete) == (0, True, len(rows), True)
    assert "0 added" in seen[-1].message
    assert content(read(broker, "whole")) == expected(rows, PARTITIONS)
    assert verify(cluster(broker), "whole", certificate=certificate).verified
    assert verify(cluster(broker), "whole", flood_id=certificate.flood_id).complete
    with pytest.raises(InvalidError, match="certificate is of another flood"):
        verify(cluster(broker), "whole", certificate=certificate, flood_id="nosuch")
    # A certificate that covers less than the flood would check only a part of it.
    for parts in ((), certificate.partitions[1:], (*certificate.partitions, certificate.partitions[0])):
        with pytest.raises(InvalidError, match="certificate is of another flood, or not whole"):
            verify(cluster(broker), "whole", certificate=certificate.with_partitions(parts))
    remove_records(broker, "whole", {0: certificate.partitions[0].base_offset + 1})
    with pytest.raises(InvalidError, match="records were removed from the topic by retention or by hand"):
        verify(cluster(broker), "whole", certificate=certificate)


def remove_records(broker: BrokerProcess, topic: str, before: dict[int, int]) -> None:
    async def ask() -> None:
        async with Admin(cluster(broker)) as admin:
            await admin.delete_records(topic, before)

    asyncio.run(ask())


def test_live_records_go_on_behind_history(broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession) -> None:
    path, rows = source
    create(broker, "live")
    before = [Record(partition=number, key=b"live", value=b"before", timestamp_ms=1) for number in range(PARTITIONS)]
    during = [Record(partition=number, key=b"live", value=b"during", timestamp_ms=2) for number in range(PARTITIONS)]
    JUDGE.produce(broker.bootstrap, "live", before)

    def listen(seen: Progress) -> None:
        if seen.phase is Phase.COMMITTING:
            JUDGE.produce(broker.bootstrap, "live", during)
            found = read_now(broker, "live", at_least=PARTITIONS)
            assert {part: len(some) for part, some in found.items()} == dict.fromkeys(range(PARTITIONS), 1)

    assert run(flood(broker, "live", path), lazy, progress=listen).complete
    found = content(read(broker, "live"))
    for number, history in expected(rows, PARTITIONS).items():
        assert found[number] == [(1, b"live", b"before"), *history, (2, b"live", b"during")]
    whole = verify(cluster(broker), "live")
    assert whole.complete and whole.rows == len(rows) + 2 * PARTITIONS


def read_now(broker: BrokerProcess, topic: str, at_least: int = 0) -> dict[int, list[bytes | None]]:
    """The records that can be read at this moment, without waiting for more than `at_least`."""
    from headgate.broker.client import Consumer, TopicPartition

    async def ask() -> dict[int, list[bytes | None]]:
        found: dict[int, list[bytes | None]] = {number: [] for number in range(PARTITIONS)}
        async with Consumer(cluster(broker)) as consumer:
            await consumer.assign({TopicPartition(topic, number): "earliest" for number in range(PARTITIONS)})
            while (records := await consumer.poll(timeout_ms=500)) or sum(map(len, found.values())) < at_least:
                for record in records:
                    found[record.partition].append(record.value)
        return found

    return asyncio.run(ask())


def test_history_in_front_of_a_live_topic(broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession) -> None:
    path, rows = source
    create(broker, "front", **{"history.room": "100000"})
    JUDGE.produce(broker.bootstrap, "front", [Record(partition=0, key=b"live", value=b"first", timestamp_ms=5)])
    late, early = "number >= 2500", "number < 2500"
    assert run(flood(broker, "front", path, place=Place.FRONT, where=late), lazy).complete
    assert run(flood(broker, "front", path, place=Place.FRONT, where=early), lazy).complete
    found = content(read(broker, "front"))
    older = expected([row for row in rows if row.number < 2500], PARTITIONS)
    newer = expected([row for row in rows if row.number >= 2500], PARTITIONS)
    assert found[0] == [*older[0], *newer[0], (5, b"live", b"first")]
    assert found[1] == [*older[1], *newer[1]]


def test_rows_as_json_without_keys_from_csv(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    rows = events(300, seed=3, keyless=300)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "seconds"])
        writer.writerows([row.number, (row.at_us or 0) // 1_000_000] for row in rows)
    backfill = flood(
        broker, "csv", tmp_path / "rows.csv", format="csv", options={"header": "true", "inferSchema": "true"}, key=None, value=None,
        event_time="timestamp_seconds(seconds)", order_by=("number",), verify=True,
    )  # fmt: skip
    certificate = run(backfill, spark)
    assert certificate.verified and certificate.keyless_rows == 300
    found = read(broker, "csv")
    assert all(len(some) > 50 for some in found.values()), "rows without a key are spread"
    for some in found.values():
        assert all(row.key is None for row in some)
        numbers = [(row.timestamp_ms, json.loads(row.value or b"")["number"]) for row in some]
        assert numbers == sorted(numbers), "ties are in the order that was asked for"
    assert sorted(json.loads(row.value or b"")["number"] for some in found.values() for row in some) == list(range(300))


@pytest.mark.parametrize("header", ["named_struct('key', cast(null AS string), 'value', 'x')", "null"])
def test_a_header_without_a_name(broker: BrokerProcess, spark: SparkSession, tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "nameless", events(10, seed=6))
    headers = f"array(named_struct('key', 'h', 'value', 'x'), {header})"
    with pytest.raises(InvalidError, match=r"the job failed\. a header, or its name, is null"):
        run(flood(broker, "nameless", path, headers=headers), spark)


def test_null_keys_a_hot_key_and_a_query(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    rows = events(3000, seed=4, keyless=200, hot=0.9)
    spark.read.parquet(str(write(tmp_path / "hot", rows))).createOrReplaceTempView("hot_rows")
    sql = "SELECT *, map('kind', 'hot', 'n', cast(number AS string)) AS h FROM hot_rows"
    certificate = run(flood(broker, "hot", sql, format="query", value=None, headers="h", verify=True), spark)
    assert certificate.verified and certificate.keyless_rows == 200
    found = read(broker, "hot")
    keyed = {number: [row for row in some if row.key is not None] for number, some in found.items()}
    assert {number: [(row.timestamp_ms, row.key) for row in some] for number, some in keyed.items()} == {
        number: [(at, key) for at, key, _ in some] for number, some in expected(rows, PARTITIONS).items()
    }
    read_back = sorted((read_json(row.value or b"") for some in found.values() for row in some), key=lambda row: str(row["number"]))
    assert read_back == sorted((as_json(row) for row in rows), key=lambda row: str(row["number"]))
    for some in found.values():
        for row in some:
            number = str(read_json(row.value or b"")["number"]).encode()
            assert row.headers == (("kind", b"hot"), ("n", number))
    assert sum(row.key is None for some in found.values() for row in some) == 200


def test_without_an_event_time_the_source_s_order_stays(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    rows = events(2000, seed=5)
    path = write(tmp_path / "ordered", rows, files=1)
    began_ms = time.time_ns() // 1_000_000
    assert run(flood(broker, "ordered", path, event_time=None, verify=True), spark).verified
    found = read(broker, "ordered")
    for number, some in found.items():
        mine = [
            row.value for row in rows if row.key is not None and (row.key, number) in {(one.key, one.partition) for one in some}
        ]
        assert [row.value for row in some] == mine
        assert all(row.timestamp_ms >= began_ms for row in some)


def test_zero_rows(broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession, tmp_path: Path) -> None:
    """No row passes, or the path is there without files that have content, as Spark leaves a day without rows."""
    for name in ("_SUCCESS", "part.parquet"):
        (tmp_path / "empty" / name).mkdir(parents=True)
        (tmp_path / "empty" / name / name).touch()
    for path, where in ((source[0], "false"), *((one, None) for one in (tmp_path / "empty").iterdir())):
        seen: list[Progress] = []
        certificate = run(flood(broker, "none", path, where=where), spark, progress=seen.append)
        assert (certificate.rows, certificate.added_rows, certificate.complete) == (0, 0, True)
        assert "no rows" in seen[-1].message and gates(broker, "none") == []
    assert run(flood(broker, "none", source[0], where="number = 1"), spark).added_rows == 1


def test_at_the_end(broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession) -> None:
    path, rows = source
    create(broker, "end")
    JUDGE.produce(broker.bootstrap, "end", [Record(partition=0, key=b"live", value=b"first", timestamp_ms=5)])
    seen: list[Progress] = []
    assert run(flood(broker, "end", path, place="end", verify=True), lazy, progress=seen.append).verified
    assert Phase.OPENING not in {one.phase for one in seen}, "nobody waits for it"
    assert run(flood(broker, "end", path, place=Place.END), lazy).added_rows == 0
    found = content(read(broker, "end"))
    assert found[0] == [(5, b"live", b"first"), *expected(rows, PARTITIONS)[0]]
    assert found[2] == expected(rows, PARTITIONS)[2]


# -- wrong input


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"source": "/no/such/place"}, ["source cannot be read", "/no/such/place"]),
        ({"source": ""}, ["source cannot be read", "empty string"]),
        ({"key": "nope"}, ["key", "nope", "user"]),
        ({"value": "sum("}, ["value", "sum("]),
        ({"key": "user name"}, ["key", "user name", "PARSE_SYNTAX_ERROR"]),
        ({"order_by": ("number desc",)}, ["order", "number desc", "PARSE_SYNTAX_ERROR"]),
        ({"event_time": "number"}, ["timestamp_millis", "bigint"]),
        ({"event_time": "user"}, ["to_timestamp", "string"]),
        ({"event_time": "if(number < 7, null, at)"}, ["event time of some rows is null", "rows=`7`", "coalesce"]),
        ({"where": "nope = 1"}, ["where", "nope"]),
        ({"headers": "user"}, ["headers", "map"]),
        ({"value": "struct(user)"}, ["to_json"]),
        ({"flood_id": "a/b"}, ["flood id"]),
        ({"file_bytes": 1}, ["file_bytes"]),
        ({"format": "query", "source": "DROP VIEW IF EXISTS nothing"}, ["a statement without rows", "SELECT"]),
        ({"format": "nope"}, ["source cannot be read", "nope", "spark.jars.packages"]),
        ({"source": "s3://lake/x", "format": "text"}, ["source cannot be read", "s3://lake/x", "org.apache.hadoop:hadoop-aws"]),
        ({"format": "orc"}, ["source cannot be read", "CANNOT_READ_FILE_FOOTER"]),
        ({"key": "cast(user as int)"}, ["source cannot be counted", "CAST_INVALID_INPUT", "try_cast"]),
        ({"value": "assert_true(number < 77)"}, ["the job failed", "(number < 77)"]),
        ({"partitions": 4}, ["another number of partitions", "3"]),
        ({"place": "middle"}, ["place is now, front, end"]),
        ({"partitions": 0}, ["at least one partition", "0"]),
    ],
)
def test_a_flood_that_cannot_be_is_said_to_be(
    broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession, changed: dict[str, Any], words: list[str]
) -> None:
    create_once(broker, "wrong")
    usual: dict[str, Any] = {"source": source[0]}
    with pytest.raises(InvalidError) as caught:
        run(flood(broker, "wrong", **{**usual, **changed}), spark)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 1000
    assert all(gate.state is GateState.RELEASED for gate in gates(broker, "wrong"))


def create_once(broker: BrokerProcess, topic: str) -> None:
    try:
        create(broker, topic)
    except InvalidError as error:
        assert error.reason is Reason.TOPIC_EXISTS


@pytest.mark.parametrize(
    "changed",
    [{"source": "/no/such/place"}, {"key": "nope"}, {"event_time": "if(number < 7, null, at)"}],
    ids=lambda one: next(iter(one)),
)
def test_a_flood_that_cannot_be_makes_no_topic(
    broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession, changed: dict[str, Any]
) -> None:
    with pytest.raises(InvalidError):
        run(flood(broker, "never", **{"source": source[0], **changed}), spark)
    with pytest.raises(InvalidError) as caught:
        gates(broker, "never")
    assert caught.value.reason is Reason.UNKNOWN_TOPIC


def test_a_topic_that_is_not_there(broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession) -> None:
    with pytest.raises(InvalidError) as caught:
        run(flood(broker, "missing", source[0], partitions=None), spark)
    assert caught.value.reason is Reason.UNKNOWN_TOPIC
    with pytest.raises(InvalidError, match="flood_id"):
        Backfill(topic="t", source=spark.range(1)).id()


def test_a_command_that_has_nothing_to_load_starts_no_spark(
    broker: BrokerProcess,
    source: tuple[Path, list[Event]],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_session(*args: Any, **named: Any) -> SparkSession:
        raise AssertionError("Spark was started")

    def settings(topic: str, **values: str) -> None:
        async def alter() -> None:
            async with Admin(cluster(broker)) as admin:
                await admin.alter_topic_config(topic, {name.replace("_", "."): value for name, value in values.items()})

        asyncio.run(alter())

    loaded = flood(broker, "loaded", source[0])
    run(loaded, spark)
    monkeypatch.setattr("headgate.pipelines.session.session", no_session)
    with pytest.raises(InvalidError, match=r"topic does not exist: .*--partitions N") as caught:
        run_flood(flood(broker, "missing", source[0], partitions=None), "local[2]", {}, None, False)
    assert caught.value.reason is Reason.UNKNOWN_TOPIC
    settings("loaded", message_timestamp_type="LogAppendTime")
    with pytest.raises(InvalidError, match="takes no records with times of their own"):
        run_flood(replace(loaded, flood_id="other"), "local[2]", {}, None, False)
    settings("loaded", cleanup_policy="compact")
    with pytest.raises(InvalidError, match="takes no records without a key: name one"):
        run_flood(replace(loaded, flood_id="other", key=None), "local[2]", {}, None, False)
    capsys.readouterr()
    assert run_flood(loaded, "local[2]", {}, None, False) == 0
    assert "0: the flood was committed before" in capsys.readouterr().out, "also when its topic takes no such records any more"


@pytest.mark.parametrize("place", [Place.NOW, Place.END])
def test_an_id_stands_for_one_flood(
    broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession, tmp_path: Path, place: Place
) -> None:
    """The same flood is recognised after its source is gone; every change that makes it another flood is an error, and changes
    no data."""
    rows = events(50, seed=9)
    path, topic = write(tmp_path / "moving", rows), f"one-id-{place}"
    backfill = flood(broker, topic, path, flood_id="o", place=place)
    assert run(backfill, lazy).added_rows == len(rows)
    # The same source in other words, and as an earlier release named it, is the same flood.
    unnamed = replace(backfill, topic=f"{topic}-before", flood_id=None)
    former = next(iter(unnamed.identity().former_ids()))
    assert run(replace(unnamed, flood_id=former, source=f"file://{path}/"), lazy).added_rows == len(rows)
    for spelling in (str(path), f"{path}/", f"file:{path}", f"file://{path}"):
        for same in (backfill, unnamed):
            found = run(replace(same, source=spelling, options={"mergeSchema": "FALSE"}), lazy)
            assert (found.added_rows, found.rows) == (0, len(rows))
    path.rename(tmp_path / "gone")
    again = run(backfill, lazy)
    assert (again.added_rows, again.rows) == (0, len(rows))
    others: list[tuple[str, dict[str, Any]]] = [
        ("source", {"source": source[0]}),
        ("source", {"source": "/no/such/place"}),
        ("format", {"format": "csv"}),
        ("options", {"options": {"mergeSchema": "true"}}),
        ("key", {"key": None}),
        ("value", {"value": "user"}),
        ("event_time, where", {"event_time": None, "where": "number < 3"}),
        ("headers", {"headers": "map('a', 'b')"}),
        ("order_by", {"order_by": ("number",)}),
        ("place", {"place": Place.FRONT}),
    ]
    for differing, changed in others:
        other = flood(broker, topic, **{"source": path, "flood_id": "o", "place": place, **changed})
        with pytest.raises(InvalidError) as caught:
            run(other, lazy)
        assert f"differs=`{differing}`" in caught.value.message and "--flood-id" in caught.value.message
    assert [(gate.id, gate.rows) for gate in gates(broker, topic)] == [("o", len(rows))]


def test_a_gate_that_no_flood_opened_is_not_taken_for_one(
    broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession
) -> None:
    create(broker, "by-hand")

    async def by_hand() -> None:
        async with GateAdmin(cluster(broker)) as admin:
            await admin.open("by-hand", [0, 0, 0], gate_id="h")
            await admin.fill("by-hand", "h", [])

    asyncio.run(by_hand())
    with pytest.raises(InvalidError, match="not a flood's gate"):
        run(flood(broker, "by-hand", source[0], flood_id="h"), spark)


def test_times_in_nanoseconds_are_numbers(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "nanoseconds.parquet"
    times = pa.array([1_700_000_000_123_456_789, 5_000_001], pa.timestamp("ns"))
    pq.write_table(pa.table({"user": ["a", "b"], "payload": ["1", "2"], "at": times}), path)
    create(broker, "nanoseconds")
    setting = "spark.sql.legacy.parquet.nanosAsLong"
    with pytest.raises(InvalidError, match=r"timestamp_micros\(\.\.\. div 1000\) of nanoseconds"):
        run(flood(broker, "nanoseconds", path), spark)
    run(flood(broker, "nanoseconds", path, event_time="timestamp_micros(at div 1000)"), spark)
    spark.conf.set(setting, "false")  # as in a session of the user's own
    try:
        with pytest.raises(InvalidError, match=r"no times in nanoseconds.*nanosAsLong=true.*timestamp_micros"):
            run(flood(broker, "nanoseconds", path, flood_id="other"), spark)
    finally:
        spark.conf.set(setting, "true")
    found = sorted(one for some in content(read(broker, "nanoseconds")).values() for one in some)
    assert found == [(5, b"b", b"2"), (1_700_000_000_123, b"a", b"1")]


def test_times_do_not_depend_on_the_session(broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession) -> None:
    """If `timestamp` has no time zone, an earlier version took an hour of the session's zone for one of UTC."""
    settings = {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "America/New_York"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        assert run(flood(broker, "zones", source[0], verify=True), spark).verified
        assert run(flood(broker, "zones-now", source[0], event_time=None), spark).added_rows == len(source[1])
        topic = spark.read.format("headgate").option("cluster", cluster(broker)).option("subscribe", "zones").load()
        earliest = topic.selectExpr("min(unix_millis(timestamp))").collect()[0][0]
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    assert content(read(broker, "zones")) == expected(source[1], PARTITIONS)
    assert earliest == min(row.at_ms for row in source[1])


@pytest.mark.parametrize(("name", "key"), [("malformed", "user"), ("malformed-keyless", None)])
def test_malformed_rows_that_the_reader_drops_are_not_counted(
    broker: BrokerProcess, spark: SparkSession, tmp_path: Path, name: str, key: str | None
) -> None:
    """The rows are malformed only in columns that a mere count would not read."""
    path = tmp_path / "rows.csv"
    path.write_text("user,at,payload\na,2024-01-01,1\nb,2024-01-01,2,more\nc,2024-01-01,3\n")
    create(broker, name)
    options = {"header": "true", "mode": "DropMalformed", "inferSchema": "true"}
    whole_rows = flood(broker, name, path, format="csv", options=options, key=key, value=None, verify=True)
    assert run(whole_rows, spark).verified
    found = sorted(read_json(row.value or b"")["user"] for some in read(broker, name).values() for row in some)
    assert found == ["a", "c"]


def test_json_over_several_lines_and_directories_without_files(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own messages about these are truncated in the middle, or are about schemas."""
    create_once(broker, "wrong")
    path = tmp_path / "rows.json"
    path.write_text('[\n{\n"user": "a",\n"payload": "1"\n},\n{\n"user": "b",\n"payload": "2"\n}\n]')
    for key in ("user", None):
        rows = flood(broker, "wrong", path, format="json", key=key, value="to_json(struct(*))", event_time=None)
        with pytest.raises(InvalidError, match=r"no row of the source can be parsed.*multiLine=true"):
            run(rows, spark)
    assert run(replace(rows, options={"multiLine": "true"}), spark).added_rows == 2
    # An empty day is no mistake; files that Spark does not read, and a path that is not there, are mistakes.
    for number, name in enumerate(("", "_SUCCESS", ".part.crc", "part-0.parquet", "_temporary/0/part-0.parquet")):
        place = tmp_path / f"empty-{number}"
        place.mkdir()
        if name:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).touch()
        seen: list[Progress] = []
        assert run(flood(broker, "wrong", place), spark, progress=seen.append).complete
        assert seen[-1].message == "the source has no rows: nothing was added"
    for format in ("csv", "json", "orc"):
        assert run(flood(broker, "wrong", place, format=format), spark).added_rows == 0
    (place / "sub").mkdir()
    (place / "sub" / "part-0.parquet").write_bytes(b"something")
    with pytest.raises(InvalidError, match=r"recursiveFileLookup.*directories=`.*/sub`"):
        run(flood(broker, "wrong", place), spark)
    with pytest.raises(InvalidError, match="PATH_NOT_FOUND"):
        run(flood(broker, "wrong", tmp_path / "emptty"), spark)


def test_a_file_that_cannot_be_read_is_named_with_what_is_wrong_in_it(
    broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("user,at,payload\na,2024-01-01,1\nb,2024-01-01,2,more\n")
    create_once(broker, "wrong")
    options = {"header": "true", "mode": "FAILFAST", "inferSchema": "true"}
    with pytest.raises(InvalidError, match=r"rows\.csv.*MALFORMED_CSV_RECORD.*b,2024-01-01,2,more"):
        run(flood(broker, "wrong", path, format="csv", options=options), spark)


# -- deaths, and two at once


def test_a_job_that_fails_releases_its_gate_and_can_be_run_again(
    broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession
) -> None:
    path, rows = source
    failing = flood(broker, "failing", path, flood_id="f", value="if(number = 4321, raise_error('no luck'), payload)")
    with pytest.raises(InvalidError, match="no luck") as caught:
        run(failing, spark)
    assert "\n" not in caught.value.message
    assert [(gate.id, gate.state) for gate in gates(broker, "failing")] == [("f", GateState.RELEASED)]
    assert read_now(broker, "failing") == {number: [] for number in range(PARTITIONS)}
    done = run(flood(broker, "failing", path, flood_id="f", verify=True), spark)
    assert done.verified and done.gate_id == "f"
    assert content(read(broker, "failing")) == expected(rows, PARTITIONS)
    assert run(flood(broker, "failing", path, flood_id="f"), spark).added_rows == 0
    assert [(gate.id, gate.state) for gate in gates(broker, "failing")] == [("f~1", GateState.RELEASED), ("f", GateState.FILLED)]


def test_a_source_that_changes_between_its_two_readings(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    """The source gets the same number of rows with other keys. The error says what may have changed, and nothing of it stays in
    the topic."""
    path = tmp_path / "rows.csv"
    keys = [f"k{number}" for number in range(9)]
    here, there = (next(key for key in keys if partition_for_key(key.encode(), PARTITIONS) == number) for number in (0, 1))
    path.write_text(f"{here}\n")

    def change(seen: Progress) -> None:
        if seen.phase is Phase.OPENING:
            path.write_text(f"{there}\n")

    changing = flood(broker, "changing", path, format="csv", key="_c0", value="_c0", event_time=None)
    with pytest.raises(RetryError, match=r"other rows .* must not change .* keys must be the same .* partition=`0` first=`1`"):
        run(changing, spark, progress=change)
    assert read_now(broker, "changing") == {number: [] for number in range(PARTITIONS)}
    assert run(changing, spark).added_rows == 1


def test_a_flood_whose_id_begins_as_another_s_is_another(
    broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession
) -> None:
    """This holds also if the first of them was given up: neither a run nor a `verify` takes the other's gate for its own."""
    path, rows = source
    assert run(flood(broker, "alike", path, flood_id="v1.2", where="number < 7"), lazy).added_rows == 7
    with pytest.raises(InvalidError) as caught:
        verify(cluster(broker), "alike", flood_id="v1")
    assert caught.value.reason is Reason.UNKNOWN_GATE

    async def give_up() -> None:
        async with GateAdmin(cluster(broker)) as admin:
            await admin.open("alike", [1, 1, 1], gate_id="v1")
            await admin.release("alike", "v1")

    asyncio.run(give_up())
    assert run(flood(broker, "alike", path, flood_id="v1"), lazy).added_rows == len(rows)
    assert verify(cluster(broker), "alike", flood_id="v1").rows == len(rows)


@pytest.mark.parametrize("place", [Place.NOW, Place.END])
def test_two_at_once_add_one_flood(
    broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession, place: Place
) -> None:
    path, rows = source
    topic = f"two-{place}"
    create(broker, topic)
    barrier = threading.Barrier(2, timeout=TIMEOUT_S)
    done: list[Certificate | BaseException] = []

    def one() -> None:
        def listen(seen: Progress) -> None:
            if seen.phase is Phase.COMMITTING:
                barrier.wait()

        try:
            done.append(run(flood(broker, topic, path, flood_id="same", place=place), lazy, progress=listen))
        except BaseException as error:  # noqa: BLE001 - judged below
            done.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    certificates = [one for one in done if isinstance(one, Certificate)]
    assert len(certificates) == 2, done
    assert sorted(one.added_rows for one in certificates) == [0, len(rows)]
    assert content(read(broker, topic)) == expected(rows, PARTITIONS)


def test_of_two_at_once_the_one_that_came_second_leaves_the_gate_alone(
    broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession
) -> None:
    """The second one is interrupted: the first one adds the flood. Both asked before there was a gate."""
    path, rows = source
    create(broker, "second-ends")
    both_asked, first_opened, second_ended = threading.Barrier(2, timeout=TIMEOUT_S), threading.Event(), threading.Event()
    done: list[Certificate | BaseException] = []

    def first(seen: Progress) -> None:
        if seen.phase is Phase.OPENING:
            both_asked.wait()
        if seen.phase is Phase.SHUFFLING:
            first_opened.set()
        if seen.phase is Phase.COMMITTING:
            assert second_ended.wait(TIMEOUT_S)

    def second(seen: Progress) -> None:
        if seen.phase is Phase.OPENING:
            both_asked.wait()
            assert first_opened.wait(TIMEOUT_S)
        if seen.phase is Phase.COMMITTING:
            raise KeyboardInterrupt

    def one() -> None:
        try:
            done.append(run(flood(broker, "second-ends", path, flood_id="s"), lazy, progress=first))
        except BaseException as error:  # noqa: BLE001 - judged below
            done.append(error)

    thread = threading.Thread(target=one)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(flood(broker, "second-ends", path, flood_id="s"), lazy, progress=second)
    second_ended.set()
    thread.join()
    assert isinstance(done[0], Certificate) and done[0].added_rows == len(rows), done
    assert content(read(broker, "second-ends")) == expected(rows, PARTITIONS)


def test_of_two_at_once_the_first_releases_its_gate_and_the_second_can_be_run_again(
    broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession
) -> None:
    path, rows = source
    create(broker, "first-ends")
    first_opened, second_joined = threading.Event(), threading.Event()
    done: list[BaseException] = []

    def first(seen: Progress) -> None:
        if seen.phase is Phase.SHUFFLING:
            first_opened.set()
        if seen.phase is Phase.COMMITTING:
            assert second_joined.wait(TIMEOUT_S)
            raise KeyboardInterrupt

    def second(seen: Progress) -> None:
        if seen.phase is Phase.COMMITTING:
            second_joined.set()
            thread.join()

    def one() -> None:
        try:
            run(flood(broker, "first-ends", path, flood_id="s"), lazy, progress=first)
        except BaseException as error:  # noqa: BLE001 - judged below
            done.append(error)

    thread = threading.Thread(target=one)
    thread.start()
    assert first_opened.wait(TIMEOUT_S)
    with pytest.raises(RetryError, match="run the flood again"):
        run(flood(broker, "first-ends", path, flood_id="s"), lazy, progress=second)
    assert [type(error) for error in done] == [KeyboardInterrupt]
    assert run(flood(broker, "first-ends", path, flood_id="s"), lazy).added_rows == len(rows)
    assert content(read(broker, "first-ends")) == expected(rows, PARTITIONS)


def test_two_floods_at_once_are_both_whole(broker: BrokerProcess, lazy: LazySession, tmp_path: Path) -> None:
    """Both floods go into one topic, each with its own gate: the order of opening decides the order of the records, not that of
    the ends."""
    create(broker, "both")
    both = {name: events(1000, seed=seed) for name, seed in (("one", 31), ("other", 32))}
    barrier = threading.Barrier(2, timeout=TIMEOUT_S)
    done: list[Certificate | BaseException] = []

    def one(name: str, path: Path) -> None:
        def listen(seen: Progress) -> None:
            if seen.phase is Phase.COMMITTING:
                barrier.wait()

        try:
            done.append(run(flood(broker, "both", path, flood_id=name), lazy, progress=listen))
        except BaseException as error:  # noqa: BLE001 - judged below
            done.append(error)

    threads = [threading.Thread(target=one, args=(name, write(tmp_path / name, rows))) for name, rows in both.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(one, Certificate) and (one.added_rows, one.complete) == (1000, True) for one in done), done
    opened = sorted(gates(broker, "both"), key=lambda gate: gate.windows[0].base_offset)
    assert [gate.state for gate in opened] == [GateState.FILLED] * 2
    found = content(read(broker, "both"))
    for number in range(PARTITIONS):
        assert found[number] == [row for gate in opened for row in expected(both[gate.id], PARTITIONS)[number]]


def test_a_gate_that_was_lost_ends_the_job(broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession) -> None:
    create(broker, "lost")

    def listen(seen: Progress) -> None:
        if seen.phase is Phase.COMMITTING:
            asyncio.run(release())

    async def release() -> None:
        async with GateAdmin(cluster(broker)) as admin:
            await admin.release("lost", "l")

    with pytest.raises(RetryError) as caught:
        run(flood(broker, "lost", source[0], flood_id="l"), lazy, progress=listen)
    assert caught.value.reason is Reason.GATE_CONFLICT
    assert read_now(broker, "lost") == {number: [] for number in range(PARTITIONS)}


_DRIVER = """
import os, signal, sys
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.progress import Phase
from headgate.pipelines.session import LazySession
def listen(seen):
    if seen.phase is Phase.COMMITTING:
        os.kill(os.getpid(), signal.SIGKILL)
cluster, source, xdg = sys.argv[1:]
run(Backfill(cluster=cluster, topic="killed", source=source, key="user", value="payload", event_time="at", flood_id="k",
             partitions=3), LazySession(None, "local[2]", {}), progress=listen)
"""


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_before_the_commit_and_the_command_line_that_ends_its_work(
    broker: BrokerProcess, source: tuple[Path, list[Event]], tmp_path: Path
) -> None:
    """`test_columns_kills.py` kills a driver that has Spark. The second run is `headgate flood run`; it adds the missing rows."""
    path, rows = source
    environment = {**os.environ, "HEADGATE_CLUSTER": cluster(broker)}
    killed = subprocess.run(
        [sys.executable, "-c", _DRIVER, cluster(broker), str(path), "x"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert killed.returncode == -9, killed.stderr[-2000:]
    assert [(gate.id, gate.state, gate.rows) for gate in gates(broker, "killed")] == [("k", GateState.OPEN, 0)]
    assert read_now(broker, "killed") == {number: [] for number in range(PARTITIONS)}

    proof = tmp_path / "proof.json"
    options = ("--key", "user", "--value", "payload", "--event-time", "at", "--flood-id", "k", "--master", "local[2]")
    arguments = ["flood", "run", "--topic", "killed", "--source", str(path), *options, "--certificate", str(proof)]
    done = commands.run([*arguments, "--verify"], environment, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert f"{len(rows):,}" in done.stdout and "yes: the topic has what the source has" in done.stdout
    lines = done.stderr.splitlines()
    assert all(line.startswith("flood to killed: ") for line in lines), "nothing of Spark's own words"
    assert any("counting" in line for line in lines) and any("committing" in line for line in lines)
    certificate = Certificate.from_json(proof.read_bytes())
    assert certificate.verified and certificate.added_rows == len(rows)
    assert content(read(broker, "killed")) == expected(rows, PARTITIONS)

    checked = commands.run(
        ["flood", "verify", "--topic", "killed", "--certificate", str(proof), "--json"], environment, timeout_s=TIMEOUT_S
    )
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["verified"] is True

    again = commands.run(arguments, environment, timeout_s=TIMEOUT_S)
    assert again.returncode == 0, again.stderr
    assert "0: the flood was committed before" in again.stdout and "with what the one before it proved" in again.stdout
    kept = Certificate.from_json(proof.read_bytes())
    assert kept.verified and kept.partitions == certificate.partitions and kept.added_rows == 0

    other = json.loads(proof.read_text())
    other["partitions"][1]["source"]["checksum"] = "0" * 16
    proof.write_text(json.dumps(other))
    wrong = commands.run(["flood", "verify", "--topic", "killed", "--certificate", str(proof)], environment, timeout_s=TIMEOUT_S)
    assert wrong.returncode == 1 and "checksum of the topic" in wrong.stderr and "NO" in wrong.stdout
    wrong_again = commands.run([*arguments, "--verify"], environment, timeout_s=TIMEOUT_S)
    assert wrong_again.returncode == 1 and "checksum of the topic" in wrong_again.stderr, "it is read back again, and compared"
    assert "with the source's side of the one before it" in wrong_again.stdout


def test_too_little_memory_is_told_with_what_to_do(broker: BrokerProcess, spark: SparkSession) -> None:
    """The query raises the JVM's words by hand: a heap that is really full would spoil the session for other tests."""
    create_once(broker, "wrong")
    query = "SELECT id AS user, timestamp'2024-01-01' AS at, raise_error('java.lang.OutOfMemoryError: Java heap space') AS payload "
    with pytest.raises(RetryError, match=r"needs more memory: --conf spark\.driver\.memory.*Java heap space"):
        run(flood(broker, "wrong", f"{query} FROM range(4)", format="query", flood_id="large"), spark)


def test_what_a_function_of_the_user_s_raises_is_said(
    broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession
) -> None:
    spark.udf.register("picky", lambda number: {1: "one"}[number])
    create_once(broker, "wrong")
    with pytest.raises(RetryError, match=r"the job failed\. spark=`KeyError: \d+`"):
        run(flood(broker, "wrong", source[0], value="picky(number)", flood_id="picky"), spark)


def test_a_dead_job_s_gate_ends_by_itself(broker: BrokerProcess, source: tuple[Path, list[Event]], lazy: LazySession) -> None:
    path, rows = source
    create(broker, "dead")

    async def ask(ttl_ms: int, opened: bool) -> None:
        async with GateAdmin(cluster(broker)) as admin:
            if opened:
                await admin.renew("dead", "d", ttl_ms)
            else:
                await admin.open("dead", [7, 7, 7], gate_id="d", ttl_ms=ttl_ms, definition=backfill.definition())

    backfill = flood(broker, "dead", path, flood_id="d")
    asyncio.run(ask(3_600_000, opened=False))
    with pytest.raises(RetryError, match="other rows"):
        run(backfill, lazy)
    asyncio.run(ask(1000, opened=True))
    until(lambda: gates(broker, "dead")[0].state is not GateState.OPEN, "the gate of a dead job is released")
    assert run(backfill, lazy).gate_id == "d"
    assert content(read(broker, "dead")) == expected(rows, PARTITIONS)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "--topic", "x"), 2, ["--topic and --source describe a flood"]),
        (("run", "--topic", "x", "--source", "s", "--place", "there"), 2, ["--place", "now, front or end"]),
        (("run", "--topic", "x", "--source", "s", "--file-size", "big"), 2, ["--file-size"]),
        (("run", "--topic", "x", "--source", "s", "--conf", "spark.master"), 2, ["--conf", "NAME=VALUE"]),
        (("run", "--topic", "x", "--source", "s", "--flood-id", "a b"), 2, ["flood id"]),
        (("run", "--topic", "x", "--source", "s", "--certificate", "/no/such/place/x"), 2, ["cannot be written"]),
        (("verify", "--topic", "nope"), 1, ["topic does not exist"]),
        (("verify", "--topic", "x", "--certificate", "/no/such/file"), 2, ["cannot be read"]),
    ],
)
def test_mistakes_on_the_command_line(broker: BrokerProcess, arguments: tuple[str, ...], code: int, words: list[str]) -> None:
    done = commands.run(["flood", *arguments], os.environ | {"HEADGATE_CLUSTER": cluster(broker)}, timeout_s=TIMEOUT_S)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1 and all(word in done.stderr for word in words), done.stderr
