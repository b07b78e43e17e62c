"""SQL over a topic whose records are everywhere: in files of a gate, in folded files, in chunks, in memory, in transactions.

Runs: a real broker and `headgate.sql` (DuckDB). Compared: the rows of queries with what librdkafka reads with `read_committed`, by
the order-independent checksum, and the numbers of files and bytes that a query reads. A mismatch means that SQL loses, doubles or
changes records, or reads files that it does not need.
"""

from __future__ import annotations

import asyncio
import csv
import datetime
import io
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate
from headgate.broker.cli.app import run
from headgate.broker.client import Admin, GateAdmin, Layout
from headgate.broker.client.gate_admin import RecordRange
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.sql.query import SqlResult
from tests.compat.topics import create_topic
from tests.e2e.test_cli import environment, on_terminal
from tests.e2e.test_cli import headgate as command
from tests.support import mixed_topic
from tests.support.broker_process import ROOT, BrokerProcess, broker_of_module
from tests.support.mixed_topic import FOLDED, LIVE, PARTITIONS, ROWS, STEP_MS, T0, MixedTopic, consumed, sums
from tests.support.signals import python

FIRST_LIVE = 1000
"""The topic's `history.room`: offset of its first live record."""


broker = broker_of_module(env=mixed_topic.ENV)


@pytest.fixture(scope="module")
def topic(broker: BrokerProcess) -> Iterator[MixedTopic]:
    made = mixed_topic.make(broker, "clicks")
    yield made
    made.close()


def rows(topic: MixedTopic, query: str, **options: object) -> list[dict[str, object]]:
    return headgate.sql(query, cluster=topic.grpc, **options).read_all().to_pylist()  # type: ignore[arg-type]


def test_a_query_sees_what_consumers_of_committed_records_see(broker: BrokerProcess, topic: MixedTopic) -> None:
    expected = consumed(broker, topic.name)
    result = headgate.sql("SELECT * FROM clicks", cluster=topic.grpc)
    found = result.read_all()
    assert sums(found.drop_columns(["timestamp_type"])) == sums(expected)
    assert found.num_rows == expected.num_rows > (ROWS + 9) * PARTITIONS + FOLDED + LIVE
    # Every place was read: files of the gate, folded files, and the brokers.
    parts = mixed_topic.layout(topic.grpc, topic.name, RecordRange()).partitions
    files = sum(len(part.extents) + len(part.folded) for part in parts)
    assert result.reads.files == result.reads.files_known == files
    assert all(len(part.extents) == 4 and part.folded for part in parts)
    assert result.reads.file_rows >= ROWS * PARTITIONS + FOLDED and result.reads.broker_rows > 9
    assert result.reads.file_rows + result.reads.broker_rows == expected.num_rows


