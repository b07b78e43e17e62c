"""Members of a consumer group that still use the classic protocol, while a group's clients change from one to the other. No I/O.

The first client with the new protocol makes a classic group a consumer group (`upgraded`). The others stay members: JoinGroup tells
the coordinator their subscriptions and what they have, and SyncGroup gives them the coordinator's assignment. No member leads.
Their generation is the member's epoch. A heartbeat sends a member back to JoinGroup when the group has a newer epoch, when the
coordinator waits for its partitions, or when a partition of its target is free now.

When the last client with the new protocol leaves, the group becomes classic again (`downgraded`), and rebalances.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from headgate.broker.groups.assignors import Partition
from headgate.broker.groups.consumer_events import ConsumerConfig, Topology
from headgate.broker.groups.consumer_group import ConsumerGroup
from headgate.broker.groups.consumer_member import Classic, Holding, Identity, Progress
from headgate.broker.groups.consumer_topics import Resolve
from headgate.broker.groups.events import (
    NO_MEMBER,
    GroupConfig,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Sync,
    SyncReply,
)
from headgate.broker.groups.group import Group
from headgate.broker.groups.member import (
    CONSUMER_PROTOCOL,
    Subscription,
    assignment_of,
    encode_assignment,
    subscription_of,
    without_repeats,
)
from headgate.broker.groups.records import GroupMetadata, MemberMetadata
from headgate.broker.runtime.errors import InvalidError, Reason

ClassicReply = JoinReply | SyncReply | HeartbeatReply | LeaveReply


def handle(
    group: ConsumerGroup, config: GroupConfig, event: Join | Sync | Heartbeat | Leave, topology: Topology, now_ms: int
) -> ClassicReply:
    """Handle a request of the classic protocol. The group then has rows for the log."""
    group.now_ms = now_ms
    match event:
        case Join():
            try:
                return _join(group, config, event, topology)
            except InvalidError as invalid:
                return JoinReply(error=invalid.reason, member_id=event.member_id)
        case Sync():
            error = _check(group, event)
            if error is not None:
                return SyncReply(error=error)
            holding = group.roster.holdings[event.member_id]
            # A member that must give up partitions learns it here, and joins again when it has.
            if holding.epoch < group.roster.epoch and holding.progress is not Progress.UNREVOKED:
                return SyncReply(error=Reason.REBALANCE_IN_PROGRESS)
            names = {topic.id: name for name, topic in topology.topics.items()}
            assigned = encode_assignment((names[topic], number) for topic, number in holding.assigned if topic in names)
            protocol = _protocol(group.members[event.member_id])
            return SyncReply(protocol_type=CONSUMER_PROTOCOL, protocol_name=protocol, assignment=assigned)
        case Heartbeat():
            error = _check(group, event)
            if error is None and _must_join(group, event.member_id):
                error = Reason.REBALANCE_IN_PROGRESS
            return HeartbeatReply(error=error)
        case Leave():
            return LeaveReply(
                members=tuple((member, group.remove(member.member_id, member.instance_id)) for member in event.members)
            )


def _join(group: ConsumerGroup, config: GroupConfig, event: Join, topology: Topology) -> JoinReply:
    protocols = without_repeats(event.protocols)
    subscription = subscription_of(protocols[0][1]) if protocols else None
    if event.protocol_type != CONSUMER_PROTOCOL or subscription is None:
        raise InvalidError(Reason.INCONSISTENT_GROUP_PROTOCOL, "a member of a consumer group is a consumer")
    if not config.session_timeout_ms_min <= event.session_timeout_ms <= config.session_timeout_ms_max:
        raise InvalidError(Reason.INVALID_SESSION_TIMEOUT, f"session time-out is invalid. ms=`{event.session_timeout_ms}`")
    member_id = _admit(group, event)
    before = group.members.get(member_id)
    now = Identity(
        member_id=member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        topics=subscription.topics,
        rebalance_timeout_ms=max(event.rebalance_timeout_ms, 1),
        classic=Classic(event.session_timeout_ms, protocols),
    )
    if now != before:
        group.roster.describe(now)
    changed = before is None or (before.topics, before.pattern) != (now.topics, None)
    holding = group.advance(member_id, topology, _ids(subscription, topology), changed=changed)
    return JoinReply(member_id=member_id, generation=holding.epoch, protocol_type=CONSUMER_PROTOCOL, protocol_name=_protocol(now))


def _admit(group: ConsumerGroup, event: Join) -> str:
    """The id of the member that joins. Raises InvalidError."""
    if event.member_id != NO_MEMBER:
        return group.roster.known(event.member_id, event.instance_id)
    former = None if event.instance_id is None else group.roster.static.get(event.instance_id)
    if former is not None:
        group.rename(former, event.fresh_member_id)
    elif len(group.members) >= group.config.members_max:
        raise InvalidError(Reason.GROUP_MAX_SIZE_REACHED, f"the group is full. members_max=`{group.config.members_max}`")
    return event.fresh_member_id


def _check(group: ConsumerGroup, event: Sync | Heartbeat) -> Reason | None:
    try:
        group.roster.known(event.member_id, event.instance_id)
    except InvalidError as error:
        return error.reason
    if event.generation != group.roster.holdings[event.member_id].epoch:
        return Reason.ILLEGAL_GENERATION
    if group.members[event.member_id].classic is None:
        return Reason.UNKNOWN_MEMBER_ID
    group.start_session(event.member_id)
    return None


def _must_join(group: ConsumerGroup, member_id: str) -> bool:
    roster = group.roster
    holding = roster.holdings[member_id]
    if holding.epoch < roster.epoch or holding.progress is Progress.UNREVOKED:
        return True
    return any(roster.is_free(partition, member_id) for partition in roster.target(member_id) - holding.assigned)


def _protocol(identity: Identity) -> str:
    return identity.classic.protocols[0][0] if identity.classic is not None else ""


def _ids(subscription: Subscription, topology: Topology) -> frozenset[Partition]:
    topics = topology.topics
    return frozenset((topics[name].id, number) for name, number in subscription.owned if name in topics)


def upgraded(
    group_id: str, group: Group, config: ConsumerConfig, resolve: Resolve, topology: Topology, now_ms: int
) -> ConsumerGroup | None:
    """A consumer group with the members and the assignment of a classic one; None if its members are no consumers.

    The caller ends the classic group with REBALANCE_IN_PROGRESS.
    """
    made = ConsumerGroup(group_id, config, resolve)
    made.now_ms = now_ms
    roster = made.roster
    roster.epoch = max(group.generation, 1) - 1
    roster.grow()
    targets: dict[str, frozenset[Partition]] = {}
    for member in group.roster:
        metadata = member.metadata(group.protocol) or member.protocols[0][1]
        subscription = subscription_of(metadata)
        if group.protocol_type != CONSUMER_PROTOCOL or subscription is None:
            return None
        roster.describe(
            Identity(
                member_id=member.id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=subscription.topics,
                rebalance_timeout_ms=max(member.rebalance_timeout_ms, 1),
                classic=Classic(member.session_timeout_ms, member.protocols),
            )
        )
        has = _ids(Subscription(frozenset(), assignment_of(member.assignment)), topology) - roster.owners.keys()
        roster.hold(member.id, Holding(epoch=roster.epoch, epoch_before=roster.epoch, assigned=frozenset(has)))
        targets[member.id] = frozenset(has)
        made.start_session(member.id)
    roster.aim(targets)
    return made


def downgraded(group_id: str, group: ConsumerGroup, config: GroupConfig, names: dict[uuid.UUID, str], now_ms: int) -> Group:
    """The classic group of a consumer group whose members all use the classic protocol."""
    members = [replace(member) for member in group.members.values()]
    first = members[0].classic
    assert first is not None
    known = [{name for name, _ in member.classic.protocols} for member in members if member.classic is not None]
    common = [name for name, _ in first.protocols if all(name in theirs for theirs in known)]
    protocol = common[0] if common else first.protocols[0][0]
    rows = tuple(
        MemberMetadata(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.classic.session_timeout_ms,
            subscription=dict(member.classic.protocols).get(protocol, member.classic.protocols[0][1]),
            assignment=encode_assignment(
                (names[topic], number) for topic, number in group.roster.holdings[member.member_id].assigned if topic in names
            ),
        )
        for member in members
        if member.classic is not None
    )
    metadata = GroupMetadata(
        protocol_type=CONSUMER_PROTOCOL,
        generation=group.roster.epoch,
        protocol=protocol,
        leader=rows[0].member_id,
        state_ms=-1,
        members=rows,
    )
    return Group.load(group_id, config, metadata, now_ms)
