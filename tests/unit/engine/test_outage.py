"""No task of a leader or of a broker ends for good because the store does not answer.

Runs: one broker that leads, with work for each of its lasting tasks: a changed table, an open gate, a reservation, records to list,
to fold and to delete. Then one operation of the store fails until each task that needs it has met the failure, while hours pass on
the broker's clock. Compared: the running tasks before and after, and that each task does its work once the store answers again. A
second test compares every task that the code starts with lists: those that last, those that try until they succeed, those that are
begun again. A mismatch means that an outage of minutes silently ends a part of the cluster until the leader changes.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.broker.cluster.capacity import Reservation
from headgate.broker.control import leader_gates, leader_tables, term_tasks
from headgate.broker.control.term_tasks import TermTasks
from headgate.broker.engine.base.catalog import DeposedError
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.test_offline import append, batch, files
from tests.unit.engine.world import Incarnation, settings

HOUR_MS = 3_600_000
BROKER = Path(__file__).parents[3] / "broker"

LASTING = {"lease", "leader", "gates", "tables", "participant", "attend", "checkpointer", "sweeper", "offline-folder"}
"""Tasks of every broker that leads alone."""
OPTIONAL = {
    "replication": "only with `ack=replicated`; `unit/control/test_replication.py`",
    "audit topic": "only with an audit topic; `unit/access/test_audit.py`",
    "tls files": "only with TLS; `e2e/test_tls.py`",
    "http": "the HTTP server; it uses no store",
    "lane-{}": "only with `history_lanes`: a process, which is started again; it uses no store",
    "lane-upkeep": "only in a lane: it asks leads, and uses no store; `unit/control/test_lanes.py`",
}
UNTIL_DONE = {
    "reservations", "fill-gaps", "failover", "resign", "open-segments", "{}-load", "{}-load-partition", "transactions-mark", "_put",
}  # fmt: skip
"""Tasks that try until they succeed."""
BEGUN_AGAIN = {
    "plan": "the term makes the next plan", "ask": "the term asks again", "yield": "it keeps the lease", "drain": "no I/O",
    "{}-cut": "the next cut has its offsets", "{}-clean": "the next interval", "{}-snapshot": "the next records",
    "look-at-fence": "each request", "gate-files": "the next page", "token keys": "the next token", "view": "the next page",
    "pages": "the next page",
}  # fmt: skip
"""Tasks that end, and are begun again."""
OF_A_CALLER = {
    "gate", "report", "order", "join", "watch-lease", "connect", "replicate", "replicated", "register-follower", "watch-follower",
    "commit", "judge-files", "read-ahead", "publish-read", "publish-write", "publish-stop", "gRPC starts", "subscribe-read",
    "subscribe-send", "page-gone", "page", "start", "node", "tls handshake", "wait", "_open_file", "_encode", "_fetch", "ask_peers",
    "append_parked", "answer_in_turn", "answer_alone", "answer_fetch", "one", "act", "end_transaction", "_tell_door", "_answer",
    "_resign", "_recipe", "gRPC calls", "prove", "end of {}", "download", "download-gone", "subscribe-history",
}  # fmt: skip
"""Tasks with a caller that gets their error: a request, a stream, an order."""

STARTERS = ("create_task", "ensure_future", "spawn", "_spawn", "keep", "_keep")
"""Functions that start a task."""


class Outage(dict[str, Exception]):
    """One operation of a store that fails. `met`: the names of the tasks that it failed for."""

    def __init__(self, operation: str) -> None:
        super().__init__({operation: RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer")})
        self.met: set[str] = set()

    def __getitem__(self, operation: str) -> Exception:
        task = asyncio.current_task()
        self.met.add("" if task is None else task.get_name())
        return super().__getitem__(operation)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_tables, "PAUSE_S", 0.001)
    monkeypatch.setattr(leader_gates, "LOOK_S", 0.001)
    monkeypatch.setattr(leader_gates, "REST_S", 0.001)
    monkeypatch.setattr(term_tasks, "PAUSE_S", 0.001)
    monkeypatch.setattr(term_tasks, "PAUSE_S_MAX", 0.002)


def running() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def work_for_all(broker: Incarnation, number: int, outage: Outage | None = None) -> None:
    """A gate and a reservation that expire, and records to list, to fold and to put into the table. `outage`: begins before the
    records come, so that no task has done its work by then."""
    await broker.engine.create_topic(f"t{number}", 1, {"offline.after.bytes": "0", "retention.ms": "-1"})
    await broker.engine.create_topic(f"old{number}", 1, {"retention.ms": "1", "offline.after.ms": "-1"})
    await broker.leader.gates.open(f"t{number}", "g", "now", [5], 1000)
    await broker.leader.capacity.open(Reservation(id=f"r{number}", owner="", brokers=1, ttl_ms=1000))
    if outage is not None:
        broker.store.refused = outage
    for topic in (f"t{number}", f"old{number}"):
        await append(broker, batch(40), topic)
        await append(broker, batch(40, 40), topic)


async def is_done(broker: Incarnation, clock: ManualClock, number: int) -> None:
    """Wait until each lasting task has done its work."""
    manifest = broker.engine.manifest
    topic = broker.engine.topic(f"t{number}")

    def state() -> dict[str, bool]:
        return {
            "gates": manifest.gates.by_topic[topic.id]["g"].state == "released",
            "reservations": f"r{number}" not in manifest.reservations,
            "sweeper": broker.log(f"old{number}").log_start == 80,
            "offline-folder": bool(files(broker, f"t{number}")),
            "tables": not broker.leader.tables.is_behind(topic.id) and not broker.leader.tables.failing,
        }

    def done() -> bool:
        clock.advance(HOUR_MS)
        broker.sweeper.wake()
        return all(state().values())

    await until_async(done, state)


@pytest.mark.parametrize(
    ("operation", "meeting"),
    [
        ("list", {"tables", "commit"}),
        ("get", set()),
        ("get_range", set()),
        ("get_ranges", {"offline-folder"}),
        ("put", {"offline-folder", "sweeper", "checkpointer"}),
        ("put_if_absent", {"lease", "commit"}),
        ("delete", set()),
    ],
)
async def test_no_task_ends_by_an_outage(make_machine: MakeMachine, clock: ManualClock, operation: str, meeting: set[str]) -> None:
    machine = make_machine("memory")
    broker = await machine.start(settings(offline_check_interval_ms=10, retention_check_interval_ms=10, cluster_lease_ttl_ms=20))
    await work_for_all(broker, 0)
    await is_done(broker, clock, 0)
    assert running() >= LASTING
    outage = Outage(operation)

    def met() -> bool:
        clock.advance(HOUR_MS)
        broker.sweeper.wake()
        return outage.met >= meeting

    await work_for_all(broker, 1, outage)
    await until_async(met, lambda: outage.met)
    broker.store.refused = {}
    for number in (1, 2):
        if number == 2:
            await work_for_all(broker, 2)
        await is_done(broker, clock, number)
    assert running() >= LASTING, f"ended: {sorted(LASTING - running())}"
    await machine.stop(broker)


async def test_a_task_of_a_term_is_begun_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock, failures = ManualClock(0), list[HeadgateError]()
    monkeypatch.setattr(term_tasks, "PAUSE_S", 0.5)
    monkeypatch.setattr(term_tasks, "PAUSE_S_MAX", 30.0)
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    tasks = TermTasks(failures.append, clock.monotonic)

    async def work() -> None:
        if len(pauses) == 9:
            clock.advance(31_000)  # it works for longer than the longest pause
        if len(pauses) < 11:
            raise RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer")

    await tasks.keep(work, "tables")
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 0.5, 1.0]
    assert tasks.retries == {"tables": 11} and not failures and not tasks.running

    async def deposed() -> None:
        raise DeposedError(Reason.FENCED, "another broker leads")

    with pytest.raises(DeposedError):
        await tasks.keep(deposed, "gates")
    await real(0)
    assert [error.reason for error in failures] == [Reason.FENCED], "only what may be repeated is repeated"


def started() -> Iterator[tuple[str, str]]:
    """(file, name or function) of every task that a broker's code starts."""
    for path in sorted(BROKER.rglob("*.py")):
        place = path.relative_to(BROKER)
        if place.parts[0] in ("client", "cli", "testing", "verify"):
            continue
        text = path.read_text()
        if not any(f"{one}(" in text for one in STARTERS):
            continue  # parsing all of the code takes seconds
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                name = task_name(call, call.func.attr)
                if name:
                    yield str(place), name


def task_name(call: ast.Call, function: str) -> str:
    """The name of the task that a call starts; "" if it starts none, or one of its caller's name."""
    if function not in STARTERS:
        return ""
    named: list[Any] = [word.value for word in call.keywords if word.arg == "name"] or call.args[1:2]
    if named and isinstance(named[0], ast.Constant):
        return str(named[0].value)
    if named and isinstance(named[0], ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in named[0].values)
    work = call.args[0]
    if named or not isinstance(work, ast.Call):
        return ""
    return work.func.attr if isinstance(work.func, ast.Attribute) else ast.unparse(work.func)


def test_every_task_is_known() -> None:
    known = LASTING | set(OPTIONAL) | UNTIL_DONE | set(BEGUN_AGAIN) | OF_A_CALLER
    found = set(started())
    unknown = {one for one in found if one[1] not in known}
    assert not unknown, f"tasks that are in none of the lists above: {sorted(unknown)}"
