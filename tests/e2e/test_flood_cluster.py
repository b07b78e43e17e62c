"""The long forms: a flood on a standalone Spark cluster of this machine (a master, two workers, speculation on, one worker
killed in the middle), and one into a bucket that is slow, throttles and fails.

Compared: the records that a foreign client reads with the source. A mismatch means that executors which die, tasks that run
twice, or requests with a lost answer lose or double records.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from headgate.pipelines.java import java_home
from headgate.pipelines.spark_rows import ARROW
from tests.support.broker_process import HOST, ROOT, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.flood_sources import events, expected, write
from tests.support.ports import free_port
from tests.support.s3_chaos import S3Chaos
from tests.support.s3_server import S3Server

PARTITIONS = 6
TIMEOUT_S = 500

_DRIVER = """
import json, os, signal, sys
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.columns import job
from headgate.pipelines.progress import Phase
from headgate.pipelines.session import session
master, cluster, source, victim = sys.argv[1:]
spark = session(master, conf={
    "spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.cores.max": "2", "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.3", "spark.speculation.minTaskRuntime": "1ms",
})
job.task_bytes = lambda *_: 64 << 10  # many tasks, which exchange rows through Spark's shuffle
killed = []
def listen(seen):
    if seen.phase in (Phase.SHUFFLING, Phase.WRITING) and seen.rows_done and not killed:
        killed.append(os.kill(int(victim), signal.SIGKILL))
done = run(Backfill(cluster=cluster, topic="t", source=source, key="user", value="payload", event_time="at", partitions=6,
                    file_bytes=64 << 10, verify=True), spark, progress=listen)
print(json.dumps({"engine": done.engine, "verified": done.verified, "added": done.added_rows, "problems": done.problems()}))
"""


@contextmanager
def spark_daemon(log: Path, kind: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A master or a worker, started as the JVM itself, so that a kill of the process hits the JVM."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}
    if (java := java_home(os.environ)) is not None:
        environment["JAVA_HOME"] = java
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            # Its executors are its children.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S / 2
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the master does not listen"
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_executors_that_die_and_tasks_that_run_twice(tmp_path: Path) -> None:
    rows = events(60_000, seed=11)
    source = write(tmp_path / "source", rows)
    port = free_port()
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path / "store", tmp_path / "broker.log"))
        broker.start()
        stack.enter_context(
            spark_daemon(tmp_path / "master.log", "Master", "--host", HOST, "--port", str(port), "--webui-port", str(free_port()))
        )
        wait_for(port)
        master, workers = f"spark://{HOST}:{port}", []
        for number in range(2):
            own = ("--host", f"127.0.0.{number + 2}", "--work-dir", str(tmp_path / f"work-{number}"))
            given = ("--cores", "1", "--memory", "1g", "--webui-port", str(free_port()))
            workers.append(stack.enter_context(spark_daemon(tmp_path / f"worker-{number}.log", "Worker", *own, *given, master)))
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER, master, f"{HOST}:{broker.grpc_port}", str(source), str(workers[0].pid)],
            cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "engine": ARROW, "verified": True, "added": len(rows), "problems": [],
        }  # fmt: skip
        assert workers[0].poll() == -signal.SIGKILL, "one worker was killed"
        found = CLIENTS["confluent"].consume(broker.bootstrap, "t", range(PARTITIONS))
        broker.kill()
        broker.check_output()
    wanted = expected(rows, PARTITIONS)
    assert {number: [(row.timestamp_ms, row.key, row.value) for row in some] for number, some in found.items()} == wanted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bucket_that_throttles(s3_server: S3Server, tmp_path: Path) -> None:
    rows = events(20_000, seed=12)
    source = write(tmp_path / "source", rows)
    with ExitStack() as stack:
        s3 = stack.enter_context(S3Chaos(s3_server, "flood"))
        store = f"s3://{s3_server.bucket()}/flood?endpoint={s3.endpoint}"
        broker = stack.enter_context(BrokerProcess(store, tmp_path / "broker.log", env=s3_server.environment))
        broker.start()
        command = [
            sys.executable,
            "-m",
            "headgate.broker.cli.main",
            "flood",
            "run",
            "--topic",
            "t",
            "--source",
            str(source),
            "--verify",
        ]
        options = ["--key", "user", "--value", "payload", "--event-time", "at", "--file-size", "64KiB", "--partitions", "6"]
        done = subprocess.run(
            [*command, *options],
            cwd=ROOT, env={**os.environ, **s3_server.environment, "HEADGATE_CLUSTER": f"{HOST}:{broker.grpc_port}"},
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "yes: the topic has what the source has" in done.stdout
        assert s3.faults, "some requests were broken"
        found = CLIENTS["confluent"].consume(broker.bootstrap, "t", range(PARTITIONS))
        broker.kill()
        broker.check_output()
    wanted = expected(rows, PARTITIONS)
    assert {number: [(row.timestamp_ms, row.key, row.value) for row in some] for number, some in found.items()} == wanted
