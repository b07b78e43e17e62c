"""The desired number of brokers: reservations that end by themselves, and the load's demand. Pure; time is an argument.

    desired = max(minimum, the largest open reservation, the load's demand)

A reservation states a minimum for the whole cluster, so two of them do not add up. It ends when its time-to-live passes without
a renewal, on the leader's monotonic clock; a new leader gives each reservation one full time-to-live, because it does not know
the remaining time.

The load asks for more brokers within seconds, and for fewer only after minutes: a surplus broker costs little, a missing one is
felt at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headgate.broker.runtime.errors import InvalidError, Reason

BROKERS_MAX = 64
"""Largest number of brokers of one reservation, and of the load's demand."""
LANES_MAX = 64
"""Largest number of lanes of one reservation."""
RESERVATIONS_MAX = 1000
TTL_MS_MIN = 1_000
TTL_MS_MAX = 7 * 86_400_000
ID_CHARS_MAX = 100
OWNER_CHARS_MAX = 200

FULL_SHARE = 0.7
"""More brokers are requested when the average pressure of the existing ones would be above this ..."""
ROOMY_SHARE = 0.5
"""... fewer when the pressure of the remaining ones would be below this."""
UP_AFTER_MS = 3_000
DOWN_AFTER_MS = 300_000
RESERVED_DOWN_AFTER_MS = 20_000
"""... the same, when a leader found no more brokers than reservations hold. As far as is known, these brokers serve the
reservations."""
GAP_MS = 5_000
"""After this long without a measurement, no condition counts as lasting."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Brokers that are requested until a time. `lanes`: fewest lanes that the cluster may have meanwhile (`cluster/lanes.py`).
    `renewals` grows with every renewal; a change of it restarts the time-to-live."""

    id: str
    owner: str
    brokers: int
    ttl_ms: int
    renewals: int = 0
    lanes: int = 0


def check_reservation(reservation: Reservation, existing: Mapping[str, Reservation], brokers_max: int = BROKERS_MAX) -> None:
    """Check that it may be opened, or replace the one with its id. Raises InvalidError that names the limit.

    Args:
        brokers_max: the largest number that this cluster allows for a reservation.
    """
    _check_text("id", reservation.id, ID_CHARS_MAX, empty=False)
    _check_text("owner", reservation.owner, OWNER_CHARS_MAX, empty=True)
    if not 1 <= reservation.brokers <= brokers_max:
        raise _refused(f"a reservation is for 1 to {brokers_max} brokers", brokers=reservation.brokers)
    if not 0 <= reservation.lanes <= LANES_MAX:
        raise _refused(f"a reservation is for 0 to {LANES_MAX} lanes", lanes=reservation.lanes)
    check_ttl(reservation.ttl_ms)
    if reservation.id not in existing and len(existing) >= RESERVATIONS_MAX:
        raise InvalidError(
            Reason.POLICY_VIOLATION,
            f"too many reservations are open: release some first. open=`{len(existing)}` max=`{RESERVATIONS_MAX}`",
        )


def check_ttl(ttl_ms: int) -> None:
    """Raise InvalidError, with the limits, if a time-to-live is out of range."""
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise _refused(
            f"a reservation's time-to-live is from {TTL_MS_MIN // 1000} s to {TTL_MS_MAX // 86_400_000} days", ttl_ms=ttl_ms
        )


def opened(reservation: Reservation, existing: Mapping[str, Reservation], brokers_max: int = BROKERS_MAX) -> Reservation:
    """The reservation to store for a request to open: the same id again is a renewal, and may change the numbers. Raises
    InvalidError."""
    check_reservation(reservation, existing, brokers_max)
    before = existing.get(reservation.id)
    return msgspec.structs.replace(reservation, renewals=0 if before is None else before.renewals + 1)


def renewed(reservation_id: str, ttl_ms: int | None, existing: Mapping[str, Reservation]) -> Reservation:
    """The reservation to store for a renewal; None keeps its time-to-live. Raises InvalidError if it has ended or was never
    opened."""
    before = existing.get(reservation_id)
    if before is None:
        raise unknown(reservation_id)
    if ttl_ms is not None:
        check_ttl(ttl_ms)
    return msgspec.structs.replace(before, renewals=before.renewals + 1, ttl_ms=before.ttl_ms if ttl_ms is None else ttl_ms)


