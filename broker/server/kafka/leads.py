"""Answers about leads: their addresses and epochs, and the doubt whether this broker still leads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.constants import ID_UNKNOWN
from headgate.broker.server.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Incarnation, Topic
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.runtime.turns import Turn
    from headgate.broker.server.kafka.context import Context
    from headgate.broker.wire.kafka.messages.list_offsets import ListOffsetsResponse


def broker_address(broker: Incarnation, context: Context) -> tuple[str, int]:
    """(host, port) of a broker's Kafka port, of the listener that the client uses. For this broker it is the address that its
    listener announces."""
    if broker.id == context.engine.incarnation_id:
        return context.host, context.port
    return broker.kafka_address(context.listener)


def lead_of(topic: Topic, number: int, context: Context) -> tuple[ErrorCode, int, int]:
    """The lead of a partition: error code, broker id, leader epoch. For a moment there may be no lead: clients then ask again."""
    lead = context.engine.lead(topic.id, number)
    if lead is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, ID_UNKNOWN, ID_UNKNOWN
    return ErrorCode.NONE, lead[0].broker_id, lead[1]


class Replicas:
    """The replicas that clients are shown for a partition. All are in sync, because the store makes the copies.

    Clients and tools compare these lists with the replication factor and with `min.insync.replicas`, so a list always has as many
    brokers as the topic was created with. The lead is the first one, as Kafka's preferred leader is, and the live brokers follow
    in a ring. While fewer brokers run than the topic wants, the lowest free ids fill the list: brokers that come back, or that
    another flood raises, get those ids. Clients know such ids from Kafka, where they are brokers that are down.

    Args:
        broker_ids: the live brokers, in ascending order.
        lanes: the ids of the live lanes.
    """

    def __init__(self, broker_ids: Iterable[int], lanes: Sequence[int] = ()) -> None:
        self._live = list(broker_ids)
        self.lanes = lanes
        self._known: dict[tuple[int, int], list[int]] = {}

    def of(self, lead: int, replication_factor: int) -> list[int]:
        """The broker ids of a partition, the lead first. The caller does not change the list."""
        if replication_factor == 1:
            return [lead]
        found = self._known.get((lead, replication_factor))
        if found is None:
            live = [lead, *(one for one in self._live if one > lead), *(one for one in self._live if one < lead)]
            free = (number for number in count(1) if number != lead and number not in self._live)
            found = [*live[:replication_factor], *islice(free, max(0, replication_factor - len(live)))]
            self._known[lead, replication_factor] = found
        return found


async def find_doubt(context: Context) -> HeadgateError | None:
    """The error if another broker may lead this broker's partitions by now, or None. Check it before an answer reports an end of
    a partition."""
    try:
        await context.engine.confirm()
    except HeadgateError as error:
        return error
    return None


async def find_group_doubt(context: Context) -> HeadgateError | None:
    """The error if another broker may hold this broker's groups by now, or None. Check it before an answer reports the state of
    a group."""
    try:
        await context.groups.topic.confirm()
    except HeadgateError as error:
        return error
    return None


def check_leader_epoch(log: PartitionLog, current_leader_epoch: int) -> None:
    """Compare the client's leader epoch (-1: it sent none) with the partition's (KIP-320).

    Raises:
        InvalidError: FENCED_LEADER_EPOCH if the client's epoch is older, UNKNOWN_LEADER_EPOCH if it is newer.
    """
    if current_leader_epoch in (ID_UNKNOWN, log.leader_epoch):
        return
    older = current_leader_epoch < log.leader_epoch
    raise InvalidError(
        Reason.FENCED_LEADER_EPOCH if older else Reason.UNKNOWN_LEADER_EPOCH,
        f"leader epoch is not the partition's. topic=`{log.topic.name}` partition=`{log.number}` epoch=`{current_leader_epoch}` "
        f"current=`{log.leader_epoch}`",
    )


def epoch_at(log: PartitionLog, offset: int) -> int:
    """The leader epoch in which the record at `offset` was written, or would be written next; -1 if it is unknown."""
    epoch = log.epochs.at(offset)
    return ID_UNKNOWN if epoch is None else epoch


async def is_led_elsewhere(response: ListOffsetsResponse, turn: Turn) -> bool:
    """Whether another broker leads one of the partitions."""
    async for partition in turn.each(partition for topic in response.topics for partition in topic.partitions):
        if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return True
    return False
