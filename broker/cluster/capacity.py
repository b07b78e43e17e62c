"""How many brokers there are to be: reservations that end by themselves, and what the load asks for. Pure; time is an argument.

    desired = max(minimum, the largest open reservation, what the load asks for)

A reservation says how many brokers the cluster is to have at least: two of them do not add up, as whoever opened one counted on the
cluster as a whole. It ends when its time-to-live passes without a renewal, on the leader's monotonic clock; a new leader gives each
one full time-to-live, because it cannot know how much of it is left.

The load asks for more within seconds, and for less only after minutes: a broker too many costs little, one too few is felt at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from broker.runtime.errors import InvalidError, Reason

BROKERS_MAX = 64
"""Of one reservation, and of what the load may ask for."""
RESERVATIONS_MAX = 1000
TTL_MS_MIN = 1_000
TTL_MS_MAX = 7 * 86_400_000
ID_CHARS_MAX = 100
OWNER_CHARS_MAX = 200

FULL_SHARE = 0.7
"""More brokers are asked for when those there are would be above this pressure on average ..."""
ROOMY_SHARE = 0.5
"""... fewer when those that stay would be below this."""
UP_AFTER_MS = 3_000
DOWN_AFTER_MS = 300_000
RESERVED_DOWN_AFTER_MS = 20_000
"""... the same, where a leader found no more brokers than reservations hold: they are there for those, as far as is known."""
GAP_MS = 5_000
"""Without a measurement for so long, nothing can be said to have lasted."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Brokers asked for until a time. `renewals` grows with every renewal; a change of it starts the time-to-live again."""

    id: str
    owner: str
    brokers: int
    ttl_ms: int
    renewals: int = 0


def check_reservation(reservation: Reservation, existing: Mapping[str, Reservation], brokers_max: int = BROKERS_MAX) -> None:
    """Whether it may be opened, or take the place of the one with its id. Raises InvalidError that says the limit.

    Args:
        brokers_max: the largest number that this cluster lets a reservation ask for.
    """
    _check_text("id", reservation.id, ID_CHARS_MAX, empty=False)
    _check_text("owner", reservation.owner, OWNER_CHARS_MAX, empty=True)
    if not 1 <= reservation.brokers <= brokers_max:
        raise _refused(f"a reservation is for 1 to {brokers_max} brokers", brokers=reservation.brokers)
    check_ttl(reservation.ttl_ms)
    if reservation.id not in existing and len(existing) >= RESERVATIONS_MAX:
        raise InvalidError(
            Reason.POLICY_VIOLATION,
            f"too many reservations are open: release some first. open=`{len(existing)}` max=`{RESERVATIONS_MAX}`",
        )


def check_ttl(ttl_ms: int) -> None:
    """Raises InvalidError that says the limits."""
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise _refused(
            f"a reservation's time-to-live is from {TTL_MS_MIN // 1000} s to {TTL_MS_MAX // 86_400_000} days", ttl_ms=ttl_ms
        )


def opened(reservation: Reservation, existing: Mapping[str, Reservation], brokers_max: int = BROKERS_MAX) -> Reservation:
    """What to store for a request to open: the same id again is a renewal, and may ask for other numbers. Raises InvalidError."""
    check_reservation(reservation, existing, brokers_max)
    before = existing.get(reservation.id)
    return msgspec.structs.replace(reservation, renewals=0 if before is None else before.renewals + 1)


def renewed(reservation_id: str, ttl_ms: int | None, existing: Mapping[str, Reservation]) -> Reservation:
    """What to store for a renewal; None: with the time-to-live it has. Raises InvalidError: over or never opened."""
    before = existing.get(reservation_id)
    if before is None:
        raise unknown(reservation_id)
    if ttl_ms is not None:
        check_ttl(ttl_ms)
    return msgspec.structs.replace(before, renewals=before.renewals + 1, ttl_ms=before.ttl_ms if ttl_ms is None else ttl_ms)


