"""The coordinator of transactions on a real engine over a store in memory, while its partition goes to another broker.

A mismatch means that a coordinator which others have followed ends a producer for a reason that no longer holds.
"""

from __future__ import annotations

from headgate.broker.coordination.effects import shard_of
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.store.memory import MemoryStore
from headgate.broker.transactions.coordinator import TOPIC
from headgate.broker.transactions.rules import Reply
from tests.support import nodes
from tests.support.errors import raises


async def test_a_coordinator_that_hands_an_id_over_refuses_no_producer() -> None:
    """The next one may know a transaction that this one has not heard of."""
    failures: list[HeadgateError] = []
    node = nodes.make(Settings.from_values({"transaction_topic_num_partitions": 2}), MemoryStore(), ManualClock(), failures.append)
    await node.start()
    await node.transactions.loaded()
    try:
        producer = await node.transactions.init("payer", 60_000, None)
        assert producer.error is None
        ends = await node.transactions.end("payer", producer.producer_id, producer.epoch, commit=True, version=2)
        assert ends == Reply(Reason.INVALID_TRANSACTION_STATE), "no transaction is ongoing"
        topic = node.engine.topic(TOPIC)
        log = node.engine.partition(topic, shard_of("payer", topic.partitions))
        log.refuse(RetryError(Reason.NOT_LEADER, "the partition is being handed over to another broker"))
        with raises(RetryError, Reason.NOT_COORDINATOR):
            await node.transactions.end("payer", producer.producer_id, producer.epoch, commit=True, version=2)
    finally:
        await nodes.end(node)
    assert not failures
