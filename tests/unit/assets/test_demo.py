"""The parts of `make demo` that judge: a demo may report success only after a check.

Compared: verdicts over hand-made streams of records, and the numbers of the summary. A mismatch means that the demo reports
success although something is wrong.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from headgate.assets.demo import flights
from headgate.assets.demo.__main__ import _show
from headgate.assets.demo.play import Demo, Facts, Options
from headgate.assets.demo.processes import Processes, free_port, wait_for
from headgate.assets.demo.reader import Checker
from headgate.assets.recorder import Sample
from headgate.broker.runtime.errors import FatalError

# partition, offset, timestamp in ms, value
HISTORY = [(0, 0, 1, {"id": 1}), (0, 1, 2, {"id": 2}), (1, 0, 1, {"id": 3})]
LIVE = [(0, 10, 100, {"live": 0}), (0, 11, 101, {"live": 2}), (1, 10, 102, {"live": 1})]


def judge(*records: tuple[int, int, int, dict[str, int]]) -> Checker:
    checker = Checker()
    for partition, offset, timestamp_ms, row in records:
        checker.take(partition, offset, timestamp_ms, json.dumps(row).encode(), 150.0)
    return checker


def test_history_then_live() -> None:
    verdict = judge(*HISTORY, *LIVE).verdict
    assert verdict.clean and (verdict.history, verdict.live, verdict.delay_ms_max) == (3, 3, 50.0)


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        ([*HISTORY, (0, 2, 3, {"id": 1})], "twice"),
        ([*LIVE, (0, 12, 104, {"live": 2})], "twice"),
        ([*LIVE, (0, 12, 1, {"id": 9})], "history_behind_live"),
        ([*HISTORY, (0, 2, 1, {"id": 9})], "history_out_of_order"),
        ([*LIVE, (0, 12, 104, {"live": 1})], "live_out_of_order"),
        ([*HISTORY, (0, 1, 3, {"id": 9})], "offsets_back"),
    ],
)
def test_what_is_wrong_is_seen(records: list[tuple[int, int, int, dict[str, int]]], fault: str) -> None:
    verdict = judge(*records).verdict
    assert not verdict.clean and getattr(verdict, fault) == 1


def test_brokers_and_their_seconds() -> None:
    def sample(at_s: float, live: int) -> Sample:
        return Sample(at_s=at_s, desired=live, live=live, bytes_in_per_s=0, bytes_out_per_s=0, rows_done=0)

    facts = Facts(samples=[sample(0, 1), sample(10, 3), sample(20, 3), sample(30, 1), sample(60, 1)])
    assert facts.brokers == [1, 3, 1] and facts.broker_seconds == 100.0 and facts.always_on_seconds == 180.0


def test_the_flights_are_all_there(tmp_path: Path) -> None:
    table = flights.load()
    assert table.num_rows == 336_776
    june = flights.history(table, 3)
    assert june.num_rows == 3 * 28_243 and len(set(june["id"].to_pylist())) == june.num_rows
    flights.write_live(table.slice(150_000, 40_000), tmp_path / "live.jsonl")
    key, line = next(flights.live(tmp_path / "live.jsonl"))
    assert json.loads(line)["month"] == 7 and json.loads(line)["tailnum"] == key.decode()


def test_a_process_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    with Processes(tmp_path, {}) as processes:
        process = processes.start("gone", "no_such_module_at_all")
        process.wait(60)
        with pytest.raises(FatalError, match="gone ended by itself"):
            processes.check()
        assert "no_such_module_at_all" in processes.tail("gone")
    assert 10_000 <= free_port() < 30_000


def test_a_signal_during_the_end_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(7)))\n"
        "pathlib.Path(f'ready-{os.getpid()}').touch()\n"
        "time.sleep(60)\n"
    )
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        with Processes(tmp_path, {}) as processes:
            ended = [processes.start("slow", "slow"), processes.start("other", "slow")]
            wait_for("the processes", lambda: len(list(tmp_path.glob("ready-*"))) == 2, 60, processes.check)
            again = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
            again.start()
        again.join()
        assert [process.returncode for process in ended] == [7, 7]
        assert asked == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [signal.SIGTERM], "what a signal does is as it was"
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of others' threads is Linux's")
def test_a_process_gives_way_with_all_that_it_starts(tmp_path: Path) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with Processes(tmp_path, {}) as processes:
        process = processes.start("some", "http.server", "--bind", "127.0.0.1", str(free_port()))
        processes.give_way("some", own + 5)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == own + 5
        group = Path(f"/proc/{process.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(f" nice {own + 5}\n")
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_url_is_never_folded() -> None:
    url = f"http://127.0.0.1:13210/runs/{'0' * 80}"
    written = io.StringIO()
    _show(Console(width=80, file=written), Facts(days=["2013-06-10"], urls={"this run": url}), Options(), 1.0)
    assert url in written.getvalue()


@pytest.mark.parametrize(
    ("planned", "came", "problems"), [(2, 2, []), (3, 2, ["there were never 3 brokers, which the plan asked for"])]
)
def test_as_many_brokers_come_as_were_planned(planned: int, came: int, problems: list[str]) -> None:
    looks = [
        Sample(at_s=at, desired=live, live=live, bytes_in_per_s=0, bytes_out_per_s=0, rows_done=0)
        for at, live in enumerate((1, came, 1))
    ]
    demo: Any = SimpleNamespace(
        facts=Facts(samples=looks),
        dagster=SimpleNamespace(checks=lambda _: {}, metadata=lambda *_: {"2013-06-10": {"rows": 1, "brokers": planned}}),
    )
    Demo._collect(demo, "a run")
    assert demo.facts.problems == problems