def unknown(reservation_id: str) -> InvalidError:
    """There is no such reservation."""
    shown = reservation_id[:ID_CHARS_MAX]
    return InvalidError(Reason.NOT_FOUND, f"there is no open reservation of this id: it ran out, or was released. id=`{shown}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReservation:
    """A reservation and the time that is left of it."""

    reservation: Reservation
    left_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """How many brokers there are to be. `reasons`: one sentence per claim, the one that decides first."""

    brokers: int
    reasons: tuple[str, ...]


class Deadlines:
    """When reservations end. Lives as long as one leader leads."""

    def __init__(self) -> None:
        self._until_ms: dict[str, tuple[Reservation, int]] = {}

    def observe(self, reservations: Mapping[str, Reservation], now_ms: int) -> None:
        """Take note of what is stored: what is new, or was renewed, has all its time from now."""
        self._until_ms = {
            key: known
            if (known := self._until_ms.get(key)) is not None and known[0] == reservation
            else (reservation, now_ms + reservation.ttl_ms)
            for key, reservation in reservations.items()
        }

    def expired(self, now_ms: int) -> list[str]:
        """Ids whose time is over, in order: to be released."""
        return sorted(key for key, (_, until_ms) in self._until_ms.items() if until_ms <= now_ms)

    def next_ms(self) -> int | None:
        """When the next one ends; None: there is none."""
        return min((until_ms for _, until_ms in self._until_ms.values()), default=None)

    def open(self, now_ms: int) -> list[OpenReservation]:
        """Those that still hold, by id."""
        return [
            OpenReservation(reservation=reservation, left_ms=until_ms - now_ms)
            for _, (reservation, until_ms) in sorted(self._until_ms.items())
            if until_ms > now_ms
        ]


class LoadDemand:
    """Brokers that the load asks for, from the pressures of those that serve.

    Args:
        brokers: how many there are when this leader begins. It knows nothing of the load yet, and keeps them for `DOWN_AFTER_MS`.
        now_ms: monotonic.
        brokers_max: more are never asked for.
        reserved: brokers that reservations hold when this leader begins. As many are kept for `RESERVED_DOWN_AFTER_MS` only.
    """

    def __init__(self, brokers: int, now_ms: int, brokers_max: int = BROKERS_MAX, *, reserved: int = 0) -> None:
        self._brokers_max = brokers_max
        self.brokers = min(max(brokers, 1), brokers_max)
        self.pressure = 0.0
        """Sum of all brokers, as last measured."""
        self._at_ms = now_ms
        self._more_since_ms: int | None = None
        self._more = 0
        kept_ms = RESERVED_DOWN_AFTER_MS if brokers <= reserved else DOWN_AFTER_MS
        self._fewer_since_ms: int | None = now_ms + kept_ms - DOWN_AFTER_MS
        self._fewer = 1

    @property
    def reason(self) -> str:
        """Why there are to be so many, for people."""
        used = f"{self.pressure:.2f} of a broker in use"
        if self.brokers > _brokers_for(self.pressure, ROOMY_SHARE):
            return f"{_brokers(self.brokers)} are kept until the load has been low for a while: {used}"
        return f"the load asks for {_brokers(self.brokers)}: {used}"

    def observe(self, pressures: Iterable[float], now_ms: int) -> None:
        """Take the pressures of all live brokers, about once a second."""
        self.pressure = sum(pressures)
        if now_ms - self._at_ms > GAP_MS:
            self._more_since_ms = self._fewer_since_ms = None
        self._at_ms = now_ms
        more = min(_brokers_for(self.pressure, FULL_SHARE), self._brokers_max)
        fewer = min(_brokers_for(self.pressure, ROOMY_SHARE), self._brokers_max)
        if more > self.brokers:
            # The least of these seconds: what was asked for all the time.
            self._more = more if self._more_since_ms is None else min(self._more, more)
            self._more_since_ms = now_ms if self._more_since_ms is None else self._more_since_ms
            if now_ms - self._more_since_ms >= UP_AFTER_MS:
                self.brokers, self._more_since_ms = self._more, None
        else:
            self._more_since_ms = None
        if fewer < self.brokers:
            # The most of these minutes.
            self._fewer = fewer if self._fewer_since_ms is None else max(self._fewer, fewer)
            self._fewer_since_ms = now_ms if self._fewer_since_ms is None else self._fewer_since_ms
            if now_ms - self._fewer_since_ms >= DOWN_AFTER_MS:
                self.brokers, self._fewer_since_ms = self._fewer, None
        else:
            self._fewer_since_ms = None


def desired_brokers(
    minimum: int, reservations: Sequence[OpenReservation], demand: LoadDemand, brokers_max: int = BROKERS_MAX
) -> Desired:
    """The number for fleets to follow, with its reasons.

    Args:
        minimum: what the fleet always keeps; 0 or more.
        brokers_max: the largest number there is to be, also where a reservation from before this limit says more.
    """
    claims = [(minimum, 0, f"the minimum is {_brokers(minimum)}")]
    for one in reservations:
        owner = f" of {one.reservation.owner}" if one.reservation.owner else ""
        claims.append(
            (
                one.reservation.brokers,
                1,
                f"reservation {one.reservation.id}{owner} holds {_brokers(one.reservation.brokers)} "
                f"for another {math.ceil(one.left_ms / 1000)} s",
            )
        )
    claims.append((demand.brokers, 2, demand.reason))
    claims.sort(key=lambda claim: (-claim[0], claim[1]))
    reasons = tuple(text for _, _, text in claims)
    if claims[0][0] > brokers_max:
        reasons = (f"there are to be at most {_brokers(brokers_max)}", *reasons)
    return Desired(brokers=min(claims[0][0], brokers_max), reasons=reasons)


def _brokers_for(pressure: float, share: float) -> int:
    """At least one: a cluster that nobody uses is still to answer, unless its fleet says otherwise."""
    # A hair below: 0.7 on one broker is one broker, whatever floats make of the quotient.
    return max(1, math.ceil(min(pressure / share, BROKERS_MAX + 1) - 1e-9))


def _check_text(name: str, text: str, chars_max: int, *, empty: bool) -> None:
    if not (text or empty) or len(text) > chars_max or not text.isprintable():
        least = 0 if empty else 1
        raise _refused(f"a reservation's {name} has {least} to {chars_max} printable characters", **{name: text[:chars_max]})


def _refused(message: str, **values: object) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"{message}. " + " ".join(f"{name}=`{value}`" for name, value in values.items()))


def _brokers(count: int) -> str:
    return "1 broker" if count == 1 else f"{count} brokers"
