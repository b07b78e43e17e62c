"""The ports of the brokers of `headgate up`, the settings that allow only one broker, and the supervision of brokers.

Runs: `Places` against ports that are really free or taken, `Child` and `Supervisor` with real processes that are no brokers.
Compared: settings of each slot; the output that is passed on, and the processes that remain. A mismatch means brokers that
cannot start, that clients do not find again after a restart, that stand still, or that never end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE

import pytest

from headgate.broker.cli.child import LINE_BYTES_MAX, STRIDE, Child, Places, check_shareable, wish_of
from headgate.broker.cli.up import Supervisor, up
from headgate.broker.cluster.capacity import Desired
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import FatalError, InvalidError
from headgate.broker.server.main import beat
from tests.support.ports import free_port

HOST = "127.0.0.1"


def ports_of(settings: Settings) -> tuple[int, int, int]:
    return settings.kafka_port, settings.grpc_port, settings.http_port


def first(**values: object) -> Settings:
    kafka, grpc, http = sorted(free_port() for _ in range(3))
    return dataclasses.replace(Settings(), kafka_port=kafka, grpc_port=grpc, http_port=http, broker_id=7, **values)  # type: ignore[arg-type]


def test_each_slot_has_ports_of_its_own_and_keeps_them() -> None:
    given = first()
    places = Places(given)
    assert places.settings(0) is given
    found = [places.settings(slot) for slot in range(6)]
    assert [settings.broker_id for settings in found] == [7, 8, 9, 10, 11, 12]
    every = [port for settings in found for port in ports_of(settings)]
    assert len(set(every)) == len(every)
    for settings in found:
        steps = {(port - before) / STRIDE for port, before in zip(ports_of(settings), ports_of(given), strict=True)}
        assert len(steps) == 1 and steps.pop().is_integer()
    assert [ports_of(places.settings(slot)) for slot in range(6)] == [ports_of(settings) for settings in found]


def test_a_port_that_somebody_has_taken_is_gone_round() -> None:
    places = Places(first())
    before = places.settings(1)
    with socket.socket() as taken:
        taken.bind((HOST, before.grpc_port))
        taken.listen()
        after = places.settings(1)
        assert not set(ports_of(after)) & set(ports_of(before)) and after.broker_id == before.broker_id
    assert places.settings(1) == after, "it moves once, not back"


def test_any_free_port_stays_any_free_port() -> None:
    places = Places(dataclasses.replace(Settings(), kafka_port=0, grpc_port=0, http_port=0))
    assert ports_of(places.settings(3)) == (0, 0, 0)


def test_there_are_no_ports_behind_the_last() -> None:
    places = Places(dataclasses.replace(Settings(), kafka_port=65_530, grpc_port=free_port(), http_port=free_port()))
    with pytest.raises(FatalError, match="no free ports are left"):
        places.settings(1)


@pytest.mark.parametrize(
    "values", [{"store": "memory:"}, {"store": "null:"}, {"advertised_kafka_port": 9}, {"advertised_grpc_port": 9}]
)
def test_what_only_one_broker_can_have(values: dict[str, object]) -> None:
    with pytest.raises(InvalidError):
        check_shareable(first(**values))
    with pytest.raises(InvalidError):
        up(first(**values), brokers=2)
    with pytest.raises(InvalidError):
        up(first(**values), brokers=1, brokers_max=2)


@pytest.mark.parametrize(("brokers", "most"), [(3, 2), (1, 65), (65, None), (0, None)])
def test_numbers_that_do_not_fit(brokers: int, most: int | None) -> None:
    with pytest.raises(InvalidError, match="a local cluster has 1 to 64 brokers"):
        up(first(), brokers=brokers, brokers_max=most)


async def spawn(program: str) -> Child:
    return Child(
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE_BYTES_MAX
        )
    )


async def test_a_line_without_end_does_not_stop_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    child = await spawn(
        f"import sys; sys.stderr.write('x' * {3 * LINE_BYTES_MAX} + '\\nheadgate broker 1: the end'); print('serves')"
    )
    assert await child.wait() == 0
    assert child.line == "serves"
    assert child.reason(1) == "the end"
    said = capsys.readouterr().err
    assert said.count("x") == 3 * LINE_BYTES_MAX and said.endswith("x\nheadgate broker 1: the end")


async def test_whatever_ended_it_is_said() -> None:
    child = await spawn("")
    assert await child.wait() == 0
    assert child.reason(-signal.SIGKILL) == "killed by SIGKILL"
    assert child.reason(-(signal.SIGRTMIN + 1)) == f"killed by signal {signal.SIGRTMIN + 1}"


async def test_no_broker_outlives_an_error_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[Child] = []

    async def strange(settings: Settings, kafka: socket.socket) -> Child:
        children.append(await spawn("import time; print('not what a broker says', flush=True); time.sleep(600)"))
        return children[-1]

    monkeypatch.setattr(Child, "spawn", strange)
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
    assert await Supervisor(first(), 1, 1).run() == 1
    assert [child.process.returncode for child in children] == [-signal.SIGTERM]
    assert [type(error) for error in seen] == [KeyError]


@pytest.mark.parametrize(
    "desired",
    [None, Desired(brokers=3, reasons=("a reservation\nof `ü` holds 3 brokers",)), Desired(brokers=1, reasons=("x" * 9999,))],
)
@pytest.mark.parametrize("leads", [False, True])
def test_a_sign_of_life_has_the_desired_number_of_brokers(desired: Desired | None, leads: bool) -> None:
    line = beat(desired, leads=leads)
    assert line.count(b"\n") == 1 and len(line) < 512, "a pipe takes it whole"
    wish = wish_of(line)
    if desired is None:
        assert wish is None
    else:
        assert wish is not None and (wish.brokers, wish.leads) == (desired.brokers, leads)
        assert wish.why == " ".join(desired.reasons[0].split())[: len(wish.why)] and wish.why


async def test_brokers_start_when_the_leader_says_so_in_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor calls no broker, so a cluster with permissions needs none for it."""
    started: list[int] = []

    async def told(settings: Settings, kafka: socket.socket) -> Child:
        started.append(settings.broker_id)
        where = f"kafka={HOST}:1 grpc={HOST}:1 http={HOST}:1 store=x cluster=c"
        # The leader knows best: the other broker's number is older.
        wish = "desired 2 leads why" if settings.broker_id == 7 else "desired 1 follows before"
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return await spawn(
            f"import time\nprint('headgate broker {settings.broker_id} serves {where}', flush=True)\n"
            f"while True:\n    print('{wish}', flush=True)\n    time.sleep(0.05)"
        )

    monkeypatch.setattr(Child, "spawn", told)
    async with asyncio.timeout(60):
        assert await Supervisor(first(), 1, 2).run() == 0
    assert started == [7, 8]
