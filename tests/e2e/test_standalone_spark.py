"""A standalone Spark cluster, a real master and two workers: a flood whose rows go through Spark's shuffle, executors that cannot
start, and SIGKILL of an executor, a worker, all workers and the driver in each phase.

Compared: what a foreign client reads with the source, also after a local run of the same flood, which adds 0 records. A mismatch
means that a cluster loses or doubles history, or that a flood waits for ever without a word. The cluster and its drivers are a
dozen JVMs, of several seconds each, so all of it is slow; `test_columns_kills.py` has executors with JVMs of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headgate.broker.client.gate_admin import GateState
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns import job as columns_job
from headgate.pipelines.connection import Connection
from headgate.pipelines.spark_rows import ARROW
from tests.e2e import test_columns_kills as kills
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module
from tests.support.flood_sources import Event, events, write
from tests.support.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 600
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S + 60),
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="the executors are found in /proc"),
]
PHASES = [*kills.STAGES, "commit"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as one:
        yield one


broker = broker_of_module()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    rows = events(6000, seed=23)
    return write(tmp_path_factory.mktemp("source") / "events", rows, files=8), rows


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_job, "task_bytes", lambda *_: kills.TASK_BYTES)


_DRIVER = """
import json, os, signal, sys, time
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.backfill import run
from headgate.pipelines.session import end, session
from tests.e2e import test_columns_kills as kills
from tests.support.spark_cluster import executors, kill

master, port, source, what, *phases = sys.argv[1:]
class Broker:
    grpc_port = port
conf = {"spark.headgate.taskMemory": "16m", "spark.executor.memory": "512m", "spark.headgate.executorWait": "20s"}
if what == "nothing":  # tasks run twice instead
    conf |= {"spark.speculation": "true", "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.3",
             "spark.speculation.minTaskRuntime": "1ms"}
spark = session(master, conf=conf)
kills.columns_job.task_bytes = lambda *_: kills.TASK_BYTES
app = spark.sparkContext.applicationId

def strike(_=None):
    found = executors(app)
    struck.append(what)
    if what == "driver":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "all":
        # Their tasks must not end before the test has killed the workers, which would start others.
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        print("strike", flush=True)
        sys.stdin.readline()
        for pid in found:
            kill(pid)
    elif what == "executor":
        kill(min(found))
    elif what == "worker":
        kill(found[min(found)])
    return True

for phase in phases:
    while len(executors(app)) < 2:
        time.sleep(0.2)
    struck, threads, said = [], [], []
    def listen(seen):
        said.append(seen.message)
        if phase == "commit" and seen.phase is kills.Phase.COMMITTING and not struck:
            strike()
        if phase in kills.STAGES and seen.phase is kills.STAGES[phase][0] and not threads:
            threads.append(kills.in_stage(spark, kills.STAGES[phase][1], strike))
    topic = f"{what}-{phase}"
    found = {"topic": topic, "error": ""}
    try:
        done = run(kills.flood(Broker, topic, source), spark, progress=listen)
        found |= {"problems": done.problems(), "engine": done.engine, "added": done.added_rows}
    except HeadgateError as error:
        found["error"] = error.message
    for thread in threads:
        thread.join()
    print(json.dumps({**found, "struck": struck, "said": said}), flush=True)
end(spark)
"""


@contextmanager
def driver(cluster: SparkCluster, broker: BrokerProcess, source: Path, what: str, *phases: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a flood for each phase, and kills in it. Spark's JVM ends with it."""
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, cluster.master, str(broker.grpc_port), str(source), what, *phases],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def results(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(("what", "phases"), [("nothing", ["whole"]), ("executor", PHASES), ("worker", PHASES)])
def test_two_workers_make_the_topic_that_one_machine_makes_whatever_is_killed(
    cluster: SparkCluster,
    broker: BrokerProcess,
    source: tuple[Path, list[Event]],
    spark: SparkSession,
    what: str,
    phases: list[str],
) -> None:
    with driver(cluster, broker, source[0], what, *phases) as process:
        said, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors[-3000:]
    found = results(said)
    assert len(found) == len(phases)
    for one in found:
        assert one["error"] == "" and one["problems"] == [], one
        assert (one["engine"], one["added"]) == (ARROW, len(source[1])), one
        assert one["struck"] == ([] if what == "nothing" else [what]), one
        assert any("272 MiB beside its executor's heap" in text for text in one["said"])
        kills.read_again(broker, one["topic"], source, spark)


@pytest.mark.parametrize("phase", PHASES)
def test_a_driver_that_is_killed(
    cluster: SparkCluster, broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession, phase: str
) -> None:
    """Its executors end with it: the next one gets theirs."""
    with driver(cluster, broker, source[0], "driver", phase) as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGKILL, errors[-3000:]
    kills.run_after(broker, f"driver-{phase}", source, spark)


@pytest.mark.parametrize("phase", kills.STAGES)
def test_a_cluster_without_workers_ends_the_flood_and_its_gate(
    cluster: SparkCluster, broker: BrokerProcess, source: tuple[Path, list[Event]], spark: SparkSession, phase: str
) -> None:
    with driver(cluster, broker, source[0], "all", phase) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "strike\n"
        cluster.replaces = False
        try:
            cluster.kill_workers()
            said, errors = process.communicate("\n", timeout=TIMEOUT_S)
        finally:
            cluster.replaces = True
    assert process.returncode == 0, errors[-3000:]
    (found,) = results(said)
    assert "no executor of Spark's for 20 s" in found["error"] and "executor.memory=`512m`" in found["error"], found
    assert any("no executor for" in text for text in found["said"]), found
    topic = f"all-{phase}"
    flood_id = kills.flood(broker, topic, source[0]).id()
    with Connection(f"{HOST}:{broker.grpc_port}", timeout_ms=60_000) as connection:
        try:
            assert connection.call(connection.gates.describe(topic, flood_id)).state is GateState.RELEASED
        except InvalidError as error:
            # The topic is created after the count.
            assert phase == "count" and error.reason is Reason.UNKNOWN_TOPIC
    kills.run_after(broker, topic, source, spark)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("spark.executor.memory=4g", ("had no executor", "executor.memory=`4g`", "as much memory", "spark.headgate.executorWait")),
        # The master starts them again and again: Spark counts only failures of which none ran in between.
        ("spark.executor.extraJavaOptions=-agentlib:nonsense", ("had no executor", "work/", "spark.headgate.executorWait")),
        ("spark.pyspark.python=/nowhere/python", ("/nowhere/python", "spark.pyspark.python")),
    ],
)
def test_executors_that_cannot_start(
    cluster: SparkCluster, broker: BrokerProcess, source: tuple[Path, list[Event]], setting: str, told: tuple[str, ...]
) -> None:
    conf = ("--conf", setting, "--conf", "spark.headgate.executorWait=60s")
    done = subprocess.run(
        [sys.executable, "-m", "headgate.broker.cli.main", "flood", "run", "--cluster", f"{HOST}:{broker.grpc_port}",
         "--topic", "never", "--partitions", "3", "--source", str(source[0]), "--key", "user", "--event-time", "at",
         "--master", cluster.master, *conf],
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and all(text in last for text in told), done.stderr[-3000:]
