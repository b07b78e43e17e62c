"""The desired number of brokers: the leader's count, and access to it from every broker's gRPC services.

`LeaderCapacity` lives as long as one leader leads. Reservations are in the manifest. Their ends are only in the leader's memory,
on its monotonic clock (`cluster/capacity.py`). A broker's gRPC services use `BrokerCapacity`, on the leader and on all other
brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from headgate.broker.cluster.capacity import (
    Deadlines,
    Desired,
    LoadDemand,
    OpenReservation,
    Reservation,
    desired_brokers,
    opened,
    renewed,
    reserved_text,
)
from headgate.broker.cluster.chronicle import Chronicle, Sample
from headgate.broker.cluster.edits.brokers import PutReservation, ReleaseReservation
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.cluster.segments import BrokerLoad
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("capacity")

MEASURE_S = 1.0


class CapacityTerm(Protocol):
    """The brokers that the leader knows (`cluster.term.Term`)."""

    @property
    def planner(self) -> LoadPlanner: ...

    def loads(self) -> list[BrokerLoad]: ...

    def awaits_members(self) -> bool:
        """True if some brokers have neither connected nor been found lost yet."""


class CapacityJournal(Protocol):
    """The journal, as `LeaderCapacity` needs it (`leader_journal.LeaderJournal`)."""

    @property
    def manifest(self) -> Manifest: ...

    def commit_made(self, make: Callable[[Manifest], Sequence[Edit]]) -> Awaitable[None]:
        """Commit edits that are made from the current manifest; see `LocalCatalog.commit_made`."""


class LeaderCapacity:
    """The desired number of brokers, during one term.

    Args:
        settings: the least number of brokers that the cluster wants, and the largest that a reservation or the load may ask for.
        keep: runs a work, by its name, until it returns or the term ends (`TermTasks.keep`).
        chronicle: receives the numbers over time, and what happened to them.
    """

    def __init__(
        self,
        term: CapacityTerm,
        journal: CapacityJournal,
        settings: Settings,
        clock: Clock,
        keep: Callable[[Callable[[], Coroutine[Any, Any, None]], str], asyncio.Task[None]],
        *,
        chronicle: Chronicle | None = None,
    ) -> None:
        self._term = term
        self._journal = journal
        self._clock = clock
        self._keep = keep
        self._chronicle = chronicle or Chronicle()
        self._brokers_min = settings.capacity_brokers_min
        self._brokers_max = settings.capacity_brokers_max
        self._deadlines = Deadlines()
        self._demand: LoadDemand | None = None
        """None while the leader is too new to know how many brokers there are. A number from that time would make fleets stop
        brokers."""
        self._measured_s = 0.0
        self._known: int | None = None
        """The last reported desired number."""
        self._stale = True
        """True if the number may have changed since the last report."""
        self._releasing: asyncio.Task[None] | None = None

    # -- called by the leader

    def follow(self) -> None:
        """Called when the manifest was loaded, or its reservations have changed."""
        self._stale = True
        self._deadlines.observe(self._journal.manifest.reservations, self._now_ms())

    def applied(self, edits: Sequence[Edit]) -> None:
        """Called with edits that the manifest has just applied."""
        if any(isinstance(edit, PutReservation | ReleaseReservation) for edit in edits):
            self.follow()

    def tick(self, now_s: float) -> None:
        """Update the numbers to the present time. Called several times a second."""
        now_ms = int(now_s * 1000)
        loads = self._term.loads()
        if self._chronicle.is_sample_due(now_s):
            self._sample(loads, now_s)
        if self._demand is None:
            if self._term.awaits_members():
                return
            reserved = max((reservation.reservation.brokers for reservation in self.reservations()), default=0)
            self._demand = LoadDemand(_live(loads), now_ms, self._brokers_max, reserved=reserved)
        if now_s - self._measured_s >= MEASURE_S:
            self._measured_s = now_s
            pressures = self._term.planner.pressures(self._journal.manifest.segments.open, loads)
            self._demand.observe(pressures.values(), now_ms)
            self._stale = True
        next_ms = self._deadlines.next_ms()
        is_over = next_ms is not None and next_ms <= now_ms
        if self._releasing is None and is_over:
            self._releasing = self._keep(self._release_expired, "reservations")
            self._releasing.add_done_callback(self._released)
        if not self._stale and not is_over:
            return
        self._stale = False
        desired = self.desired()
        if desired.brokers != self._known:
            self._known = desired.brokers
            logger.info("brokers_desired", brokers=desired.brokers, live=_live(loads), why=desired.reasons[0])
            brokers = "1 broker is" if desired.brokers == 1 else f"{desired.brokers} brokers are"
            self._chronicle.note("capacity", f"{brokers} desired: {desired.reasons[0]}", now_s)

    def _sample(self, loads: Sequence[BrokerLoad], now_s: float) -> None:
        segments = [segment for load in loads for segment in load.segments]
        self._chronicle.sample(
            Sample(
                at_s=now_s,
                desired=0 if self._demand is None else self.desired().brokers,
                live=_live(loads),
                bytes_in_per_s=sum(segment.bytes_in_per_s for segment in segments),
                bytes_out_per_s=sum(segment.bytes_out_per_s for segment in segments),
            )
        )

    async def _release_expired(self) -> None:
        over = {key: self._journal.manifest.reservations.get(key) for key in self._deadlines.expired(self._now_ms())}

        def make(now: Manifest) -> list[Edit]:
            # Leave out a reservation that was renewed while this commit waited for its turn.
            return [
                ReleaseReservation(key)
                for key, reservation in over.items()
                if reservation is not None and now.reservations.get(key) == reservation
            ]

        await self._journal.commit_made(make)
        logger.info("reservations_expired", ids=",".join(over))
        self._note(f"reservations expired: {', '.join(over)}")

    def _released(self, task: asyncio.Task[None]) -> None:
        self._releasing = None

    # -- called by services

    async def open(self, reservation: Reservation) -> OpenReservation:
        """Open a reservation. It is durable when this returns. Raises InvalidError, RetryError."""
        return await self._put(lambda now: opened(reservation, now.reservations, self._brokers_max))

    async def renew(self, reservation_id: str, ttl_ms: int | None) -> OpenReservation:
        """Renew a reservation. `ttl_ms` None: with the same time-to-live. Raises InvalidError(NOT_FOUND), RetryError."""
        return await self._put(lambda now: renewed(reservation_id, ttl_ms, now.reservations))

    async def _put(self, change: Callable[[Manifest], Reservation]) -> OpenReservation:
        made: list[Reservation] = []

        def make(now: Manifest) -> list[Edit]:
            made.append(change(now))
            return [PutReservation(made[-1])]

        await self._journal.commit_made(make)
        reservation = made[-1]
        if not reservation.renewals:
            self._note(
                f"reservation {reservation.id}{' of ' + reservation.owner if reservation.owner else ''} "
                f"opened, for {reserved_text(reservation)}"
            )
        self.tick(self._clock.monotonic())
        return OpenReservation(reservation=reservation, left_ms=reservation.ttl_ms)

    async def release(self, reservation_id: str) -> bool:
        """Release a reservation. Returns True if it was open. Raises RetryError."""
        was_open = False

        def make(now: Manifest) -> list[Edit]:
            nonlocal was_open
            is_stored = reservation_id in now.reservations
            was_open = is_stored and reservation_id not in self._deadlines.expired(self._now_ms())
            return [ReleaseReservation(reservation_id)] if is_stored else []

        await self._journal.commit_made(make)
        if was_open:
            self._note(f"reservation {reservation_id} released")
        self.tick(self._clock.monotonic())
        return was_open

    def reservations(self) -> list[OpenReservation]:
        """The open reservations, by id."""
        return self._deadlines.open(self._now_ms())

    def desired(self) -> Desired:
        """The desired number of brokers. Raises RetryError(NOT_READY) if the leader is too new to know it."""
        if self._demand is None:
            raise RetryError(Reason.NOT_READY, "the leader is new: it does not know yet which brokers there are")
        return desired_brokers(self._brokers_min, self.reservations(), self._demand, self._brokers_max)

    def known(self) -> Desired | None:
        """`desired`, or None while the leader is too new to know it."""
        return None if self._demand is None else self.desired()

    def live_brokers(self) -> int:
        return _live(self._term.loads())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _note(self, why: str) -> None:
        self._chronicle.note("capacity", why, self._clock.monotonic())


class BrokerCapacity:
    """The `CapacityView` of the gRPC services, for one broker.

    Args:
        term: returns the capacity of this broker's term; None: this broker does not lead.
        leader: returns ``host:port`` of the leader's gRPC port; None: this broker leads. Raises RetryError if no leader is known.
    """

    def __init__(self, term: Callable[[], LeaderCapacity | None], leader: Callable[[], str | None]) -> None:
        self._find_term = term
        self._find_leader = leader

    def leader(self) -> str | None:
        return self._find_leader()

    async def open_reservation(self, reservation: Reservation) -> OpenReservation:
        return await self._term().open(reservation)

    async def renew_reservation(self, reservation_id: str, ttl_ms: int | None) -> OpenReservation:
        return await self._term().renew(reservation_id, ttl_ms)

    async def release_reservation(self, reservation_id: str) -> bool:
        return await self._term().release(reservation_id)

    def reservations(self) -> list[OpenReservation]:
        return self._term().reservations()

    def desired(self) -> Desired:
        return self._term().desired()

    def live_brokers(self) -> int:
        return self._term().live_brokers()

    def _term(self) -> LeaderCapacity:
        term = self._find_term()
        if term is None:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster")
        return term


def _live(loads: Sequence[BrokerLoad]) -> int:
    """The number of brokers that are not draining."""
    return sum(not load.draining for load in loads)
