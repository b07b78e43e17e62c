"""SIGKILL of Spark's Python workers, of the broker and of the driver, in phases of a flood on columns; and a flood on executors
with JVMs of their own, whose rows go through Spark's shuffle. Everything is real.

Compared: the records that a foreign client reads with the source, also after a second run of the same flood, which adds 0 records.
A mismatch means that a process that dies loses or doubles history.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headgate.broker.client.gate_admin import GateState
from headgate.broker.runtime.errors import RetryError
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.columns import engine as columns_engine
from headgate.pipelines.columns import job as columns_job
from headgate.pipelines.progress import Phase, Progress
from headgate.pipelines.spark_rows import ARROW
from tests.e2e.test_flood import gates
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.flood_sources import Event, events, expected, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
TIMEOUT_S = 280
DAEMON = re.compile(r"\0-m\0(pyspark\.daemon|tests\.support\.spark_daemon)\0")
"""In the command line of a daemon and its workers. The JVM's names the daemon's module, too, among its settings."""
TASK_BYTES = 16 << 10
"""Many small tasks, so that rows are exchanged, and a kill hits some that work."""


broker = broker_of_module()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    rows = events(6000, seed=21)
    return write(tmp_path_factory.mktemp("source") / "events", rows, files=8), rows


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: TASK_BYTES)


def flood(broker: BrokerProcess, topic: str, source: Path) -> Backfill:
    return Backfill(
        cluster=f"{HOST}:{broker.grpc_port}", topic=topic, source=str(source), key="user", value="payload", event_time="at",
        partitions=PARTITIONS,
    )  # fmt: skip


def check(
    broker: BrokerProcess, topic: str, source: tuple[Path, list[Event]], certificate: Certificate, spark: SparkSession
) -> None:
    """The topic has the source once, and the same flood again adds nothing."""
    assert (certificate.engine, certificate.added_rows, certificate.problems()) == (ARROW, len(source[1]), [])
    read_again(broker, topic, source, spark)


def read_again(broker: BrokerProcess, topic: str, source: tuple[Path, list[Event]], spark: SparkSession) -> None:
    assert run(flood(broker, topic, source[0]), spark).added_rows == 0
    found = CLIENTS["confluent"].consume(broker.bootstrap, topic, range(PARTITIONS))
    read = {number: [(row.timestamp_ms, row.key, row.value) for row in rows] for number, rows in found.items()}
    assert read == expected(source[1], PARTITIONS)


def run_after(broker: BrokerProcess, topic: str, source: tuple[Path, list[Event]], spark: SparkSession) -> None:
    """The flood, which another process did not finish, adds the source once."""
    check(broker, topic, source, run(flood(broker, topic, source[0]), spark), spark)


def test_a_file_that_changes_between_count_and_write(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    """`test_columns.py` has all changes of files, in the test's own process."""
    rows = events(600, seed=22)
    place = write(tmp_path / "events", rows, files=1)
    other = write(tmp_path / "other", events(600, seed=24), files=1)
    path, kept = place / "part-0.parquet", tmp_path / "kept"
    said: list[str] = []

    def listen(seen: Progress) -> None:
        said.append(seen.message)
        if seen.phase is Phase.OPENING:
            path.rename(kept)
            (other / "part-0.parquet").rename(path)

    with pytest.raises(RetryError, match=rf"changed.*file=`{path}`"):
        run(flood(broker, "changes", place), spark, progress=listen)
    assert any("tasks work on columns" in text for text in said)
    assert [gate.state for gate in gates(broker, "changes")] == [GateState.RELEASED]
    kept.rename(path)
    run_after(broker, "changes", (place, rows), spark)


LOOK_S = 0.002
"""Pause between two looks at the stages: a look takes the processor of the tasks."""


