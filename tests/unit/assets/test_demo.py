"""The parts of `make demo` that judge: a demo may report success only after a check.

Compared: verdicts over hand-made streams of records, and the numbers of the summary. A mismatch means that the demo reports
success although something is wrong.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from rich.console import Console

from headgate.assets.demo import __main__ as demo_main
from headgate.assets.demo import dagster_api, flights
from headgate.assets.demo.__main__ import _show
from headgate.assets.demo.dagster_api import DagsterApi
from headgate.assets.demo.play import Demo, Facts, Options
from headgate.assets.demo.processes import Processes, free_port, wait_for
from headgate.assets.demo.reader import Checker
from headgate.assets.recorder import Sample
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError

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
        arguments = ("http.server", "--bind", "127.0.0.1", str(free_port()))
        process, other = processes.start("some", *arguments, gives_way=True), processes.start("other", "http.server", "0")
        assert os.getsid(other.pid) == os.getsid(0)
        processes.give_way("some", own + 5)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == own + 5
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == own
        group = Path(f"/proc/{process.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(f" nice {own + 5}\n")
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_url_is_never_folded() -> None:
    url = f"http://127.0.0.1:13210/runs/{'0' * 80}"
    written = io.StringIO()
    facts = Facts(days=["2013-06-10"], urls={"this run": url})
    _show(Console(width=80, file=written), facts, Options(keep=True), 1.0)
    assert url in written.getvalue()
    ended = io.StringIO()
    _show(Console(width=200, file=ended), facts, Options(), 1.0)
    assert "http" not in ended.getvalue() and "headgate demo --keep leaves everything running" in ended.getvalue()


def test_goals_of_live_latency_are_judged() -> None:
    spans = {"before": (1.0, 10.0, 9), "during": (1.4, 40.0, 9), "after": (1.0, 9.0, 9), "read back": (2.5, 19.0, 9)}
    written = io.StringIO()
    facts = Facts(days=["2013-06-10"], acks_ms=spans, back_rounds=3, back_bytes={"lanes": 2e8, "brokers": 1e6})
    _show(Console(width=300, file=written), facts, Options(), 1.0)
    text = written.getvalue()
    assert "before 1.0 ms, during 1.4 ms (1.4x, goal 1.5x met), after 1.0 ms, read back 2.5 ms (2.5x, goal 2x MISSED)" in text
    assert "before 10.0 ms, during 40.0 ms (4.0x, goal 1.5x MISSED), after 9.0 ms, read back 19.0 ms (1.9x, goal 2x met)" in text
    assert "3 times the whole history" in text and "200 MB of it from lanes, 1 MB from brokers" in text


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
        dagster=SimpleNamespace(
            checks=lambda _: {}, metadata=lambda *_: {"2013-06-10": {"plan": json.dumps({"rows": 1, "brokers": planned})}}
        ),
    )
    Demo._collect(demo, "a run")
    assert demo.facts.problems == problems


# -- a starved machine


class Answers:
    """A web server that gives scripted answers to GraphQL requests, and keeps the requests. None: the connection is closed."""

    def __init__(self, *answers: dict[str, Any] | int | None) -> None:
        script = list(answers)
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(re.findall(r"\w+", request["query"])[1])
                answer = script.pop(0)
                if isinstance(answer, dict):
                    body = json.dumps({"data": answer}).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                elif answer is not None:
                    self.send_error(answer)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dagster_api, "AGAIN_S", 0.0)


SUCCESS = {"runOrError": {"__typename": "Run", "status": "SUCCESS"}}
STARTED = {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": "run-1"}}}
LATE = {"launchRun": {"__typename": "PythonError", "message": "DagsterUserCodeUnreachableError: Deadline Exceeded"}}
NO_RUN: dict[str, Any] = {"runsOrError": {"results": []}}
ITS_RUN = {"runsOrError": {"results": [{"runId": "run-1"}]}}


def test_a_question_without_an_answer_is_asked_again() -> None:
    checks: list[int] = []
    with Answers(None, 502, SUCCESS) as dagster:
        assert DagsterApi(dagster.url, 60.0, lambda: checks.append(1)).run_status("run-1") == "SUCCESS"
    assert dagster.asked == ["Run", "Run", "Run"] and len(checks) == 2


def test_without_patience_it_is_not_asked_again() -> None:
    with Answers(None) as dagster, pytest.raises(RetryError, match="dagster does not answer"):
        DagsterApi(dagster.url).run_status("run-1")


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([STARTED], ["Launch"]),
        # The answer got lost, the run did not.
        ([None, ITS_RUN], ["Launch", "Launched"]),
        ([LATE, NO_RUN, None, ITS_RUN], ["Launch", "Launched", "Launch", "Launched"]),
        ([504, NO_RUN, STARTED], ["Launch", "Launched", "Launch"]),
    ],
)
def test_a_launch_starts_one_run(answers: list[Any], asked: list[str]) -> None:
    with Answers(*answers) as dagster:
        assert DagsterApi(dagster.url, 60.0).launch("flights", "2013-06-10", "2013-06-12") == "run-1"
    assert dagster.asked == asked


def test_a_refusal_is_not_tried_again() -> None:
    refused = {"launchRun": {"__typename": "InvalidSubsetError", "message": "no such asset"}}
    with Answers(refused) as dagster, pytest.raises(InvalidError, match="no such asset"):
        DagsterApi(dagster.url, 60.0).launch("flights", "2013-06-10", "2013-06-12")


def location(loaded: dict[str, str] | None) -> dict[str, Any]:
    entry = {"name": "headgate", "loadStatus": "LOADED" if loaded else "LOADING", "locationOrLoadError": loaded}
    return {"workspaceOrError": {"locationEntries": [entry]}}


def test_a_code_location_that_loads_too_slowly_is_loaded_again() -> None:
    late = {"__typename": "PythonError", "message": "Timed out waiting for gRPC server to start after 45s"}
    here = {"__typename": "RepositoryLocation"}
    reloaded: dict[str, Any] = {"reloadRepositoryLocation": {"__typename": "WorkspaceLocationEntry"}}
    with Answers(None, location(None), location(late), reloaded, location(here)) as dagster:
        api = DagsterApi(dagster.url)
        assert [api.ready() for _ in range(4)] == [False, False, False, True]
    assert dagster.asked[3] == "Reload"


def test_a_code_location_with_a_mistake_is_not() -> None:
    wrong = {"__typename": "PythonError", "message": "InvalidError: floods.yaml:3: unknown field"}
    with Answers(location(wrong)) as dagster, pytest.raises(InvalidError, match="unknown field"):
        DagsterApi(dagster.url).ready()


def test_what_did_not_come_says_why(tmp_path: Path) -> None:
    def ready() -> bool:
        raise RetryError(Reason.NOT_READY, "no leader yet")

    with pytest.raises(FatalError, match=r"the topic did not come in time\. waited_s=`0` last_answer=`no leader yet`"):
        wait_for("the topic", ready, 0.0, lambda: None)


@pytest.mark.parametrize("keep", [False, True])
def test_a_failure_is_one_line_and_keeps_what_it_may(
    keep: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[bool] = []

    def play(demo: Demo) -> Facts:
        raise FatalError(Reason.INTERNAL, "the flood failed: no space left on [device]")

    monkeypatch.setattr(Demo, "play", play)
    monkeypatch.setattr(demo_main, "_until_interrupt", lambda: kept.append(True))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert demo_main.main(["--keep"] if keep else []) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("the flood failed: no space left on [device]") == 1
    assert kept == ([True] if keep else [])
    assert lines[-1].startswith("What still runs stays" if keep else "headgate demo --keep leaves everything running")
