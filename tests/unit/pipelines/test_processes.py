"""Tasks of floods in processes of the machine: results, errors, deaths, cancellation, and what a dead driver leaves.

Runs: `Processes` with the tasks of `support/tasks.py`. Compared: results and their order, the kind and words of errors, the tries
of a task, and the processes and directories that are left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.pipelines.columns.engine import Direct, Exchanged
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.processes import Processes
from headgate.pipelines.session import TASK_TRIES
from tests.support import tasks
from tests.support.waiting import until

DRIVER = """
import sys
from headgate.pipelines.columns.processes import Processes
from tests.support import tasks
with Processes(1, sys.argv[1]) as engine, engine.spill():
    engine.each(tasks.waiting, [sys.argv[2]])
"""
"""A script without a guard around its main part: a pool that imports it again would run it in each process."""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("slots", [0, 2])
def test_results_are_in_the_order_of_the_work(slots: int) -> None:
    told: list[tuple[int, ...]] = []
    with Processes(slots, done=lambda *numbers: told.append(numbers)) as engine:
        assert engine.each(range, [3, 0, 2]) == [0, 1, 2, 0, 1]
        written = engine.write([Exchanged(tasks.divided, ["abcd", "ef"], [0, 0, 1], tasks.gathered), Direct(range, [2])])  # type: ignore[arg-type]
    assert written == [0, 1, (0, [(0, b"a"), (0, b"d"), (0, b"e"), (1, b"b"), (1, b"f")]), (1, [(2, b"c")])]
    assert told[-1] == (2, 2, 3, 3), "two tasks read, three wrote"


@pytest.mark.parametrize("slots", [0, 1])
def test_errors_keep_their_kind(slots: int) -> None:
    with Processes(slots) as engine, pytest.raises(InvalidError, match="a row is wrong"):
        engine.each(tasks.failing, ["invalid"])
    with Processes(slots) as engine, pytest.raises(UnlikeError, match="a text is not UTF-8"):
        engine.each(tasks.failing, ["unlike"])
    with Processes(slots) as engine, pytest.raises(RetryError, match="the store does not answer"):
        engine.each(tasks.failing, ["retry"])


def test_an_unknown_error_is_told() -> None:
    with Processes(1) as engine, pytest.raises(RetryError, match="a flood's task failed: TypeError: something"):
        engine.each(tasks.failing, ["something"])


def test_a_task_that_dies_is_tried_again(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    with Processes(1) as engine, pytest.raises(RetryError, match="ended: Killed; the system kills a process when memory is short"):
        engine.each(tasks.dying, [str(tries)])
    assert tries.read_text() == "x" * TASK_TRIES


def test_cancel_ends_tasks_that_run(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with Processes(2) as engine:

        def cancel() -> None:
            until(lambda: begun.exists() and len(begun.read_text().splitlines()) == 2)
            engine.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(RetryError):
            engine.each(tasks.waiting, [str(begun)] * 4)
        thread.join()
    pids = [int(line) for line in begun.read_text().splitlines()]
    assert len(pids) == 2, "no task begins after the cancellation"
    until(lambda: not any(map(lives, pids)))


def test_nothing_is_left_of_a_driver_that_is_killed_or_interrupted(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    place = tmp_path / "spill"
    place.mkdir()
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(place), str(begun)], env={**os.environ, "PYTHONPATH": os.getcwd()})
    until(lambda: begun.exists() and begun.read_text().endswith("\n"))
    assert [one.name.startswith("headgate-rows-") for one in place.iterdir()] == [True]
    driver.kill()
    driver.wait()
    until(lambda: not lives(int(begun.read_text())))
    assert not list(place.iterdir())
