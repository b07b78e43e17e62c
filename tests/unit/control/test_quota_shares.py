"""Quotas in a cluster of whole brokers: every broker knows them at once, and the leader divides them by use.

Compared: the shares of two brokers' meters while clients of one of them want more than its equal share. A mismatch means that
clients of one broker wait although the quota is not used up, or that brokers together give more than the quota.
"""

from __future__ import annotations

from headgate.broker.cluster.edits.quotas import AlterQuotas
from headgate.broker.cluster.meters import Meter
from headgate.broker.cluster.quotas import Entity
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.world import Broker

LIMIT = 1e6


def _is_limited(broker: Broker) -> bool:
    client = broker.engine.meters.client("alice", "etl")
    return client is not None and client.produce is not None


def _meter(broker: Broker) -> Meter:
    client = broker.engine.meters.client("alice", "etl")
    assert client is not None and client.produce is not None
    return client.produce


async def test_the_leader_divides_a_quota_by_use(make_world: MakeWorld) -> None:
    world = await make_world(2)
    leader, follower = world.brokers
    await follower.engine.change_access(AlterQuotas(Entity(user="alice"), {"producer_byte_rate": LIMIT}))
    await until_async(lambda: leader.engine.meters.is_on and follower.engine.meters.is_on)
    assert _meter(leader).share == _meter(follower).share == LIMIT / 2

    def busy(broker: Broker) -> bool:
        _meter(broker).take(LIMIT, broker.engine.clock.monotonic())
        return _meter(broker).share > LIMIT * 0.9

    for one, other in ((follower, leader), (leader, follower)):
        await until_async(lambda one=one: busy(one))
        await until_async(lambda other=other: _meter(other).share < LIMIT * 0.1)
        assert _meter(one).share + _meter(other).share <= LIMIT * 1.01
        # Its clients are quiet from now on: what they owe is gone with the old quota.
        for value in (None, LIMIT):
            await leader.engine.change_access(AlterQuotas(Entity(user="alice"), {"producer_byte_rate": value}))
            # Each broker's next meter is a new one only if the broker has seen the time without a quota.
            await until_async(lambda value=value: all(_is_limited(broker) == (value is not None) for broker in world.brokers))
        await until_async(lambda one=one: _meter(one).wait_s(one.engine.clock.monotonic()) == 0)
    assert {broker_id for broker_id, _ in leader.participant.leader.quotas.uses({leader.engine.incarnation_id: 1})} <= {1}
