"""Gates on three brokers; one after another is killed in the middle of a step.

Runs: three brokers over one directory; idempotent producers of librdkafka and aiokafka write all the time. Gates are opened,
filled and released while the leader of the cluster or of a partition is killed: before the call, during it, or after its answer.
The client repeats its calls. Consumers begin at the beginning while gates are open. Compared, at the end: the whole topic with
every ack and with the history of every filled gate; the reads of the consumers with the whole topic. A mismatch means that a
gate was filled in part or twice, that a consumer skipped history, that two records got one offset, or that an acked record was
lost.

HEADGATE_GATES_ROUNDS sets the number of rounds, HEADGATE_GATES_SEED replays a run's choices.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from headgate.broker.client import Admin, Gate, GateAdmin, GateState
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.cluster import Brokers, Clients
from tests.support.history import Log, check_log, check_reader, check_writer
from tests.support.history_files import expected, upload
from tests.support.waiting import until, until_async
from tests.support.writers import AiokafkaReader, ConfluentReader, Reader

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio has one poller for the process

SEED = int(os.environ.get("HEADGATE_GATES_SEED", time.time_ns() % 1_000_000))
ROUNDS = int(os.environ.get("HEADGATE_GATES_ROUNDS", "3"))
PARTITIONS = 6
PATIENCE_S = 90.0
"""Ends a hang; no test judges by it."""

_T = TypeVar("_T")


class Round:
    """Kills one broker around one call."""

    def __init__(self, brokers: Brokers, draw: random.Random) -> None:
        self._brokers, self._draw = brokers, draw

    async def around(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """The call's answer; a broker is killed before, during or after it, and runs again afterwards."""
        victim = await asyncio.to_thread(self._victim)
        when = self._draw.choice(("before", "during", "during", "after"))
        if when == "before":
            await asyncio.to_thread(victim.kill)
        calling = asyncio.ensure_future(call())
        if when == "during":
            await asyncio.sleep(self._draw.uniform(0.0, 0.05))
            await asyncio.to_thread(victim.kill)
        answer = await calling
        if when == "after":
            await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.spawn)
        await asyncio.to_thread(until, self._all_there, "all brokers are members")
        return answer

    def _victim(self) -> BrokerProcess:
        return self._brokers.leader() if self._draw.random() < 0.5 else self._draw.choice(self._brokers.all)

    def _all_there(self) -> bool:
        self._brokers.revive()
        try:
            return len(self._brokers.metadata().brokers) == len(self._brokers.all)
        except Exception:  # noqa: BLE001  # one of them is just starting
            return False


def judge(reader: Reader, log: Log, later: list[Gate]) -> list[str]:
    """Check the reads of one consumer. If it was at the end when a gate was opened, it must get none of the gate's history; else
    all."""
    wanted = dict(log)
    for gate in later:
        for window in gate.windows:
            seen = {offset for offset, _ in reader.seen[window.partition]}
            if seen.isdisjoint(range(window.base_offset, window.end_offset)):
                wanted[window.partition] = [
                    one for one in wanted[window.partition] if not window.base_offset <= one[0] < window.end_offset
                ]
    return check_reader(type(reader).__name__, reader.seen, wanted)


async def test_gates_through_kills(make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]) -> None:
    draw = random.Random(SEED)
    report(f"gates through kills: HEADGATE_GATES_SEED={SEED}")
    brokers = Brokers(make_broker, tmp_path / "store")
    await asyncio.to_thread(brokers.start)
    addresses = ",".join(f"{HOST}:{broker.grpc_port}" for broker in brokers.all)
    readers: list[tuple[Reader, list[Gate]]] = []
    """Each consumer, with the gates that were opened while it ran."""
    filled: list[Gate] = []
    async with Admin(addresses) as admin, GateAdmin(addresses) as gates:
        await admin.create_topic("t", PARTITIONS)
        clients = Clients(brokers, "t", PARTITIONS)
        for writer in clients.writers:
            writer.pause_s = 0.02
            writer.start()
        trouble = Round(brokers, draw)
        for number in range(ROUNDS):
            await asyncio.to_thread(clients.acked_in_all, 5, revive=True)
            gate_id = f"flood-{number}"
            rows = [draw.randrange(0, 400) for _ in range(PARTITIONS)]
            gate = await trouble.around(lambda: gates.open("t", rows, gate_id=gate_id))  # noqa: B023  # awaited here
            again = await gates.open("t", rows, gate_id=gate_id)
            assert again == dataclasses.replace(gate, expires_in_ms=again.expires_in_ms)
            for _, later in readers:
                later.append(gate)
            readers += [(reader(brokers.bootstrap, "t", PARTITIONS), []) for reader in (ConfluentReader, AiokafkaReader)]
            for one, _ in readers[-2:]:
                one.start()
            if number == 1:
                await trouble.around(lambda: gates.release("t", gate_id))  # noqa: B023
                continue
            refs = await asyncio.to_thread(upload, gate, files=2)
            done = await trouble.around(lambda: gates.fill("t", gate_id, refs))  # noqa: B023
            assert done.state is GateState.FILLED and done.rows == sum(rows)
            assert await gates.fill("t", gate_id, refs) == done
            filled.append(gate)
        await asyncio.to_thread(clients.acked_in_all, 5, revive=True)
        for writer in clients.writers:
            writer.stop()
        for writer in clients.writers:
            await asyncio.to_thread(writer.join, PATIENCE_S)
    shown = await asyncio.to_thread(CLIENTS["confluent"].consume, brokers.bootstrap, "t", range(PARTITIONS))
    log = {partition: [(read.offset, read.value or b"") for read in reads] for partition, reads in shown.items()}
    wrong = check_log(log)
    for writer in clients.writers:
        wrong += check_writer(writer.sent, log)
    assert wrong == []
    for gate in filled:
        for partition, history in expected(gate).items():
            window = gate.windows[partition]
            assert [one for one in log[partition] if window.base_offset <= one[0] < window.end_offset] == history
    for reader, later in readers:
        # The clients' own threads read.
        await until_async(
            lambda: not judge(reader, log, later) or reader.check(),  # noqa: B023  # called before the loop goes on
            lambda: f"a reader sees the log: {judge(reader, log, later)}",  # noqa: B023
            pause_s=0.1,
        )
    for reader, _ in readers:
        reader.stop()
    for reader, _ in readers:
        await asyncio.to_thread(reader.join, PATIENCE_S)
