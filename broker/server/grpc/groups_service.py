"""`headgate.v1.Groups`: consumer groups, their members, positions and lag."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.groups.consumer_events import ConsumerDescription
from headgate.broker.groups.consumer_member import Holding
from headgate.broker.groups.coordinator import Coordinator
from headgate.broker.groups.entry import CONSUMER, GroupListing
from headgate.broker.groups.member import CONSUMER_PROTOCOL
from headgate.broker.groups.standing import Standing
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.runtime.turns import Turn
from headgate.broker.server.grpc.bounds import Bounds, find_bounds
from headgate.broker.server.grpc.callers import is_forwarded, may_topic
from headgate.broker.server.grpc.errors import error_message
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.wire.grpc.headgate.v1 import groups_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from headgate.broker.wire.kafka.primitives import DecodeError

GROUPS = methods(groups_pb2.DESCRIPTOR.services_by_name["Groups"])
IDS_MAX = 1000
Readers = dict[str, dict[str, list[int]]]
"""By topic and group: positions, and records behind them."""


class GroupsService:
    """Describes groups. The broker that holds a group answers; any other broker asks it."""

    def __init__(self, server_state: ServerState, groups: Coordinator) -> None:
        self._engine = server_state.engine
        self._peers = server_state.peers
        self._groups = groups

    async def list_groups(self, request: groups_pb2.ListGroupsRequest, context: Context) -> groups_pb2.ListGroupsResponse:
        if not is_forwarded(context):
            return await self.everywhere()
        part = await self._own_groups()
        response = _merged([part])
        response.positions.extend(part.positions)
        return response

    async def everywhere(self, readers: Readers | None = None) -> groups_pb2.ListGroupsResponse:
        """The groups of all brokers, with their lags. Raises the error of a broker that does not answer: part of a list would be
        wrong.

        Args:
            readers: gets the positions and the lag of each group in each topic.
        """
        parts = [await self._own_groups()]
        asked = [(broker, groups_pb2.ListGroupsRequest()) for broker in self._peers.others()]
        for answer in await self._peers.ask(asked, GROUPS["ListGroups"]):
            if answer.error is not None:
                raise answer.error
            parts.append(answer.response)
        each = self._engine.turns.begin().each
        seen = {topic for topic in {row.topic for part in parts for row in part.positions} if may_topic(Operation.DESCRIBE, topic)}
        bounds = await find_bounds(self._engine, self._peers, seen)
        for part in parts:
            async for row in each(part.positions):
                if row.topic not in seen:
                    part.groups[row.group].positions -= 1
                    continue
                bound = bounds.get((row.topic, row.partition))
                lag = 0 if bound is None else bound.lag(row.offset)
                part.groups[row.group].lag_records += lag
                if readers is not None:
                    found = readers.setdefault(row.topic, {}).setdefault(part.groups[row.group].id, [0, 0])
                    found[0] += 1
                    found[1] += lag
        return _merged(parts)

    async def _own_groups(self) -> groups_pb2.ListGroupsResponse:
        """The groups that this broker holds, in order, and their positions."""
        response = groups_pb2.ListGroupsResponse()
        await self._groups.topic.confirm()
        each = self._engine.turns.begin().each
        async for number, row in each(enumerate(sorted(self._groups.list_groups()))):
            positions = self._groups.positions(row.group_id)
            response.groups.append(_summary(row, len(positions)))
            async for topic, partition, value in each(positions):
                response.positions.add(group=number, topic=topic, partition=partition, offset=value.offset)
        return response

    async def describe_groups(
        self, request: groups_pb2.DescribeGroupsRequest, context: Context
    ) -> groups_pb2.DescribeGroupsResponse:
        if len(request.ids) > IDS_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many ids. ids=`{len(request.ids)}` max=`{IDS_MAX}`")
        doubt = await self._doubt()
        turn = self._engine.turns.begin()
        if is_forwarded(context):
            return groups_pb2.DescribeGroupsResponse(
                groups=[await self._describe(group_id, doubt, turn) async for group_id in turn.each(request.ids)]
            )
        found: dict[str, groups_pb2.GroupDescription] = {}
        elsewhere: dict[str, tuple[Incarnation, list[str]]] = {}
        async for group_id in turn.each(request.ids):
            holder = self._holder(group_id)
            if holder is None:
                found[group_id] = await self._describe(group_id, doubt, turn)
            else:
                elsewhere.setdefault(holder.id, (holder, []))[1].append(group_id)
        asked = [(broker, groups_pb2.DescribeGroupsRequest(ids=ids)) for broker, ids in elsewhere.values()]
        answers = await self._peers.ask(asked, GROUPS["DescribeGroups"])
        for (_, ids), answer in zip(elsewhere.values(), answers, strict=True):
            for number, group_id in enumerate(ids):
                found[group_id] = (
                    groups_pb2.GroupDescription(group=groups_pb2.Group(id=group_id), error=error_message(answer.error))
                    if answer.error is not None
                    else answer.response.groups[number]
                )
        bounds = await find_bounds(
            self._engine, self._peers, {row.topic for description in found.values() for row in description.positions}
        )
        for description in found.values():
            await _add_bounds(description, bounds, turn)
        return groups_pb2.DescribeGroupsResponse(groups=[found[group_id] for group_id in request.ids])

    # -- the small steps

    def _holder(self, group_id: str) -> Incarnation | None:
        """The other broker that holds a group. None: this broker holds it, or reports why the holder cannot be asked."""
        holder = self._groups.topic.holder(group_id)
        return None if holder is None or holder.id == self._engine.incarnation_id else holder

    async def _doubt(self) -> HeadgateError | None:
        """The error if another broker may hold this broker's groups by now, or None."""
        try:
            await self._groups.topic.confirm()
        except HeadgateError as error:
            return error
        return None

    async def _describe(self, group_id: str, doubt: HeadgateError | None, turn: Turn) -> groups_pb2.GroupDescription:
        """The description of a group that this broker holds, without the ends of partitions."""
        try:
            if doubt is not None:
                raise doubt
            shown = self._shown(group_id)
            if shown is None:
                raise _unknown(group_id)
        except HeadgateError as error:
            return groups_pb2.GroupDescription(group=groups_pb2.Group(id=group_id), error=error_message(error))
        committed = {(topic, partition): value for topic, partition, value in self._groups.positions(group_id)}
        description = groups_pb2.GroupDescription(
            group=_summary(shown.listing, len(committed)), protocol=shown.protocol, generation=shown.generation
        )
        owners: dict[tuple[str, int], str] = {}
        async for member, places in turn.each(shown.members):
            owned = list(places())
            owners.update((place, member.id) for place in owned)
            member.partitions = len(owned)
            description.members.append(member)
        async for topic, partition in turn.each(sorted(committed.keys() | owners.keys())):
            if not self._exists(topic, partition):
                continue
            row = description.positions.add(
                topic=topic,
                partition=partition,
                leader_epoch=-1,
                log_start=-1,
                high_watermark=-1,
                member_id=owners.get((topic, partition), ""),
            )
            value = committed.get((topic, partition))
            if value is not None:
                row.offset, row.leader_epoch, row.metadata = value.offset, value.leader_epoch, value.metadata
                row.committed_ms = value.commit_ms
        return description

    def _shown(self, group_id: str) -> _Shown | None:
        """A group of any protocol that this broker holds; None if there is none. Raises HeadgateError."""
        shard = self._groups.look(group_id)
        consumer = None if shard is None else shard.find_consumer(group_id)
        if consumer is not None:
            known = self._engine.manifest.topics_by_id
            return _shown_consumer(group_id, consumer.describe(), {key: topic.name for key, topic in known.items()})
        group = self._groups.find(group_id)
        return None if group is None else _shown_classic(group_id, group)

    def _exists(self, topic: str, partition: int) -> bool:
        """Whether the partition exists: a garbled assignment may name any."""
        known = self._engine.manifest.topics.get(topic)
        return known is not None and 0 <= partition < known.partitions


