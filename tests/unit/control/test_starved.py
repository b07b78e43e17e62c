"""A cluster on a machine that gives its brokers too little CPU time.

Runs: whole brokers in one event loop. The test reports lateness to the parts that measure it, so that nothing depends on this
machine's lateness. Compared: the open incarnations, the leader, and its `Describe`. A mismatch means that a starved broker is
replaced, or that the leader does not say why it keeps a silent one.
"""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from headgate.broker.cluster.liveness import STRETCHED_MAX, Answer, Heard
from headgate.broker.control import replication
from headgate.broker.control.probe import ask
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_cut_off import incarnations, silence
from tests.unit.control.test_replication import replicating, send
from tests.unit.control.world import World

LATE_S = 1.5


async def describe(world: World) -> control_pb2.DescribeResponse:
    answer: control_pb2.DescribeResponse = await world.leader.call("Control.Describe", control_pb2.DescribeRequest())
    return answer


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_leader_that_stands_still_during_a_probe_reads_the_answer(turns: int) -> None:
    """The kernel of the asked broker accepts the connection while the leader's loop stands still for longer than the limit."""
    limit_s = 0.1
    with socket.create_server(("127.0.0.1", 0)) as listening:
        probing = asyncio.create_task(ask("127.0.0.1", listening.getsockname()[1], limit_s, Clock()))
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(1.5 * limit_s)  # noqa: ASYNC251  # the loop stands still
        assert await probing is Answer.ACCEPTED


async def test_a_member_that_gives_its_stream_up_joins_again(world: World) -> None:
    """Stands for a member that did not hear a starved leader: its process lives, and its address accepts connections."""
    before, term = incarnations(world), world.leader.term
    sessions = term.sessions.by_id
    earlier = dict(sessions)
    for broker in world.brokers:
        if broker.participant.membership is not None and broker.participant.membership._stream is not None:
            broker.participant.membership._stream.give_up("the leader is silent")
    await until_async(lambda: sessions.keys() == earlier.keys() and not set(sessions.values()) & set(earlier.values()))
    assert incarnations(world) == before and world.leader.participant.leader is term
    assert not any(broker.failures for broker in world.brokers)


async def test_a_leader_that_is_late_with_its_lease_is_not_replaced(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker takes the lease; the previous leader joins it, and keeps its segments."""
    world = await make_world(3, cluster_lease_ttl_ms=500)
    before, late = incarnations(world), world.leader
    term = world.leader.term

    async def starved(*request: object) -> None:
        raise RetryError(Reason.TIMED_OUT, "the leader is starved")

    monkeypatch.setattr(term.sessions, "admit", starved)
    next(task for task in term._tasks.running if task.get_name() == "lease").cancel()
    for broker in world.brokers:
        if broker.participant.membership is not None and broker.participant.membership._stream is not None:
            broker.participant.membership._stream.give_up("the leader is silent")
    await until_async(lambda: any(broker.participant.leader is not None for broker in world.brokers if broker is not late))
    await term.lease.write()
    await until_async(lambda: late.participant.membership is not None)
    assert world.leader is not late and incarnations(world) == before
    await until_async(lambda: len(world.leader.term.sessions.by_id) == 2)
    assert incarnations(world) == before and not any(broker.failures for broker in world.brokers)


async def test_a_silent_broker_on_a_starved_machine_is_waited_for_and_people_are_told(world: World) -> None:
    before, term = incarnations(world), world.leader.term
    silent, other = term.sessions.by_id.values()
    term.term.detector.heard(silent.incarnation.id, term.clock.monotonic(), late_s=LATE_S)
    timeout_s = term.term.detector._timeout_s
    silence(term, silent, seconds=timeout_s + 1.0)
    await until_async(lambda: term.term.orders.decisions)
    answer = await describe(world)
    wait = answer.decisions[0]
    assert (wait.kind, wait.error, wait.under_way) == ("wait", "", False)
    assert wait.why.startswith(f"broker {silent.incarnation.broker_id} is waited for: it was silent for ")
    assert f"time-out {timeout_s:g} s; it ran {LATE_S:.1f} s late" in wait.why
    rows = {row.incarnation_id: row for row in answer.members}
    row = rows[silent.incarnation.id]
    assert row.starved and row.late_ms >= LATE_S * 1000
    assert timeout_s * 1000 < row.silence_ms_max <= STRETCHED_MAX * timeout_s * 1000
    assert not rows[other.incarnation.id].starved or rows[other.incarnation.id].late_ms > 0
    assert incarnations(world) == before and term.sessions.by_id.keys() == {silent.incarnation.id, other.incarnation.id}


async def test_what_a_member_reports_of_itself_reaches_the_leader(make_world: MakeWorld) -> None:
    world = await make_world(2)
    term = world.leader.term
    member = next(broker for broker in world.brokers if broker.participant.leader is None)
    now_s = member.engine.clock.monotonic()
    member.participant.attention._late.observe(LATE_S, now_s)
    await until_async(lambda: term.term.lateness_of(member.engine.incarnation_id, member.engine.clock.monotonic())[0] >= LATE_S)
    row = next(row for row in (await describe(world)).members if row.incarnation_id == member.engine.incarnation_id)
    assert row.starved and row.late_ms >= LATE_S * 1000


async def test_a_silent_follower_on_a_starved_machine_is_kept(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower's timeout grows as those of brokers do, up to the same limit."""
    silences: list[float] = []
    silence_s = 0.0

    class Silent(Heard):
        def silent_s(self, at_s: float) -> float:
            silences.append(silence_s)
            return silence_s

    monkeypatch.setattr(replication, "Heard", Silent)
    monkeypatch.setattr(replication, "LOOK_S", 0.01)
    _, lead, _ = await replicating(make_world)
    follower = lead.engine.manifest.followers[lead.engine.incarnation_id]
    lead.participant.attention._late.observe(LATE_S, lead.engine.clock.monotonic())
    silence_s = replication.SILENCE_S + 1.0
    await until_async(lambda: silences.count(silence_s) >= 10)
    assert await send(lead, 1) == 1
    assert lead.engine.replicator.counts and lead.engine.manifest.followers[lead.engine.incarnation_id] == follower
    silence_s = STRETCHED_MAX * replication.SILENCE_S + 1.0
    await until_async(lambda: lead.engine.manifest.followers[lead.engine.incarnation_id] != follower)
