"""The rules of one consumer group: KIP-848 as a pure state machine.

Members send heartbeats, and the coordinator does the rest. Theory of operation::

    subscriptions, members or topics change ──▶ the group's epoch grows
    the group's epoch is above the target's ──▶ the assignor makes the next target, with that epoch
    a member is not at its target           ──▶ it goes one step (`consumer_member.reconcile`) and gets its new partitions as the
                                                answer to its heartbeat

Each member goes on by itself. A partition that moves waits for its old owner alone; all others are read meanwhile.

Checks of a heartbeat, in this order: GROUP_MAX_SIZE_REACHED or UNRELEASED_INSTANCE_ID (a join, epoch 0), UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH. A member that was fenced joins again. A heartbeat with the epoch before the present one is
accepted if the answer that changed it may be lost: the member has nothing that it may not have.

`heartbeat` and `tick` change the group at once, and `roster.take_rows` then has rows for the log. The caller sends no answer before
these rows, and all earlier ones, are durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.broker.coordination.timers import Timers
from headgate.broker.groups.assignors import ASSIGNORS, Assignment, Partition
from headgate.broker.groups.consumer_events import (
    ConsumerConfig,
    ConsumerDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerState,
    Topology,
)
from headgate.broker.groups.consumer_member import LEAVES, LEAVES_FOR_NOW, Holding, Identity, Progress, reconcile
from headgate.broker.groups.consumer_roster import ConsumerRoster
from headgate.broker.groups.consumer_topics import Resolve, Subscriptions
from headgate.broker.runtime.errors import InvalidError, Reason

UNSETTLED_MS = 3_000
"""After a change of the group, members are asked for heartbeats more often for this time. They then need no whole interval to hear
what they must give up, and others wait for."""
UNSETTLED_INTERVAL_MS = 500
"""librdkafka gives up a heartbeat after twice the interval."""
UNSETTLED_MS_PER_MEMBER = 2
"""The interval of large groups in this time, so that a group sends at most 500 heartbeats a second."""
_SESSION, _REBALANCE = 0, 1
"""Kinds of timers of a member."""


class ConsumerGroup:
    """One consumer group."""

    def __init__(self, group_id: str, config: ConsumerConfig, resolve: Resolve) -> None:
        self.config = config
        self.roster = ConsumerRoster(group_id)
        self.members: Mapping[str, Identity] = self.roster.members
        self.subscriptions = Subscriptions(resolve, lambda member_id: {topic for topic, _ in self.roster.target(member_id)})
        self._timers: Timers[tuple[int, str]] = Timers()
        self.now_ms = 0
        self._unsettled_until_ms = 0

    def loaded(self, now_ms: int) -> None:
        """Called when the whole log was replayed: the members' sessions start.

        The topics of the epoch are not stored. At the first heartbeat the group's epoch grows only if the present topics need
        other targets, as in Kafka, which stores a hash of the topics. Otherwise each takeover would refuse the commits of members
        until their next heartbeat (STALE_MEMBER_EPOCH).
        """
        self.now_ms = now_ms
        self.roster.loaded()
        for member_id, holding in self.roster.holdings.items():
            self.start_session(member_id)
            if holding.progress is Progress.UNREVOKED:
                self._timers.set((_REBALANCE, member_id), now_ms + self.members[member_id].rebalance_timeout_ms)

    # -- events

    def heartbeat(self, event: ConsumerHeartbeat, topology: Topology, now_ms: int) -> ConsumerHeartbeatReply:
        """ConsumerGroupHeartbeat."""
        self.now_ms = now_ms
        try:
            return self._leave(event) if event.epoch in (LEAVES, LEAVES_FOR_NOW) else self._heartbeat(event, topology)
        except InvalidError as error:
            return ConsumerHeartbeatReply(error=error.reason, message=error.message)

    def _heartbeat(self, event: ConsumerHeartbeat, topology: Topology) -> ConsumerHeartbeatReply:
        roster = self.roster
        if event.pattern:
            self.subscriptions.match(event.pattern, topology)
        changed = False
        if event.epoch == 0:
            member_id, changed = self._join(event)
        else:
            member_id = self.roster.known(event.member_id, event.instance_id)
            self.roster.check_epoch(member_id, event.epoch, event.owned)
        changed = self._describe(member_id, event) or changed
        self.subscriptions.see(member_id, event.viewer)
        before = roster.holdings[member_id]
        holding = self.advance(member_id, topology, event.owned, changed=changed)
        shows = event.epoch == 0 or event.is_full or holding.assigned != before.assigned
        return ConsumerHeartbeatReply(
            member_id=member_id,
            epoch=holding.epoch,
            heartbeat_interval_ms=self._interval_ms(),
            assignment=holding.assigned if shows else None,
        )

    def advance(self, member_id: str, topology: Topology, owned: frozenset[Partition] | None, *, changed: bool) -> Holding:
        """Make a new target if one is due, and let a member go one step towards it. Returns what the member holds now.

        Args:
            owned: what the member says it has; None: it says nothing.
            changed: members or subscriptions have.
        """
        roster = self.roster
        followed = self.subscriptions.follow(self.members.values(), topology, changed=changed)
        plan = self._plan() if followed or changed or roster.epoch > roster.target_epoch else None
        if changed or (plan is not None and followed and not roster.is_at(plan)):
            self._grow()
        if plan is not None and roster.epoch > roster.target_epoch:
            roster.aim(plan)
        before = roster.holdings[member_id]
        holding = reconcile(
            before, roster.target(member_id), roster.target_epoch, owned, lambda partition: roster.is_free(partition, member_id)
        )
        if holding != before:
            self._hold(member_id, holding)
        self.start_session(member_id)
        return holding

    def _plan(self) -> Assignment:
        return ASSIGNORS[self.roster.assignor](
            self.subscriptions.by_member(self.members), self.subscriptions.read, self.roster.targets
        )

    def _interval_ms(self) -> int:
        """Pause before the next heartbeat: short while members wait for each other."""
        usual_ms = self.config.heartbeat_interval_ms
        if self.now_ms >= self._unsettled_until_ms and self.state is ConsumerState.STABLE:
            return usual_ms
        return min(usual_ms, max(UNSETTLED_INTERVAL_MS, UNSETTLED_MS_PER_MEMBER * len(self.members)))

    @property
    def is_classic(self) -> bool:
        """True if all members still use the classic protocol."""
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    def tick(self, now_ms: int) -> None:
        """Remove members whose session or time to give up partitions is over."""
        self.now_ms = now_ms
        while (due := self._timers.pop_due(now_ms)) is not None:
            self.drop(due[1])

    @property
    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms

    # -- joins and ends

    def _join(self, event: ConsumerHeartbeat) -> tuple[str, bool]:
        """(member id, whether the member is new)."""
        roster = self.roster
        member_id, instance_id = event.member_id or event.fresh_member_id, event.instance_id
        if member_id in self.members:
            return self.roster.known(member_id, instance_id), False
        former = None if instance_id is None else roster.static.get(instance_id)
        if former is not None:
            if roster.holdings[former].epoch != LEAVES_FOR_NOW:
                raise InvalidError(
                    Reason.UNRELEASED_INSTANCE_ID, f"another member has the instance id. instance_id=`{instance_id}`"
                )
            self.rename(former, member_id)
            return member_id, False
        if len(self.members) >= self.config.members_max:
            raise InvalidError(Reason.GROUP_MAX_SIZE_REACHED, f"the group is full. members_max=`{self.config.members_max}`")
        roster.describe(Identity(member_id=member_id, instance_id=instance_id))
        return member_id, True

    def rename(self, former: str, member_id: str) -> None:
        """A static member came back with a new id."""
        self.roster.rename(former, replace(self.members[former], member_id=member_id))
        self.subscriptions.forget(former)
        self._timers.cancel((_SESSION, former))
        self._timers.cancel((_REBALANCE, former))

    def _leave(self, event: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
        member_id = self.roster.known(event.member_id, event.instance_id)
        if event.epoch == LEAVES_FOR_NOW and self.members[member_id].instance_id is not None:
            self._hold(member_id, replace(self.roster.holdings[member_id], epoch=LEAVES_FOR_NOW))
        else:
            self.drop(member_id)
        return ConsumerHeartbeatReply(member_id=member_id, epoch=event.epoch)

    def remove(self, member_id: str, instance_id: str | None) -> Reason | None:
        """A member leaves, or an administrator removes it. Returns the error."""
        try:
            self.drop(self.roster.known(member_id or self.roster.static.get(instance_id or "", ""), instance_id))
        except InvalidError as error:
            return error.reason
        return None

    def drop(self, member_id: str) -> None:
        self.roster.remove(member_id)
        self.subscriptions.forget(member_id)
        self._timers.cancel((_SESSION, member_id))
        self._timers.cancel((_REBALANCE, member_id))
        self._grow()

    # -- checks

    def check_commit(self, member_id: str, epoch: int) -> Reason | None:
        """The reason why the sender of a commit, or of a question for positions, is refused; or None."""
        if not self.members and epoch < 0:
            return None
        if member_id not in self.members:
            return Reason.UNKNOWN_MEMBER_ID
        if epoch == self.roster.holdings[member_id].epoch:
            return None
        return Reason.STALE_MEMBER_EPOCH if self.members[member_id].classic is None else Reason.ILLEGAL_GENERATION

    # -- subscriptions and assignments

    def _describe(self, member_id: str, event: ConsumerHeartbeat) -> bool:
        """Take what a member says about itself. True if what it reads, or how it is assigned, has changed."""
        before = self.members[member_id]
        said: dict[str, object] = {
            "rack_id": event.rack_id,
            "rebalance_timeout_ms": None if event.rebalance_timeout_ms == -1 else event.rebalance_timeout_ms,
            "topics": event.topics,
            "assignor": event.assignor,
        }
        now = replace(before, client_id=event.client_id, client_host=event.client_host, classic=None)
        now = replace(now, **{name: value for name, value in said.items() if value is not None})  # type: ignore[arg-type]
        if event.pattern is not None:
            now = replace(now, pattern=event.pattern or None)
        if now != before:
            self.roster.describe(now)
        return (now.topics, now.pattern, now.assignor) != (before.topics, before.pattern, before.assignor)

    def is_subscribed(self, topic: str) -> bool:
        """True if a member reads a topic."""
        return self.subscriptions.has(self.members.values(), topic)

    def _grow(self) -> None:
        self.roster.grow()
        self._unsettled_until_ms = self.now_ms + UNSETTLED_MS

    def _hold(self, member_id: str, holding: Holding) -> None:
        before = self.roster.holdings[member_id]
        self.roster.hold(member_id, holding)
        if holding.progress is not Progress.UNREVOKED:
            self._timers.cancel((_REBALANCE, member_id))
        elif before.progress is not Progress.UNREVOKED:
            self._timers.set((_REBALANCE, member_id), self.now_ms + self.members[member_id].rebalance_timeout_ms)

    def start_session(self, member_id: str) -> None:
        classic = self.members[member_id].classic
        timeout_ms = self.config.session_timeout_ms if classic is None else classic.session_timeout_ms
        self._timers.set((_SESSION, member_id), self.now_ms + timeout_ms)

    # -- descriptions

    @property
    def state(self) -> ConsumerState:
        roster = self.roster
        if not self.members:
            return ConsumerState.EMPTY
        if roster.epoch > roster.target_epoch:
            return ConsumerState.ASSIGNING
        settled = all(
            holding.progress is Progress.STABLE and holding.epoch == roster.target_epoch for holding in roster.holdings.values()
        )
        return ConsumerState.STABLE if settled else ConsumerState.RECONCILING

    def describe(self) -> ConsumerDescription:
        roster = self.roster
        return ConsumerDescription(
            state=self.state,
            epoch=roster.epoch,
            target_epoch=roster.target_epoch,
            assignor=roster.assignor,
            members=tuple(
                (identity, roster.holdings[member_id], roster.target(member_id)) for member_id, identity in self.members.items()
            ),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts the attributes' docs."""
        self.roster.check_invariants()
        assert all((_SESSION, member_id) in self._timers for member_id in self.members)
