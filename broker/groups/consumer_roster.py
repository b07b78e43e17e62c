"""The members of a consumer group, what they hold and will hold, and the rows that keep it. Keeps the books and judges no plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from headgate.broker.coordination.effects import Row
from headgate.broker.groups.assignors import DEFAULT_ASSIGNOR, Partition
from headgate.broker.groups.consumer_member import NOTHING, Holding, Identity
from headgate.broker.groups.consumer_records import (
    ConsumerKey,
    Kind,
    decode_epoch,
    decode_holding,
    decode_identity,
    decode_target,
    encode_consumer_key,
    encode_epoch,
    encode_holding,
    encode_identity,
    encode_target,
)
from headgate.broker.runtime.errors import InvalidError, Reason

Value = TypeVar("Value")


class ConsumerRoster:
    """The state of one group that is in the log. Each change adds the rows that keep it."""

    def __init__(self, group_id: str) -> None:
        self._id = group_id
        self.epoch = 0
        """Grows with each change of members, subscriptions and topics."""
        self.target_epoch = 0
        """The group's epoch for which the targets were made."""
        self.members: dict[str, Identity] = {}
        self.holdings: dict[str, Holding] = {}
        """Of all members."""
        self.targets: dict[str, frozenset[Partition]] = {}
        """Of all members at `target_epoch`."""
        self.static: dict[str, str] = {}
        """All and only the static members: instance id to member id."""
        self.owners: dict[Partition, str] = {}
        """All and only the partitions in holdings, with those that are to be given up."""
        self.lost_rows = False
        """True if rows did not become durable: `take_rows` then returns all."""
        self._rows: list[Row] = []

    # -- the fold of the log

    def replay(self, key: ConsumerKey, value: bytes | None) -> None:
        """Take one record. Raises CorruptError, with nothing changed."""
        match key.kind:
            case Kind.GROUP:
                self.epoch = 0 if value is None else decode_epoch(value)
            case Kind.TARGET_EPOCH:
                self.target_epoch = 0 if value is None else decode_epoch(value)
            case Kind.MEMBER:
                _set(self.members, key.member, None if value is None else decode_identity(key.member, value))
            case Kind.TARGET:
                _set(self.targets, key.member, None if value is None else decode_target(value))
            case Kind.HOLDING:
                _set(self.holdings, key.member, None if value is None else decode_holding(value))

    def loaded(self) -> None:
        """The whole log was replayed."""
        for member_id, identity in self.members.items():
            holding = self.holdings.setdefault(member_id, Holding())
            self.owners.update(dict.fromkeys(holding.all, member_id))
            if identity.instance_id is not None:
                self.static[identity.instance_id] = member_id

    # -- changes

    def grow(self) -> None:
        self.epoch += 1
        self._write(Kind.GROUP, "", encode_epoch(self.epoch))

    def describe(self, identity: Identity) -> None:
        """Add a member, or what it says about itself now."""
        member_id = identity.member_id
        self.members[member_id] = identity
        if identity.instance_id is not None:
            self.static[identity.instance_id] = member_id
        self._write(Kind.MEMBER, member_id, encode_identity(identity))
        if member_id not in self.holdings:
            self.hold(member_id, Holding())

    def hold(self, member_id: str, holding: Holding) -> None:
        """Set what a member holds. No other member has any of it."""
        before = self.holdings.get(member_id, Holding())
        for partition in before.all - holding.all:
            del self.owners[partition]
        self.owners.update(dict.fromkeys(holding.all, member_id))
        self.holdings[member_id] = holding
        self._write(Kind.HOLDING, member_id, encode_holding(holding))

    def is_at(self, targets: Mapping[str, frozenset[Partition]]) -> bool:
        """True if these are the targets of the present epoch."""
        return self.epoch == self.target_epoch and all(self.target(member_id) == target for member_id, target in targets.items())

    def aim(self, targets: Mapping[str, frozenset[Partition]]) -> None:
        """Set the targets of the present epoch."""
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self._write(Kind.TARGET, member_id, encode_target(target))
        self.target_epoch = self.epoch
        self._write(Kind.TARGET_EPOCH, "", encode_epoch(self.epoch))

    def remove(self, member_id: str) -> None:
        identity = self.members.pop(member_id)
        if identity.instance_id is not None:
            del self.static[identity.instance_id]
        for partition in self.holdings.pop(member_id).all:
            del self.owners[partition]
        self.targets.pop(member_id, None)
        for kind in (Kind.HOLDING, Kind.TARGET, Kind.MEMBER):
            self._write(kind, member_id, None)

    def rename(self, former: str, identity: Identity) -> None:
        """A static member came back with a new id: it has the partitions and the target of its former self, and joins."""
        assigned, target = self.holdings[former].assigned, self.targets.get(former)
        self.remove(former)
        self.describe(identity)
        self.hold(identity.member_id, Holding(assigned=assigned))
        if target is not None:
            self.targets[identity.member_id] = target
            self._write(Kind.TARGET, identity.member_id, encode_target(target))

    def target(self, member_id: str) -> frozenset[Partition]:
        return self.targets.get(member_id, NOTHING)

    def is_free(self, partition: Partition, member_id: str) -> bool:
        """True if no other member has a partition."""
        return self.owners.get(partition, member_id) == member_id

    def known(self, member_id: str, instance_id: str | None) -> str:
        """The member's id. Raises InvalidError: no such member, or another one has its instance id."""
        if instance_id is not None and self.static.get(instance_id, member_id) != member_id:
            raise InvalidError(Reason.FENCED_INSTANCE_ID, f"another member has the instance id. instance_id=`{instance_id}`")
        if member_id not in self.members:
            raise InvalidError(Reason.UNKNOWN_MEMBER_ID, f"the group has no such member. member_id=`{member_id}`")
        return member_id

    def check_epoch(self, member_id: str, epoch: int, owned: frozenset[Partition] | None) -> None:
        """Raise InvalidError when a member says another epoch than its own; a lost answer explains the one before."""
        holding = self.holdings[member_id]
        is_late = epoch == holding.epoch_before < holding.epoch and owned is not None and owned <= holding.assigned
        if epoch != holding.epoch and not is_late:
            raise InvalidError(Reason.FENCED_MEMBER_EPOCH, f"the member has another epoch. epoch=`{epoch}` its=`{holding.epoch}`")

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    # -- rows

    def _write(self, kind: Kind, member_id: str, value: bytes | None) -> None:
        self._rows.append((encode_consumer_key(ConsumerKey(kind, self._id, member_id)), value))

    def take_rows(self) -> list[Row]:
        """The rows of the changes since the last call."""
        rows, self._rows = self._rows, []
        if self.lost_rows:
            self.lost_rows = False
            return [*rows, *self.rows()]
        return rows

    def rows(self) -> list[Row]:
        """The latest rows of everything."""
        rows: list[Row] = [
            (encode_consumer_key(ConsumerKey(Kind.GROUP, self._id)), encode_epoch(self.epoch)),
            (encode_consumer_key(ConsumerKey(Kind.TARGET_EPOCH, self._id)), encode_epoch(self.target_epoch)),
        ]
        for member_id, identity in self.members.items():
            rows.append((encode_consumer_key(ConsumerKey(Kind.MEMBER, self._id, member_id)), encode_identity(identity)))
            holding = encode_holding(self.holdings[member_id])
            rows.append((encode_consumer_key(ConsumerKey(Kind.HOLDING, self._id, member_id)), holding))
            if member_id in self.targets:
                target = encode_target(self.targets[member_id])
                rows.append((encode_consumer_key(ConsumerKey(Kind.TARGET, self._id, member_id)), target))
        return rows

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts the attributes' docs."""
        assert self.members.keys() == self.holdings.keys() and self.targets.keys() <= self.members.keys()
        assert self.static == {
            member.instance_id: member.member_id for member in self.members.values() if member.instance_id is not None
        }
        held = [(partition, member_id) for member_id, holding in self.holdings.items() for partition in holding.all]
        assert len(held) == len(self.owners) and dict(held) == self.owners
        assert all(not (holding.assigned & holding.revoking) for holding in self.holdings.values())


def _set(values: dict[str, Value], member_id: str, value: Value | None) -> None:
    if value is None:
        values.pop(member_id, None)
    else:
        values[member_id] = value