def test_a_query_reads_only_the_files_and_columns_that_it_needs(topic: MixedTopic) -> None:
    whole = headgate.sql("SELECT * FROM clicks", cluster=topic.grpc)
    whole.read_all()
    for query, files, count in (
        # Numbers of records need no file.
        ("SELECT count(*) FROM clicks WHERE partition = 1", 0, None),
        (f'SELECT value FROM clicks WHERE partition = 1 AND "offset" >= {FIRST_LIVE} AND "offset" < {FIRST_LIVE + 10}', 1, 10),
        (f'SELECT value FROM clicks WHERE partition = 1 AND "offset" < {FIRST_LIVE - ROWS // 2}', 2, ROWS // 2),
        # Live records begin at T0, and the history is years older.
        (f"SELECT value FROM clicks WHERE timestamp < make_timestamptz({(T0 - 10**9) * 1000})", 4 * PARTITIONS, ROWS * PARTITIONS),
        ("SELECT value FROM clicks WHERE timestamp < '1999-01-01'", 0, 0),
        ("SELECT value FROM clicks WHERE partition > 7", 0, 0),
    ):
        result = headgate.sql(query, cluster=topic.grpc)
        found = result.read_all().num_rows
        assert (result.reads.files, found if count is not None else None) == (files, count), query
        assert result.reads.file_bytes < whole.reads.file_bytes
        if count is not None and "timestamp" not in query:
            assert result.reads.broker_rows == 0, query
    numbers = headgate.sql('SELECT sum("offset") FROM clicks', cluster=topic.grpc)
    numbers.read_all()
    assert numbers.reads.file_bytes < whole.reads.file_bytes, "values were read, too"


def test_as_of_an_offset_and_a_time(broker: BrokerProcess, topic: MixedTopic) -> None:
    everything = consumed(broker, topic.name)

    def below(ends: dict[int, int]) -> list[tuple[int, int]]:
        mask = [row["offset"] < ends[row["partition"]] for row in everything.select(["partition", "offset"]).to_pylist()]
        return sums(everything.filter(pa.array(mask)))

    def seen(as_of: object) -> list[tuple[int, int]]:
        found = headgate.sql("SELECT * EXCLUDE timestamp_type FROM clicks", cluster=topic.grpc, as_of=as_of)  # type: ignore[arg-type]
        return sums(found.read_all())

    middle, late = FIRST_LIVE + 50, FIRST_LIVE + (FOLDED + LIVE // 2) // PARTITIONS
    assert seen(middle) == seen(str(middle)) == below(dict.fromkeys(range(PARTITIONS), middle))
    assert seen(0) == [(0, sums(everything.slice(0, 0))[0][1])] * PARTITIONS
    rest = {0: 10**12, 1: middle, 2: 10**12}
    assert seen({1: middle}) == seen(f"1:{middle}") == below(rest)
    # A time stands for the first record with that time or a later one: record number 300 is the 100th of partition 0.
    moment = datetime.datetime.fromtimestamp((T0 + 300 * STEP_MS) / 1000, datetime.UTC)
    assert seen(moment) == seen(moment.isoformat()) == below(dict.fromkeys(range(PARTITIONS), FIRST_LIVE + 100))
    assert seen(late)[0][0] > seen(middle)[0][0]
    with pytest.raises(InvalidError, match="behind the last record"):
        seen({1: 10**9})
    with pytest.raises(InvalidError, match="partition that the topic lacks"):
        seen({9: 5})


def test_values_are_queried_as_json_and_topics_joined_with_themselves(topic: MixedTopic) -> None:
    query = """
        SELECT decode(value) ->> '$.n' AS n, "offset", headers[1].key AS first FROM clicks
        WHERE partition = 0 AND "offset" >= 1000 AND value IS NOT NULL ORDER BY "offset" LIMIT 2
    """
    assert rows(topic, query) == [{"n": "3", "offset": 1001, "first": "a"}, {"n": "6", "offset": 1002, "first": "a"}]
    joined = f'SELECT count(*) AS n FROM clicks a JOIN clicks b USING (partition, "offset") WHERE b."offset" >= {FIRST_LIVE}'
    alone = f'SELECT count(*) AS n FROM clicks WHERE "offset" >= {FIRST_LIVE}'
    assert rows(topic, joined) == rows(topic, alone)
    assert {"name": "clicks"} in rows(topic, "SHOW TABLES")


def test_an_answer_that_is_not_read_to_its_end_is_closed(topic: MixedTopic) -> None:
    with headgate.sql("SELECT * FROM clicks", cluster=topic.grpc) as result:
        assert next(iter(result)).num_rows > 0
    assert rows(topic, "SELECT count(*) AS n FROM (SELECT * FROM clicks LIMIT 5)") == [{"n": 5}]
    stream = pa.RecordBatchReader.from_stream(headgate.sql("SELECT 1 AS one", cluster=topic.grpc))
    assert stream.read_all().to_pylist() == [{"one": 1}]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", "Parser Error: syntax error at or near"),
        ("SELECT * FROM nothing", "Table with name nothing does not exist"),
        ("SELECT nothing FROM clicks", "Binder Error"),
        ("SELECT CAST(decode(value) AS INT) FROM clicks WHERE value IS NOT NULL", "Conversion Error"),
        (" ; ", "the query is empty"),
    ],
)
def test_failing_sql_has_the_message_of_duckdb_on_one_line(topic: MixedTopic, query: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        rows(topic, query)
    assert "\n" not in caught.value.message


def begun(topic: MixedTopic, query: str) -> SqlResult:
    """A query whose cut is taken, and that has read nothing yet."""
    return SqlResult(query, topic.grpc, None, None)


def test_a_topic_that_is_deleted_or_trimmed_while_a_query_runs(broker: BrokerProcess, topic: MixedTopic) -> None:
    for name in ("doomed", "renewed", "trimmed"):
        create_topic(broker.bootstrap, name, PARTITIONS)
        mixed_topic.produce(broker, name, 0, 30)
    queries = {name: begun(topic, f"SELECT * FROM {name}") for name in ("doomed", "renewed", "trimmed")}

    async def change() -> None:
        async with Admin(topic.grpc) as admin:
            await admin.delete_topic("doomed")
            await admin.delete_topic("renewed")
            await admin.create_topic("renewed", PARTITIONS)
            await admin.delete_records("trimmed", {0: 5})

    asyncio.run(change())
    for name, message in (
        ("doomed", "topic was deleted while the query read it"),
        ("renewed", "topic was deleted while the query read it"),
        ("trimmed", "records were removed while the query ran"),
    ):
        with queries[name] as result, pytest.raises(InvalidError, match=message):
            result.read_all()
    assert rows(topic, "SELECT count(*) AS n FROM trimmed") == [{"n": 25}]


def test_files_that_are_replaced_meanwhile_are_read_through_the_broker(broker: BrokerProcess, topic: MixedTopic) -> None:
    with begun(topic, "SELECT * EXCLUDE timestamp_type FROM clicks") as result:
        ask = result.reader.gates.layout

        async def stale(name: str, wanted: RecordRange | None = None) -> Layout:
            found = await ask(name, wanted)
            parts = [
                replace(part, folded=tuple(replace(one, file=replace(one.file, path=one.file.path + "x")) for one in part.folded))
                for part in found.partitions
            ]
            return replace(found, partitions=tuple(parts))

        result.reader.gates.layout = stale  # type: ignore[method-assign]
        assert sums(result.read_all()) == sums(consumed(broker, topic.name))
        assert result.reads.broker_rows > FOLDED


def test_a_flood_under_way_is_left_out_and_said(broker: BrokerProcess, topic: MixedTopic) -> None:
    create_topic(broker.bootstrap, "flooded", PARTITIONS)
    mixed_topic.produce(broker, "flooded", 0, 30)

    async def open_gate() -> None:
        async with GateAdmin(topic.grpc) as gates:
            await gates.open("flooded", [7] * PARTITIONS, gate_id="coming")

    asyncio.run(open_gate())
    mixed_topic.produce(broker, "flooded", 30, 30)
    result = headgate.sql("SELECT count(*) AS n FROM flooded", cluster=topic.grpc)
    assert result.read_all().to_pylist() == [{"n": 60}]
    assert result.reads.open_gates == {"flooded"}
    done = command(broker, "sql", "SELECT count(*) AS n FROM flooded")
    assert done.stdout == "n\n60\n" and "a flood into this topic is under way" in done.stderr


def test_a_result_and_a_sort_larger_than_the_memory_of_duckdb(topic: MixedTopic) -> None:
    many = 'FROM clicks, range(2000) ORDER BY hash("offset" + range)'
    counted = f"SELECT count(*) AS n FROM (SELECT \"offset\", repeat('x', 100) AS filler {many} LIMIT 10000000)"
    (row,) = rows(topic, counted, memory_bytes=100 << 20)
    (one,) = rows(topic, "SELECT count(*) AS n FROM clicks")
    assert row["n"] == one["n"] * 2000


def test_the_command_writes_every_format(
    topic: MixedTopic, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(*arguments: str, code: int = 0) -> tuple[str, str]:
        assert run(["sql", *arguments, "--cluster", topic.grpc]) == code
        return capfd.readouterr()

    columns = 'partition, "offset", key, value, headers, timestamp'
    query = f'SELECT {columns} FROM clicks WHERE "offset" IN (1001, 1002) AND partition = 0'
    ordered = f'{query} ORDER BY "offset"'
    value = {number: json.dumps({"n": number, "text": "x" * (number % 200)}) for number in (3, 6)}
    table = command(ordered)[0].splitlines()
    assert table[0].split("\t") == ["partition", "offset", "key", "value", "headers", "timestamp"]
    assert table[1].split("\t")[:4] == ["0", "1001", "key-3", value[3]]
    assert table[1].endswith("\t2023-11-14 22:16:20.000000Z")
    lines = [json.loads(line) for line in command(ordered, "--format", "json")[0].splitlines()]
    assert [row["value"] for row in lines] == [value[3], value[6]]
    headers = [{"key": "a", "value": "1"}, {"key": "b", "value": ""}, {"key": "a", "value": None}]
    assert lines[0]["headers"] == headers
    monkeypatch.setattr("sys.stdin", io.StringIO(ordered))
    found = list(csv.DictReader(io.StringIO(command("-", "--format", "csv")[0])))
    assert [row["value"] for row in found] == [value[3], value[6]] and json.loads(found[0]["headers"]) == headers
    target = tmp_path / "found.parquet"
    command(ordered, "--format", "parquet", "-o", str(target))
    assert pq.read_table(target).column("value").to_pylist() == [value[3].encode(), value[6].encode()]
    stats = command(query, "--stats", "--as-of", "1002")[1]
    assert re.fullmatch(r"headgate sql: read 1 records from 1 of 15 files \(\d\S* \w+\) and 0 from brokers \(0 B\)\n", stats), stats
    kinds = command("SELECT 1.5 AS d, sum(1) AS s, '\\xFF'::BLOB AS b, NULL AS n, [1] AS l", "-f", "json")[0]
    assert json.loads(kinds) == {"d": 1.5, "s": 1, "b_base64": "/w==", "n": None, "l": [1]}
    out, wrong = command("SELECT nothing FROM clicks", "-o", str(tmp_path / "none"), "-f", "csv", code=2)
    assert wrong.startswith("headgate sql: Binder Error: ") and wrong.count("\n") == 1 and out == ""
    assert [one.name for one in tmp_path.iterdir()] == ["found.parquet"]
    for arguments, message in (
        (("SELECT 1", "-f", "xml"), "expected table, csv, json, parquet"),
        (("SELECT 1", "--memory", "much"), "option=`--memory`"),
        (("SELECT * FROM clicks", "--as-of", "soon"), "as-of is an offset"),
    ):
        assert message in command(*arguments, code=2)[1]


def test_the_command_on_a_terminal(broker: BrokerProcess, topic: MixedTopic) -> None:
    code, seen = on_terminal(broker, "sql", "SELECT range AS number FROM range(1005)")
    assert code == 0 and "number" in seen and "only the first 1,000 rows are shown" in seen
    code, seen = on_terminal(broker, "sql", "SELECT 1", "--format", "parquet")
    assert code == 2 and "give --output FILE" in seen


def test_a_query_that_is_interrupted_ends_like_other_commands(broker: BrokerProcess) -> None:
    ours, its = os.openpty()
    endless = "SELECT count(*) FROM range(1000000000000)"
    with subprocess.Popen(
        python("-m", "headgate.broker.cli.main", "sql", endless),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=its, cwd=ROOT, env=environment(broker),
    ) as query:  # fmt: skip
        try:
            os.close(its)
            while b"of about" not in os.read(ours, 1000):  # the progress of a query that runs
                pass
            query.send_signal(signal.SIGINT)
            assert query.wait(60) == 130
        finally:
            query.kill()
            os.close(ours)