@dataclass(frozen=True, slots=True)
class _Shown:
    """A group of any protocol. `members`: each with a function that returns its partitions."""

    listing: GroupListing
    protocol: str
    generation: int
    members: Sequence[tuple[groups_pb2.Member, Callable[[], Iterable[tuple[str, int]]]]]


def _shown_classic(group_id: str, group: Standing) -> _Shown:
    shown = group.describe()
    reads = shown.protocol_type == CONSUMER_PROTOCOL
    members = [
        (
            _member(member.member_id, member.instance_id, member.client_id, member.client_host),
            partial(_owned, member.assignment if reads else b""),
        )
        for member in shown.members
    ]
    listing = GroupListing(group_id, shown.protocol_type, shown.state, len(members))
    return _Shown(listing, shown.protocol, group.generation, members)


def _shown_consumer(group_id: str, shown: ConsumerDescription, names: Mapping[uuid.UUID, str]) -> _Shown:
    """A group of KIP-848. Its generation is its epoch."""

    def owned(holding: Holding) -> list[tuple[str, int]]:
        return [(names[topic_id], partition) for topic_id, partition in holding.all if topic_id in names]

    members = [
        (_member(member.member_id, member.instance_id, member.client_id, member.client_host), partial(owned, holding))
        for member, holding, _ in shown.members
    ]
    listing = GroupListing(group_id, CONSUMER_PROTOCOL, shown.state, len(members), CONSUMER)
    return _Shown(listing, shown.assignor, shown.epoch, members)


def _member(member_id: str, instance_id: str | None, client_id: str, client_host: str) -> groups_pb2.Member:
    return groups_pb2.Member(
        id=member_id, instance_id=instance_id or "", client_id=client_id, client_host=client_host.removeprefix("/")
    )


def _merged(parts: Iterable[groups_pb2.ListGroupsResponse]) -> groups_pb2.ListGroupsResponse:
    """The groups of all parts, by id. While a group moves, two brokers may report it for a moment."""
    return groups_pb2.ListGroupsResponse(
        groups=sorted({row.id: row for part in parts for row in part.groups}.values(), key=lambda row: row.id)
    )


def _summary(group: GroupListing, positions: int) -> groups_pb2.Group:
    return groups_pb2.Group(
        id=group.group_id,
        state=group.state.value,
        protocol_type=group.protocol_type,
        members=group.members,
        positions=positions,
    )


async def _add_bounds(description: groups_pb2.GroupDescription, bounds: Bounds, turn: Turn) -> None:
    """Set a group's lag, if it is known."""
    async for row in turn.each(description.positions):
        bound = bounds.get((row.topic, row.partition))
        if bound is None:
            continue
        row.log_start, row.high_watermark = bound.log_start, bound.high_watermark
        if row.HasField("offset"):
            row.lag_records = bound.lag(row.offset)
            description.group.lag_records += row.lag_records


def _owned(assignment: bytes) -> Iterator[tuple[str, int]]:
    """The partitions in a consumer's assignment; none if it cannot be read. Every version begins like the first."""
    if len(assignment) <= 2:
        return
    try:
        decoded, _ = ConsumerProtocolAssignment.decode(assignment, 2, 0)
    except DecodeError:
        return
    for topic in decoded.assigned_partitions:
        for partition in topic.partitions:
            yield topic.topic, partition


def _unknown(group_id: str) -> InvalidError:
    return InvalidError(Reason.GROUP_ID_NOT_FOUND, f"group does not exist. group=`{group_id}`")
