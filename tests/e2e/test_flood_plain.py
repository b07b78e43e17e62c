"""Floods of plain columns on the command line: real processes and a real broker, and no Java on the machine.

Compared: the records that a foreign client reads with the source, as plain Python computes it, also when a process of its tasks
dies; the exit code and the gate. A mismatch means that a flood without Spark loses, doubles or reorders history, or does not end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.client.gate_admin import GateState
from headgate.broker.log.partitioner import partition_for_key
from tests.e2e.test_flood import PARTITIONS, TIMEOUT_S, broker, cluster, content, create, gates, read
from tests.e2e.test_flood_ended import read_until
from tests.support.broker_process import ROOT, BrokerProcess
from tests.support.children import children
from tests.support.flood_sources import Event, events, expected, write
from tests.support.signals import python

__all__ = ["broker"]

ROWS = 180_000
"""With values of 200 bytes more than the driver's own thread does."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files that overlap in time, so that rows are exchanged between tasks."""
    arrow: Any = pa
    path = tmp_path_factory.mktemp("large")
    half = ROWS // 2
    for number in range(2):
        rows = range(number, ROWS, 2)
        table = pa.table(
            {
                "at": arrow.array([1_700_000_000_000_000 + row for row in rows], pa.timestamp("us", "UTC")),
                "user": [f"user-{row % 1000}" for row in rows],
                "payload": arrow.array([b"%0200d" % row for row in rows], pa.binary()),
            }
        )
        assert table.num_rows == half
        pq.write_table(table, path / f"{number}.parquet", row_group_size=50_000, compression="none")
    return path


def start(broker: BrokerProcess, topic: str, source: Path, *more: str) -> subprocess.Popen[str]:
    create(broker, topic)
    command = python("-m", "headgate.broker.cli.main", "flood", "run", "--topic", topic, "--source", str(source))
    environment = {**os.environ, "HEADGATE_CLUSTER": cluster(broker), "JAVA_HOME": "/no/java", "PATH": "/no/programs"}
    return subprocess.Popen(
        [*command, "--key", "user", "--event-time", "at", "--value", "payload", "--master", "local[2]", *more],
        cwd=ROOT, env=environment, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def tasks_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes of a flood's tasks."""
    return [pid for pid, command in children(process.pid).items() if "columns.processes" in command]


def wait_for_tasks(process: subprocess.Popen[str]) -> list[int]:
    """The processes of a flood's tasks, as soon as there are some."""
    while not (pids := tasks_of(process)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    return pids


def numbers(found: dict[int, list[Any]]) -> dict[int, list[int]]:
    return {number: [int(row.value) for row in rows] for number, rows in found.items()}


def wanted() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    partition = [partition_for_key(b"user-%d" % user, PARTITIONS) for user in range(1000)]
    for row in range(ROWS):
        found[partition[row % 1000]].append(row)
    return found


def test_a_small_flood_without_java_is_whole_and_in_order(broker: BrokerProcess, tmp_path: Path) -> None:
    rows: list[Event] = events(5000)
    source = write(tmp_path / "events", rows)
    with start(broker, "small", source, "--verify") as process:
        said, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    assert "tasks work on columns, with Arrow, without Spark" in errors and "starting Spark" not in errors
    assert "5,000" in said and "on columns, with Arrow" in said, said
    assert content(read(broker, "small")) == expected(rows, PARTITIONS)


def test_a_large_flood_outlives_a_process_of_its_tasks(broker: BrokerProcess, large: Path) -> None:
    with start(broker, "large", large) as process:
        read_until(process, "counting")
        pids = wait_for_tasks(process)
        os.kill(pids[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    assert numbers(read(broker, "large")) == wanted()


def test_a_value_that_only_java_writes_starts_spark(broker: BrokerProcess, tmp_path: Path) -> None:
    """A text that is not UTF-8 shows only in a task, after the gate was opened. Without Java the flood says what it needs."""
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    table = pa.table({"user": bad, "at": pa.array([0], pa.timestamp("us", "UTC")), "payload": ["a"]})
    pq.write_table(table, tmp_path / "a.parquet")
    with start(broker, "bytes", tmp_path, "--value", "to_json(struct(*))") as process:
        said, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1 and said == ""
    assert "starting Spark" in errors and "spark does not start" in errors, errors
    assert [gate.state for gate in gates(broker, "bytes")] in ([], [GateState.RELEASED])
