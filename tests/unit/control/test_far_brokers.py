"""A broker that is far from the leader: every byte takes a while on its way.

Compared: the members, and the brokers that the leader replaced. A mismatch means that a far broker never joins, and that the others
carry its load, or that it is replaced again and again.
"""

from __future__ import annotations

import grpc

from headgate.broker.control.stream import connect
from tests.support.network import Doors
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.world import HOST, Broker, until

DELAY_S = 1.2
"""Of each way. A new connection takes two round trips: longer than a second, in which gRPC gave up before."""


async def test_a_broker_joins_a_leader_that_is_far_away(make_world: MakeWorld) -> None:
    values = {"cluster_member_timeout_ms": 2000}
    world = await make_world(1, **values)
    leader, doors = world.brokers[0], Doors()
    doors.delays_s["leader"] = DELAY_S
    door = await doors.door("leader", leader.port, "far")

    def far(address: str) -> grpc.aio.Channel:
        return connect(f"{HOST}:{door}" if address == leader.address else address)

    broker = Broker(world.objects, 2, values)
    broker.connect = far  # type: ignore[method-assign]
    world.brokers.append(broker)
    try:
        await broker.start()
        term = leader.participant.leader
        assert term is not None
        await until(lambda: term.term.detector.round_trip_s(broker.engine.incarnation_id) >= 2 * DELAY_S)
        # The first report took a round trip, which is longer than the time-out for silence.
        await until(lambda: broker.participant.membership is not None and broker.participant.membership.round_trip_s >= 2 * DELAY_S)
        assert not sum(leader.participant.replaced.values())
        assert not broker.failures
    finally:
        await broker.close()
        doors.close()