def unknown(reservation_id: str) -> InvalidError:
    """The error for an unknown reservation."""
    shown = reservation_id[:ID_CHARS_MAX]
    return InvalidError(Reason.NOT_FOUND, f"there is no open reservation of this id: it ran out, or was released. id=`{shown}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReservation:
    """A reservation and its remaining time."""

    reservation: Reservation
    left_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The desired number of brokers. `reasons`: one sentence per claim, the deciding one first."""

    brokers: int
    reasons: tuple[str, ...]


class Deadlines:
    """The ends of reservations. Lives as long as one leader leads."""

    def __init__(self) -> None:
        self._until_ms: dict[str, tuple[Reservation, int]] = {}

    def observe(self, reservations: Mapping[str, Reservation], now_ms: int) -> None:
        """Note the stored reservations: new and renewed ones have their full time from now."""
        self._until_ms = {
            key: known
            if (known := self._until_ms.get(key)) is not None and known[0] == reservation
            else (reservation, now_ms + reservation.ttl_ms)
            for key, reservation in reservations.items()
        }

    def expired(self, now_ms: int) -> list[str]:
        """Ids of expired reservations, in order: the leader releases them."""
        return sorted(key for key, (_, until_ms) in self._until_ms.items() if until_ms <= now_ms)

    def next_ms(self) -> int | None:
        """Time of the next expiry; None without reservations."""
        return min((until_ms for _, until_ms in self._until_ms.values()), default=None)

    def open(self, now_ms: int) -> list[OpenReservation]:
        """The open reservations, by id."""
        return [
            OpenReservation(reservation=reservation, left_ms=until_ms - now_ms)
            for _, (reservation, until_ms) in sorted(self._until_ms.items())
            if until_ms > now_ms
        ]


class LoadDemand:
    """The number of brokers that the load asks for, from the pressures of the serving ones.

    Args:
        brokers: number at this leader's beginning. It has measured no load yet, and keeps them for `DOWN_AFTER_MS`.
        now_ms: monotonic.
        brokers_max: bound of the demand.
        reserved: brokers that reservations hold at this leader's beginning. That many are kept for `RESERVED_DOWN_AFTER_MS`
            only.
    """

    def __init__(self, brokers: int, now_ms: int, brokers_max: int = BROKERS_MAX, *, reserved: int = 0) -> None:
        self._brokers_max = brokers_max
        self.brokers = min(max(brokers, 1), brokers_max)
        self.pressure = 0.0
        """Sum of all pressures, as last measured."""
        self._at_ms = now_ms
        self._more_since_ms: int | None = None
        self._more = 0
        kept_ms = RESERVED_DOWN_AFTER_MS if brokers <= reserved else DOWN_AFTER_MS
        self._fewer_since_ms: int | None = now_ms + kept_ms - DOWN_AFTER_MS
        self._fewer = 1

    @property
    def reason(self) -> str:
        """The reason for the number, for the operator."""
        used = f"{self.pressure:.2f} of a broker in use"
        if self.brokers > _brokers_for(self.pressure, ROOMY_SHARE):
            return f"{brokers_text(self.brokers)} are kept until the load has been low for a while: {used}"
        return f"the load asks for {brokers_text(self.brokers)}: {used}"

    def observe(self, pressures: Iterable[float], now_ms: int) -> None:
        """Note the pressures of all live brokers, about once a second."""
        self.pressure = sum(pressures)
        if now_ms - self._at_ms > GAP_MS:
            self._more_since_ms = self._fewer_since_ms = None
        self._at_ms = now_ms
        more = min(_brokers_for(self.pressure, FULL_SHARE), self._brokers_max)
        fewer = min(_brokers_for(self.pressure, ROOMY_SHARE), self._brokers_max)
        if more > self.brokers:
            # The minimum of these seconds: the demand that lasted all the time.
            self._more = more if self._more_since_ms is None else min(self._more, more)
            self._more_since_ms = now_ms if self._more_since_ms is None else self._more_since_ms
            if now_ms - self._more_since_ms >= UP_AFTER_MS:
                self.brokers, self._more_since_ms = self._more, None
        else:
            self._more_since_ms = None
        if fewer < self.brokers:
            # The maximum of these minutes.
            self._fewer = fewer if self._fewer_since_ms is None else max(self._fewer, fewer)
            self._fewer_since_ms = now_ms if self._fewer_since_ms is None else self._fewer_since_ms
            if now_ms - self._fewer_since_ms >= DOWN_AFTER_MS:
                self.brokers, self._fewer_since_ms = self._fewer, None
        else:
            self._fewer_since_ms = None


def desired_brokers(
    minimum: int, reservations: Sequence[OpenReservation], demand: LoadDemand, brokers_max: int = BROKERS_MAX
) -> Desired:
    """The number for fleets, with its reasons.

    Args:
        minimum: number that the fleet always keeps; 0 or more.
        brokers_max: bound of the number, also for a reservation from before this limit.
    """
    claims = [(minimum, 0, f"the minimum is {brokers_text(minimum)}")]
    for reservation in reservations:
        owner = f" of {reservation.reservation.owner}" if reservation.reservation.owner else ""
        claims.append(
            (
                reservation.reservation.brokers,
                1,
                f"reservation {reservation.reservation.id}{owner} holds {reserved_text(reservation.reservation)} "
                f"for another {math.ceil(reservation.left_ms / 1000)} s",
            )
        )
    claims.append((demand.brokers, 2, demand.reason))
    claims.sort(key=lambda claim: (-claim[0], claim[1]))
    reasons = tuple(text for _, _, text in claims)
    if claims[0][0] > brokers_max:
        reasons = (f"the cluster may have at most {brokers_text(brokers_max)}", *reasons)
    return Desired(brokers=min(claims[0][0], brokers_max), reasons=reasons)


def _brokers_for(pressure: float, share: float) -> int:
    """At least one: an unused cluster must still answer, unless its fleet says otherwise."""
    # Slightly less: 0.7 on one broker is one broker, whatever the floats make of the quotient.
    return max(1, math.ceil(min(pressure / share, BROKERS_MAX + 1) - 1e-9))


def _check_text(name: str, text: str, chars_max: int, *, empty: bool) -> None:
    if not (text or empty) or len(text) > chars_max or not text.isprintable():
        least = 0 if empty else 1
        raise _refused(f"a reservation's {name} has {least} to {chars_max} printable characters", **{name: text[:chars_max]})


def _refused(message: str, **values: object) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"{message}. " + " ".join(f"{name}=`{value}`" for name, value in values.items()))


def brokers_text(count: int) -> str:
    """A number of brokers, for a person: "1 broker"."""
    return "1 broker" if count == 1 else f"{count} brokers"


def reserved_text(reservation: Reservation) -> str:
    """What a reservation holds, for a person: "3 brokers", "3 brokers and 2 lanes"."""
    lanes = reservation.lanes
    return brokers_text(reservation.brokers) + (f" and {lanes} lane{'s' if lanes > 1 else ''}" if lanes else "")
