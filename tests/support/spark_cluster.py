"""A standalone Spark cluster of the installed PySpark on loopback: a real master, and workers with one core each."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.pipelines.java import java_home
from headgate.pipelines.session import LOOPBACK
from tests.support.ports import free_port
from tests.support.waiting import until

PATIENCE_S = 90.0
"""Ends a hang, also on a busy machine. No test judges by it."""
_EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master and its workers. Leaving the context kills them and their executors.

    Args:
        place: directory of the logs, and of what the workers write.
    """

    def __init__(self, place: Path, workers: int = 2) -> None:
        self.master = f"spark://{LOOPBACK}:{free_port()}"
        self.replaces = True
        """A worker that ended is replaced, as a service manager does."""
        self._place = place
        self._count = workers
        self._starts = 0
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._replace, name="spark-workers")

    def __enter__(self) -> Self:
        port = self.master.rpartition(":")[2]
        self._master = self._start("master", "org.apache.spark.deploy.master.Master", "--port", port)
        self._wait("master", "I have been elected leader")
        self.fill()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        executors = [pid for one in self._workers for pid in children(one.pid)]
        for one in [*self._workers, *([self._master] if self._master is not None else [])]:
            one.kill()
            one.wait()
        for pid in executors:
            kill(pid)

    def fill(self) -> None:
        """Start the workers that are missing, and wait until the master knows them."""
        self._workers = [one for one in self._workers if one.poll() is None]
        for _ in range(self._count - len(self._workers)):
            self._starts += 1
            name = f"worker-{self._starts}"
            work = str(self._place / name)
            what = "org.apache.spark.deploy.worker.Worker"
            self._workers.append(self._start(name, what, "--cores", "1", "--memory", "1g", "--work-dir", work, self.master))
        for number in range(self._starts - len(self._workers) + 1, self._starts + 1):
            self._wait(f"worker-{number}", "Successfully registered with master")

    def kill_workers(self) -> None:
        """Kill all workers, whose executors end then by themselves."""
        for one in self._workers:
            one.kill()
            one.wait()

    def _replace(self) -> None:
        while not self._stop.wait(0.2):
            if self.replaces:
                self.fill()

    def _start(self, name: str, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": LOOPBACK, "SPARK_DAEMON_MEMORY": "256m"}
        if (java := java_home(os.environ)) is not None:
            own["JAVA_HOME"] = java
        command = [str(home / "bin" / "spark-class"), what, "--host", LOOPBACK, "--webui-port", str(free_port()), *arguments]
        with (self._place / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **own}
            )

    def _wait(self, name: str, text: str) -> None:
        log = self._place / f"{name}.log"
        until(
            lambda: text in log.read_text() or self._stop.is_set(),
            lambda: f"the {name} starts\n{log.read_text()[-2000:]}",
            PATIENCE_S,
        )


def executors(app: str) -> dict[int, int]:
    """The executors of an application of Spark's, with the worker of each."""
    found = {}
    for place in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if place.name.isdigit() and _EXECUTOR in (command := (place / "cmdline").read_text()) and app in command:
                found[int(place.name)] = parent(int(place.name))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(of: int) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if place.name.isdigit() and parent(int(place.name)) == of:
                found.append(int(place.name))
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