class Stages:
    """The stages of Spark jobs that begin from now on. `active`: the number of the stage that works, counted from this moment."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker: Any = spark.sparkContext.statusTracker()
        self._seen: list[int] = []
        self._known = set(self._tracker.getActiveStageIds())

    def active(self) -> int | None:
        for number in sorted(self._tracker.getActiveStageIds()):
            info = self._tracker.getStageInfo(number)
            if number in self._known or info is None or not info.numActiveTasks:
                continue
            if number not in self._seen:
                self._seen.append(number)
            return self._seen.index(number)
        return None

    def failed_tasks(self, stage: int) -> int:
        info = self._tracker.getStageInfo(self._seen[stage])
        return 0 if info is None else int(info.numFailedTasks)


STAGES = {"count": (Phase.COUNTING, 0), "exchange": (Phase.SHUFFLING, 0), "write": (Phase.SHUFFLING, 1)}
"""By phase: where stages are counted from, and the number of the stage."""


def run_and_act(phase: str, given: Backfill, spark: SparkSession, act: Callable[[Stages], bool]) -> Certificate:
    """Run a flood, and call `act` while tasks of a phase work, until it returns True. On a busy machine each look may come too late
    for a phase that is short: then `act` is not called."""
    (begin, stage), over, threads = STAGES[phase], threading.Event(), list[threading.Thread]()

    def watch(stages: Stages) -> None:
        while not over.wait(LOOK_S):
            active = stages.active()
            if active is not None and (active > stage or (active == stage and act(stages))):
                return

    def listen(seen: Progress) -> None:
        if seen.phase is begin and not threads:
            threads.append(threading.Thread(target=watch, args=(Stages(spark),)))
            threads[0].start()

    try:
        return run(given, spark, progress=listen)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def topics(name: str) -> list[str]:
    """A topic for each attempt to act in a phase."""
    return [f"{name}-{attempt}" for attempt in range(5)]


def workers() -> list[int]:
    """The Python workers of Spark in this process: children of a daemon, which is a child of the JVM."""
    found = []
    parents: dict[int, tuple[int, str]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                parents[int(place.name)] = (parent, (place / "cmdline").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue
    for pid, (parent, command) in parents.items():
        line = [parent]
        while line[-1] in parents:
            line.append(parents[line[-1]][0])
        if DAEMON.search(command) and DAEMON.search(parents.get(parent, (0, ""))[1]) and os.getpid() in line:
            found.append(pid)
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="the workers are found in /proc")
@pytest.mark.parametrize(
    ("phase", "place"),
    [
        ("exchange", "here"),
        ("exchange", "elsewhere"),
        pytest.param("count", "here", marks=pytest.mark.slow),
        pytest.param("write", "here", marks=pytest.mark.slow),
    ],
)
def test_python_workers_that_are_killed(
    broker: BrokerProcess,
    source: tuple[Path, list[Event]],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    place: str,
) -> None:
    """`elsewhere`: rows are exchanged as between executors of several machines, through Spark's shuffle."""
    if place == "elsewhere":
        monkeypatch.setattr(columns_engine, "is_local", lambda _: False)
    killed: list[int] = []

    def kill(stages: Stages) -> bool:
        if not killed:
            for pid in workers():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return stages.failed_tasks(STAGES[phase][1]) > 0

    for topic in topics(f"workers-{phase}-{place}"):
        certificate = run_and_act(phase, flood(broker, topic, source[0]), spark, kill)
        if killed:
            check(broker, topic, source, certificate, spark)
            return
    raise AssertionError("no worker was killed while tasks worked")


@pytest.mark.parametrize(
    "phase", ["write", "commit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("count", "exchange"))]
)
def test_a_broker_that_is_killed(broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession, phase: str) -> None:
    starts = broker.starts

    def again() -> bool:
        broker.kill()
        broker.start()
        return True

    def listen(seen: Progress) -> None:
        if seen.phase is Phase.COMMITTING and broker.starts == starts:
            again()

    for topic in topics(f"broker-{phase}"):
        given = flood(broker, topic, source[0])
        if phase == "commit":
            certificate = run(given, spark, progress=listen)
        else:
            certificate = run_and_act(phase, given, spark, lambda _: again())
        if broker.starts > starts:
            break
    assert broker.starts == starts + 1
    check(broker, topic, source, certificate, spark)


_DRIVER = """
import os, signal, sys
from headgate.pipelines.session import session
from tests.e2e import test_columns_kills as kills

phase, name, port, source = sys.argv[1:]
class Broker:
    grpc_port = port
spark = session("local[2]")
kills.columns_job.task_bytes = lambda *_: kills.TASK_BYTES
print(spark.sparkContext._temp_dir, flush=True)
for topic in kills.topics(name):
    print(topic, flush=True)
    kills.run_and_act(phase, kills.flood(Broker, topic, source), spark, lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.parametrize(
    "phase", ["exchange", pytest.param("count", marks=pytest.mark.slow), pytest.param("write", marks=pytest.mark.slow)]
)
def test_a_driver_that_is_killed(broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession, phase: str) -> None:
    """`test_flood.py` kills one at the commit. The rows on their way between tasks go with the driver."""
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, phase, f"driver-{phase}", str(broker.grpc_port), str(source[0])],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as driver:  # fmt: skip
        # Ends when Spark's JVM has ended too, which has the same output.
        said, errors = driver.communicate(timeout=TIMEOUT_S)
    assert driver.returncode == -signal.SIGKILL, errors[-3000:]
    place, *_, topic = said.splitlines()
    assert not Path(place).exists()
    run_after(broker, topic, source, spark)


_CLUSTER = """
import json, os, signal, sys
from headgate.pipelines.backfill import run
from headgate.pipelines.session import end, session
from tests.e2e import test_columns_kills as kills

topic, port, source = sys.argv[1:]
class Broker:
    grpc_port = port
spark = session("local-cluster[1,2,1024]", conf={"spark.headgate.taskMemory": "16m"})
kills.columns_job.task_bytes = lambda *_: kills.TASK_BYTES
said, killed = [], []
def listen(seen):
    said.append(seen.message)
    if seen.phase is kills.Phase.SHUFFLING and seen.rows_done and not killed:
        killed.extend(kills.workers())
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
done = run(kills.flood(Broker, topic, source), spark, progress=listen)
found = {"problems": done.problems(), "killed": len(killed), "said": said, "engine": done.engine, "added": done.added_rows}
print(json.dumps(found))
end(spark)
"""


@pytest.mark.slow
@pytest.mark.timeout(2 * TIMEOUT_S + 20)
def test_executors_elsewhere_exchange_rows_through_sparks_shuffle(
    broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CLUSTER, "cluster", str(broker.grpc_port), str(source[0])],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (found["engine"], found["added"], found["problems"]) == (ARROW, len(source[1]), [])
    assert found["killed"], "a worker was killed while tasks worked"
    assert any("272 MiB" in text and "memoryOverhead" in text for text in found["said"])
    read_again(broker, "cluster", source, spark)
