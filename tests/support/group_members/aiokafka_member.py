"""A group member of aiokafka."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaConnectionError, KafkaError

from tests.support.group_members.common import settings, tell, until_stdin_closes

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        tell("assigned", partitions=[one.partition for one in assigned])

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        tell("revoked", partitions=[one.partition for one in revoked])


async def main() -> None:
    given = settings()
    stop = until_stdin_closes()
    logging.disable(logging.ERROR)  # the library logs every lost connection
    while (consumer := await _started(given)) is None:  # noqa: ASYNC110  # no event announces a broker
        await asyncio.sleep(0.05)
    while not stop.is_set():
        batches = await consumer.getmany(timeout_ms=200, max_records=500)
        positions = {}
        for place, records in batches.items():
            for record in records:
                tell("record", partition=record.partition, offset=record.offset)
            positions[place] = records[-1].offset + 1
        if positions:
            try:
                await consumer.commit(positions)
            except KafkaError as error:
                tell("commit_failed", text=repr(error))
            else:
                tell("committed", offsets={place.partition: offset for place, offset in positions.items()})
    await consumer.stop()
    tell("stopped")


async def _started(given: dict[str, Any]) -> AIOKafkaConsumer | None:
    """None while no broker answers: this library gives up at its first try."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=given["bootstrap"],
        group_id=given["group"],
        group_instance_id=given["instance"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=(ASSIGNORS[given["assignor"]],),
        session_timeout_ms=given["session_ms"],
        heartbeat_interval_ms=500,
        fetch_max_wait_ms=100,
        retry_backoff_ms=50,
        request_timeout_ms=5_000,
    )
    consumer.subscribe([given["topic"]], listener=Listener())
    try:
        await consumer.start()
    except KafkaConnectionError:
        await consumer.stop()
        return None
    return consumer


if __name__ == "__main__":
    asyncio.run(main())
