"""Edits of what brokers agree on: the term, commits, reservations, settings and downtimes. No I/O."""

from __future__ import annotations

from headgate.broker.cluster.capacity import Reservation, check_reservation
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.runtime.errors import InvalidError, Reason

DOWNTIMES_MAX = 64
"""Downtimes that are remembered, the newest ones. An older downtime counts as elapsed time again."""


class SetLeader(Edit, frozen=True, tag="set_leader"):
    """This incarnation leads the cluster: it writes the journal. `leader_epoch` is the epoch of its term, greater than any epoch
    before."""

    incarnation_id: str
    leader_epoch: int

    def apply(self, state: Manifest) -> None:
        state.leader, state.term_epoch = self.incarnation_id, self.leader_epoch
        state.saw_epoch(self.leader_epoch)


class Committed(Edit, frozen=True, tag="committed"):
    """This version of the journal has commit `number` of an incarnation; it may have those of other incarnations, too. The same
    commit has no effect a second time."""

    incarnation_id: str
    number: int

    def touches(self) -> frozenset[object]:
        return frozenset({self.incarnation_id})

    def apply(self, state: Manifest) -> None:
        if self.incarnation_id in state.incarnations:
            state.commits[self.incarnation_id] = max(self.number, state.commits.get(self.incarnation_id, -1))


class PutReservation(Edit, frozen=True, tag="put_reservation"):
    """A reservation is open, with its full time left. It replaces the one with its id."""

    reservation: Reservation

    def check(self, state: Manifest) -> None:
        check_reservation(self.reservation, state.reservations)

    def apply(self, state: Manifest) -> None:
        state.reservations[self.reservation.id] = self.reservation


class ReleaseReservation(Edit, frozen=True, tag="release_reservation"):
    """A reservation has ended: it was released, or its time has run out."""

    reservation_id: str

    def apply(self, state: Manifest) -> None:
        state.reservations.pop(self.reservation_id, None)


class SetBrokerConfig(Edit, frozen=True, tag="set_broker_config"):
    """The settings that clients gave a broker, or all brokers (`broker` ""). Every value is valid.

    `was`: the settings from which the author made them. If there are others by now, the edit is refused.
    """

    broker: str
    config: dict[str, str]
    was: dict[str, str]

    def check(self, state: Manifest) -> None:
        if self.was != state.broker_configs.get(self.broker, {}):
            raise InvalidError(
                Reason.CHANGED_MEANWHILE, f"another client changed the broker's settings meanwhile. broker=`{self.broker}`"
            )

    def apply(self, state: Manifest) -> None:
        state.broker_configs.pop(self.broker, None)
        if self.config:
            state.broker_configs[self.broker] = self.config


class NoteDowntime(Edit, frozen=True, tag="note_downtime"):
    """No broker is known to have run between these two times, in ms. Records did not age then (`cluster/downtime.py`)."""

    since_ms: int
    until_ms: int

    def apply(self, state: Manifest) -> None:
        state.downtimes = [*state.downtimes, (self.since_ms, self.until_ms)][-DOWNTIMES_MAX:]
