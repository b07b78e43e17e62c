"""The Python workers of a flood's tasks: the modules that they load, and their start ahead of the first task.

Compared: modules of a fresh interpreter, and the job that a session receives. A mismatch means that each worker starts more slowly
than it needs to, or that a cluster runs a job that no user asked for.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.pipelines.session import TASKS, WARM_WORKERS_MAX, warm

HEAVY = ("boto3", "google.protobuf", "grpc", "pandas", "pyspark.sql.connect", "uvloop")
WAIT_S = 60.0


def test_a_task_loads_no_module_that_it_does_not_use() -> None:
    code = f"import sys, {TASKS}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Context:
    """A stand-in for a Spark context: notes its jobs, and runs none."""

    def __init__(self, master: str, slots: int) -> None:
        self.master = master
        self.defaultParallelism = slots
        self.jobs: list[tuple[list[str], int]] = []
        self.ran = threading.Event()

    def parallelize(self, items: list[str], tasks: int) -> SimpleNamespace:
        self.jobs.append((items, tasks))

        def foreach(work: Callable[[str], Any]) -> None:
            assert work(TASKS) is sys.modules[TASKS]
            self.ran.set()

        return SimpleNamespace(foreach=foreach)


@pytest.mark.parametrize(("master", "slots", "workers"), [("local[2, 3]", 2, 2), ("local[*]", 64, WARM_WORKERS_MAX)])
def test_a_local_session_starts_its_workers(master: str, slots: int, workers: int) -> None:
    context = Context(master, slots)
    warm(SimpleNamespace(_sc=context))  # type: ignore[arg-type]
    assert context.ran.wait(WAIT_S)
    assert context.jobs == [([TASKS] * workers, workers)]


@pytest.mark.parametrize(
    "session", [SimpleNamespace(_sc=Context("yarn", 2)), SimpleNamespace(_sc=Context("local[*]", 1)), SimpleNamespace()]
)
def test_other_sessions_start_nothing(session: Any) -> None:
    threads = threading.active_count()
    warm(session)
    assert threading.active_count() == threads
