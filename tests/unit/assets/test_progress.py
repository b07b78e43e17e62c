"""The lines of a run that loads several days: each of them says more than the one before.

Compared: the lines with what Spark's tasks have done. A mismatch means that a person watches a run that seems to stand still.
"""

from __future__ import annotations

import threading

import pytest

from headgate.pipelines import follower
from headgate.pipelines.follower import Follower, Load
from headgate.pipelines.progress import Phase, Progress


def test_the_lines_of_a_load() -> None:
    load = Load({"monday": 1000, "tuesday": 3000})
    load.see("monday", Progress(phase=Phase.COUNTING), 0.0)
    assert load.doing() == "counting monday"
    assert load.text(7.0, 7.0) == "counting monday (1 of 2): 7 s so far", "no row moves yet, but the seconds do"
    load.see("monday", Progress(phase=Phase.SHUFFLING, rows_done=200, rows_total=1000), 8.0)
    assert load.text(9.0, 1.0) == "shuffling monday (1 of 2), 200 of 1,000 rows: 1 s so far"
    load.see("monday", Progress(phase=Phase.WRITING, rows_done=500, rows_total=1000), 10.0)
    assert load.text(10.0, 0.0) == "writing monday (1 of 2); 500 of 4,000 rows written (12%), 250 rows/s, about 14 s left"
    load.see("monday", Progress(phase=Phase.VERIFYING, rows_done=100, rows_total=1000), 12.0)
    load.see("tuesday", Progress(phase=Phase.WRITING, rows_done=1000, rows_total=3000), 12.0)
    assert load.doing() == "writing tuesday and verifying monday"
    assert load.text(12.0, 0.0) == (
        "writing tuesday (2 of 2); verifying monday (1 of 2), 100 of 1,000 rows; "
        "2,000 of 4,000 rows written (50%), 500 rows/s, about 4 s left"
    )
    load.finish("monday")
    load.see("tuesday", Progress(phase=Phase.DONE, rows_done=3000, rows_total=3000), 16.0)
    load.finish("tuesday")
    assert load.written() == load.total() == 4000


def test_a_follower_says_each_new_piece_of_work_at_once() -> None:
    said: list[str] = []
    with Follower(said.append) as follow:
        follow.at("planning")
        follow.at("waiting", lambda seconds: f"waiting: {seconds:.0f} s")
        follow.at("waiting", lambda seconds: f"still waiting: {seconds:.0f} s")
        assert (follow.doing, follow.line(3.0)) == ("waiting", "still waiting: 3 s")
        with follow.meanwhile("starting Spark"):
            assert follow.doing == "starting Spark"
        assert (follow.doing, follow.line(3.0)) == ("waiting", "still waiting: 3 s")
    assert said == ["planning", "waiting: 0 s", "starting Spark", "still waiting: 0 s"]


def test_many_small_pieces_of_work_are_no_lines_of_their_own() -> None:
    said: list[str] = []
    moved = threading.Event()
    with Follower(said.append, 0.001, lambda text: moved.set()) as follow:
        follow.at("beginning the load")
        for number in range(1000):
            follow.at(f"writing {number}", at_once=False)
        assert follow.doing == "writing 999"
        assert moved.wait(60), "where progress is shown, it moves"
    assert said == ["beginning the load"]


def test_a_log_that_stays_locked_holds_neither_work_nor_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt of a thread that writes into a log can leave its lock taken."""
    monkeypatch.setattr(follower, "END_S", 0.01)
    lock, waits = threading.Lock(), threading.Event()

    def say(text: str) -> None:
        waits.set()
        with lock:
            said.append(text)

    said: list[str] = []
    with lock:
        with Follower(say) as follow:
            follow.at("writing")
            assert waits.wait(60)
            follow.say("a record was added")
            follow.at("verifying")
        assert (follow.doing, said) == ("verifying", [])
