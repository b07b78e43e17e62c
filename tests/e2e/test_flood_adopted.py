"""Adopted floods on the command line: real processes and a real broker, and no Java on the machine.

Compared: the records that a foreign client reads with those of a rewritten flood of the same source, before and after the broker is
killed, and after the source is deleted; what consumers and `headgate store check` say of a source that was written over; what is
left of a flood that was interrupted or killed. A mismatch means that a topic loses, doubles or changes records that it refers to.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog import load_catalog

from headgate.broker.client import Admin
from headgate.broker.log.partitioner import partition_for_key
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.part import Part
from headgate.pipelines.session import LazySession
from tests.e2e.test_flood import PARTITIONS, TIMEOUT_S, cluster, content, create, gates, read
from tests.e2e.test_flood_ended import read_until
from tests.support import commands
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module
from tests.support.s3_server import S3Server
from tests.support.signals import python
from tests.support.waiting import until

FILES, ROWS = 4, 3000
ALLOWED = "history_unreadable"
FAST = {"HEADGATE_GATE_FILE_GRACE_MS": "1000", "HEADGATE_OFFLINE_CHECK_INTERVAL_MS": "500"}
VIEW = {"history.fold": "never", "offline.after.ms": "0"}
"""A topic whose adopted files are folded as soon as it may."""


def write(path: Path, *, files: int = FILES, rows: int = ROWS, together: bool = False, width: int = 40) -> Path:
    """Files that follow one another in time, each row with a time of its own; `together`: each has the whole time. `width`: bytes
    of a value."""
    arrow: Any = pa
    path.mkdir(parents=True)
    for number in range(files):
        numbers = range(number, files * rows, files) if together else range(number * rows, (number + 1) * rows)
        table = pa.table(
            {
                "at": arrow.array([1_700_000_000_000_000 + row * 1000 for row in numbers], pa.timestamp("us", "UTC")),
                "id": arrow.array(numbers, pa.int64()),
                "user": [f"user-{row * 7 % 101}" for row in numbers],
                "payload": arrow.array([None if row % 11 == 0 else b"%0*d" % (width, row) for row in numbers], pa.binary()),
            }
        )
        pq.write_table(table, path / f"{number}.parquet", row_group_size=1000)
    return path


broker = broker_of_module(env=FAST, allowed=ALLOWED)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lake") / "events")


def command(topic: str, source: Path | str, *more: str) -> list[str]:
    usual = {"--key": "user", "--event-time": "at", "--value": "payload", "--master": "local[2]"}
    given = [text for name, value in usual.items() if name not in more for text in (name, value)]
    return ["flood", "run", "--topic", topic, "--source", str(source), *given, *more]


def environment(broker: BrokerProcess) -> dict[str, str]:
    return {**os.environ, "HEADGATE_CLUSTER": cluster(broker), "JAVA_HOME": "/no/java", "PATH": "/no/programs"}


def flood(broker: BrokerProcess, topic: str, source: Path | str, *more: str, **env: str) -> tuple[int, str, str]:
    """Exit code and output of a flood into a topic, which is created if it is not there."""
    if not more or more[-1] != "again":
        create(broker, topic)
    arguments = command(topic, source, *(one for one in more if one != "again"))
    done = commands.run(arguments, {**environment(broker), **env}, timeout_s=TIMEOUT_S)
    return done.returncode, done.stdout, done.stderr


def headgate(broker: BrokerProcess, *arguments: str) -> str:
    done = commands.run(arguments, environment(broker), timeout_s=TIMEOUT_S)
    return done.stdout + done.stderr


def pins(broker: BrokerProcess) -> list[Path]:
    return sorted(Path(broker.store).glob("topics/*/data/adopted/*"))


def test_a_linked_flood_is_that_of_a_rewrite_and_stays(broker: BrokerProcess, tmp_path: Path) -> None:
    source = write(tmp_path / "events")
    code, said, errors = flood(broker, "linked", source, "--files", "link", "--verify", "--json")
    assert code == 0, errors
    linked = json.loads(said)
    code, said, errors = flood(broker, "rewritten", source, "--verify", "--json")
    assert code == 0, errors
    rewritten = json.loads(said)
    assert linked["added_rows"] == linked["adopted_rows"] == rewritten["added_rows"] == FILES * ROWS
    for ours, theirs in zip(linked["partitions"], rewritten["partitions"], strict=True):
        assert ours == theirs
    wanted = content(read(broker, "rewritten"))
    assert content(read(broker, "linked")) == wanted
    code, said, errors = flood(broker, "linked", source, "--files", "link", "--json", "again")
    assert code == 0 and json.loads(said)["added_rows"] == 0 and json.loads(said)["already_filled"], errors
    for pin in pins(broker):
        assert pin.suffix == ".recipe" or pin.stat().st_nlink == 2
    shutil.rmtree(source)
    broker.kill()
    broker.start()
    assert content(read(broker, "linked")) == wanted
    assert "whole: " in headgate(broker, "store", "check", "--deep", "--store", str(broker.store))


def test_rows_as_json_are_those_of_a_rewrite(broker: BrokerProcess, tmp_path: Path) -> None:
    """The default value, with days in the paths, nested columns, and whole numbers as keys."""
    arrow: Any = pa
    kind = arrow.struct([("city", pa.string()), ("tags", pa.list_(pa.string()))])
    places = [None if row % 5 == 0 else {"city": 'a"b', "tags": ["x", None][: row % 3]} for row in range(ROWS)]
    for number in range(2):
        table = pq.read_table(write(tmp_path / f"{number}", files=1))
        at = arrow.compute.add(table.column("at").cast(pa.int64()), number * 10**9).cast(table.column("at").type)
        table = table.set_column(0, "at", at).append_column("place", arrow.array(places, kind))
        day = tmp_path / "lake" / f"day=2026-01-0{number + 1}"
        day.mkdir(parents=True)
        pq.write_table(table.append_column("price", arrow.array(range(ROWS), pa.float64())), day / "a.parquet", row_group_size=700)
    asked = ("--value", "to_json(struct(*))", "--key", "id", "--verify", "--json")
    code, said, errors = flood(broker, "rows", tmp_path / "lake", *asked, "--files", "link")
    assert code == 0, errors
    code, again, errors = flood(broker, "rows-written", tmp_path / "lake", *asked)
    assert code == 0, errors
    assert json.loads(said)["adopted_rows"] == 2 * ROWS and json.loads(said)["partitions"] == json.loads(again)["partitions"]
    found = content(read(broker, "rows"))
    assert found == content(read(broker, "rows-written"))
    assert """"place":{"city":"a\\\\"b","tags":["x",null]},"price":2.0,"day":"2026-01-01"}""" in str(found)


def test_the_order_of_the_source(broker: BrokerProcess, tmp_path: Path) -> None:
    """Files that all have the whole time. Times go back then, and look-ups by time still find the first record from a time on."""
    source = write(tmp_path / "events", together=True)
    code, said, errors = flood(broker, "by-source", source, "--files", "link", "--order", "source", "--verify", "--json")
    assert code == 0 and json.loads(said)["adopted_rows"] == FILES * ROWS, errors
    found = content(read(broker, "by-source"))
    files = [pq.read_table(path) for path in sorted(source.iterdir())]
    wanted: dict[int, list[Any]] = {partition: [] for partition in range(PARTITIONS)}
    for row in (one for table in files for one in table.to_pylist()):
        record = round(row["at"].timestamp() * 1000), row["user"].encode(), row["payload"]
        wanted[partition_for_key(record[1], PARTITIONS)].append(record)
    assert found == wanted
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    for partition, rows in wanted.items():
        asked = sorted(rows)[len(rows) // 2][0]
        (at,) = consumer.offsets_for_times([TopicPartition("by-source", partition, asked)], timeout=30)
        assert at.offset == next(number for number, row in enumerate(rows) if row[0] >= asked)
    consumer.close()
    code, said, errors = flood(broker, "by-source", source, "--files", "link", "--order", "source", "--json", "again")
    assert code == 0 and json.loads(said)["added_rows"] == 0, errors
    code, said, errors = flood(broker, "by-source", source, "--files", "rewrite", "--order", "source", "again")
    assert code != 0 and "files that are written anew are in the order of event time" in errors


def test_parts_of_files_by_time_and_readers_by_reference(broker: BrokerProcess, tmp_path: Path) -> None:
    """Three floods of spans that divide files and row groups, as those of days in Dagster. SQL and the Python client read what
    consumers read."""
    source = write(tmp_path / "events")
    create(broker, "spans")
    begin = datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    cuts = [begin + datetime.timedelta(seconds=seconds) for seconds in (0, 5, 9.0, 20)]
    for number, span in enumerate(pairwise(cuts)):
        part = Backfill(
            cluster=cluster(broker), topic="spans", source=str(source), key="user", value="payload", event_time="at",
            part=Part(span=span), flood_id=f"part-{number}", files="link", verify=True,
        )  # fmt: skip
        done = run(part, LazySession(lambda: pytest.fail("a session of Spark starts"), "local[2]", {}))
        assert done.adopted_rows == done.rows == (5000, 4000, 3000)[number]
    found = content(read(broker, "spans"))
    assert sorted(one for some in found.values() for one in some) == sorted(
        (round(row["at"].timestamp() * 1000), row["user"].encode(), row["payload"])
        for path in source.iterdir() for row in pq.read_table(path).to_pylist()
    )  # fmt: skip
    assert all([row[0] for row in some] == sorted(row[0] for row in some) for some in found.values())
    query = 'select count(*) n, count(value) v, sum(octet_length(value)) s, max("offset") m from spans'
    said = json.loads(headgate(broker, "sql", "--format", "json", query))
    values = [row[2] for some in found.values() for row in some if row[2] is not None]
    last = max(len(some) for some in found.values()) - 1
    assert said == {"n": FILES * ROWS, "v": len(values), "s": sum(map(len, values)), "m": last}


def test_a_condition_that_divides_row_groups(broker: BrokerProcess, tmp_path: Path) -> None:
    """Rows that pass stand in the same row groups as rows that do not. A rewrite has the same records."""
    source = write(tmp_path / "events")
    asked = ("--where", "user >= 'user-4' and id < 4000 and payload is not null", "--verify", "--json")
    code, said, errors = flood(broker, "some", source, *asked, "--files", "link")
    assert code == 0, errors
    code, again, errors = flood(broker, "some-written", source, *asked)
    assert code == 0, errors
    linked, rewritten = json.loads(said), json.loads(again)
    assert 0 < linked["adopted_rows"] == rewritten["rows"] < 4000 and linked["partitions"] == rewritten["partitions"]
    assert content(read(broker, "some")) == content(read(broker, "some-written"))


def fold(broker: BrokerProcess, topic: str) -> None:
    """Let the adopted rows of a topic become folded files."""

    async def ask() -> None:
        async with Admin(cluster(broker)) as admin:
            await admin.alter_topic_config(topic, {"history.fold": "offline"})

    asyncio.run(ask())


def opened(pid: int) -> set[str]:
    """The names of the files that a process has open; none if it has ended."""
    found = set()
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(one.readlink().name)
    return found


def test_folds_that_are_killed_lose_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    """The process of the fold is killed while it has the last file open, or later; the broker when the first file is written."""
    source = write(tmp_path / "events", files=3, rows=6_000, width=4000)
    create(broker, "folded", **VIEW)
    code, _, errors = flood(broker, "folded", source, "--files", "link", "again")
    assert code == 0, errors
    shutil.rmtree(source)
    wanted = content(read(broker, "folded"))
    place = max(Path(broker.store).glob("topics/*"), key=lambda one: one.stat().st_mtime_ns)
    kept, made = lambda: [*place.glob("data/adopted/*")], lambda: [*place.glob("data/partition=*/offset=*")]
    assert len(kept()) == 4
    fold(broker, "folded")

    def is_late() -> bool:
        last = {one.name for one in kept() if one.name.endswith("2.parquet")}
        return any(opened(pid) & last for pid in broker.children("file_fold_process"))

    until(lambda: made() or is_late(), broker.log_tail)
    broker.kill_children("file_fold_process")
    until(made, broker.log_tail)
    broker.kill()
    broker.start()
    assert content(read(broker, "folded")) == wanted
    until(lambda: not kept(), broker.log_tail)
    assert content(read(broker, "folded")) == wanted
    said = headgate(broker, "store", "check", "--deep", "--store", str(broker.store))
    assert "whole: " in said, said
    table = load_catalog("headgate", type="rest", uri=f"http://{HOST}:{broker.http_port}/iceberg").load_table(
        ("headgate", "folded")
    )
    rows = table.scan(selected_fields=("partition", "offset", "key", "value")).to_arrow().sort_by("offset")
    for number, part in wanted.items():
        mine = rows.filter(pc.equal(rows.column("partition"), number))
        assert mine.column("offset").to_pylist() == list(range(len(part)))
        assert [*zip(mine.column("key").to_pylist(), mine.column("value").to_pylist(), strict=True)] == [one[1:] for one in part]
    assert json.loads(table.properties["headgate.offsets"]) == {str(number): [[0, len(part)]] for number, part in wanted.items()}
    until(lambda: len(made()) <= 2 * PARTITIONS, broker.log_tail)


def test_a_source_that_is_written_over_is_not_served(broker: BrokerProcess, tmp_path: Path) -> None:
    source = write(tmp_path / "events")
    code, _, errors = flood(broker, "over", source, "--files", "link", "--json")
    assert code == 0, errors
    file = source / f"{FILES - 1}.parquet"
    before = file.stat()
    with file.open("r+b") as handle:
        handle.seek(500)
        handle.write(b"\0" * 100)
    assert file.stat().st_mtime_ns != before.st_mtime_ns and file.stat().st_size == before.st_size
    said = headgate(broker, "store", "check", "--store", str(broker.store))
    assert "was written over after it was counted" in said and f"-{FILES - 1:06d}.parquet" in said, said
    judge = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "over", "enable.auto.commit": False})
    try:
        judge.assign([TopicPartition("over", number, 0) for number in range(PARTITIONS)])
        # All files are small, and one unit: none of its offsets is served.
        while ALLOWED not in broker.output():
            broker.check_alive()
            message = judge.poll(0.2)
            assert message is None or message.error(), message.value()
    finally:
        judge.close()


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "expression": (("--value", "upper(payload)"), "Use --files auto or rewrite"),
    "number": (("--value", "id"), "value is more than a column of bytes or text"),
    "overlap": ((), "overlap in time"),
    "csv": (("--format", "csv", "--option", "header=true"), "Spark reads the source's format"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_source_that_cannot_be_adopted_ends_with_its_reason(broker: BrokerProcess, tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "events", files=20 if name == "overlap" else 1, together=name == "overlap")
    if name == "csv":
        shutil.rmtree(source)
        source.mkdir()
        (source / "a.csv").write_text("at,user,payload\n2026-01-01T00:00:00Z,u,v\n")
    more, why = BAD[name]
    topic = f"bad-{name}"
    before = pins(broker)
    code, said, errors = flood(broker, topic, source, "--files", "link", *more)
    assert code != 0 and said == "" and "cannot be adopted: " in errors and why in errors, errors
    assert "Traceback" not in errors and pins(broker) == before and gates(broker, topic) == []
    if name == "overlap":
        code, said, errors = flood(broker, topic, source, "--files", "auto", "again")
        assert code == 0 and "the source's files are not adopted: " in errors and why in errors, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_flood_that_ends_early_leaves_nothing(broker: BrokerProcess, tmp_path: Path, number: signal.Signals) -> None:
    source = write(tmp_path / "events", files=60)
    topic = f"ended-{number.name}"
    create(broker, topic)
    before = pins(broker)
    with subprocess.Popen(
        python("-m", "headgate.broker.cli.main", *command(topic, source, "--files", "link", "--verify")),
        cwd=ROOT, env=environment(broker), text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        read_until(process, "opening")
        until(lambda: len(pins(broker)) > len(before) or process.poll() is not None, "files are adopted", pause_s=0.001)
        process.send_signal(number)
        process.communicate(timeout=TIMEOUT_S)
    if number is signal.SIGKILL:
        # Another run takes the gate over, and adds each record once.
        code, _, errors = flood(broker, topic, source, "--files", "link", "again")
        assert code == 0, errors
        assert sum(map(len, read(broker, topic).values())) == 60 * ROWS
        return
    rows = sum(map(len, read(broker, topic).values()))
    assert rows in (0, 60 * ROWS)
    if not rows:
        until(lambda: len(pins(broker)) <= len(before), "nothing is left")


def test_files_of_a_bucket_are_copied_within_it(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.bucket()
    store = f"s3://{bucket}/store?endpoint={s3_server.endpoint}"
    source = write(tmp_path / "events")
    # The names of the variables are those of boto3.
    keys = {name.lower(): s3_server.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    client = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1", **keys)
    for file in sorted(source.iterdir()):
        client.put_object(Bucket=bucket, Key=f"lake/{file.name}", Body=file.read_bytes())
    env = {**s3_server.environment, "AWS_ENDPOINT_URL": s3_server.endpoint, **FAST}
    with BrokerProcess(store, tmp_path / "broker.log", env=env) as one:
        one.start()
        create(one, "copied", **VIEW)
        code, said, errors = flood(one, "copied", f"s3://{bucket}/lake/", "--files", "auto", "--verify", "--json", "again", **env)
        assert code == 0, errors
        assert json.loads(said)["adopted_rows"] == FILES * ROWS
        wanted = content(read(one, "copied"))
        for file in source.iterdir():
            client.delete_object(Bucket=bucket, Key=f"lake/{file.name}")
        one.kill()
        one.start()
        assert content(read(one, "copied")) == wanted
        assert sum(map(len, wanted.values())) == FILES * ROWS and set(wanted) == set(range(PARTITIONS))
        fold(one, "copied")

        def kept() -> bool:
            keys = client.list_objects_v2(Bucket=bucket, Prefix="store/topics/").get("Contents", [])
            return any("/adopted/" in key["Key"] for key in keys)

        until(lambda: not kept(), one.log_tail)
        assert content(read(one, "copied")) == wanted
    one.check_output()
