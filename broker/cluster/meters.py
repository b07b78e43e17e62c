"""What this broker's clients have used of their quotas, and how long they must wait (KIP-219). No I/O.

A *meter* is a bucket that fills at this broker's share of a quota. A request is served and takes its bytes out; a client whose
bucket is overdrawn waits until it is full enough again. The bucket holds `BURST_S` seconds. So over any time a quota holds, but for
this burst and for one request of each connection.

The shares of a quota come from the leader (`quota_shares.py`). Until it has divided the quota, each broker has an equal part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headgate.broker.cluster.quotas import Entity, Key, Kind, Quotas

BURST_S = 1.0
"""Seconds of its quota that an idle client may use at once, as the length of Kafka's quota window."""
METERS_MAX = 50_000
"""Meters of one broker, more than its connections have. Above it those that are full are forgotten, which changes nothing for their
clients."""
CLIENTS_MAX = 10_000
USES_MAX = 1_000
"""Meters in one report to the leader: those with the greatest use of their quota."""


class Meter:
    """One quota at this broker. `limit`: of the cluster. `share`: this broker's part of it, per second. `used`: since the last
    report. `waited_s`: seconds that clients were told to wait, since the start."""

    __slots__ = ("_at_s", "_left", "_until_s", "limit", "reported_s", "share", "used", "waited_s")

    def __init__(self, limit: float, share: float, now_s: float) -> None:
        self.limit = limit
        self.share = share
        self.used = 0.0
        self.waited_s = 0.0
        self.reported_s = now_s
        self._left = share * BURST_S
        self._at_s = now_s
        self._until_s = 0.0

    def take(self, amount: float, now_s: float) -> float:
        """Take an amount. Returns the seconds that the client must wait."""
        self._fill(now_s)
        self._left -= amount
        self.used += amount
        wait_s = self.wait_s(now_s)
        if wait_s:
            self.told_to_wait(wait_s, now_s)
        return wait_s

    def told_to_wait(self, wait_s: float, now_s: float) -> None:
        """A client was told to wait, or to come again after that time."""
        self._until_s = max(self._until_s, now_s + wait_s)
        self.waited_s += wait_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the bucket is not overdrawn any more."""
        self._fill(now_s)
        return max(-self._left / self.share, 0.0)

    def room(self, now_s: float) -> float:
        """The amount that may be taken now without a wait."""
        self._fill(now_s)
        return max(self._left, 0.0)

    def is_throttled(self, now_s: float) -> bool:
        """Whether clients wait, or waited in the last second."""
        return now_s < self._until_s + BURST_S

    def is_full(self, now_s: float) -> bool:
        self._fill(now_s)
        return self._left >= self.share * BURST_S and not self.used

    def change(self, limit: float, share: float, now_s: float) -> None:
        self._fill(now_s)
        self.limit, self.share = limit, share
        self._fill(now_s)

    def _fill(self, now_s: float) -> None:
        self._left = min(self._left + (now_s - self._at_s) * self.share, self.share * BURST_S)
        self._at_s = now_s


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one quota at one broker: `rate` per second since the last report."""

    entity: Entity
    kind: Kind
    limit: float
    share: float
    rate: float
    is_throttled: bool
    waited_s: float


@dataclass(frozen=True, slots=True)
class Client:
    """The meters of one client; None where it has no quota."""

    produce: Meter | None
    fetch: Meter | None


class Meters:
    """The meters of one broker.

    Args:
        quotas: returns the quotas of the manifest. now_s: a monotonic clock.
        brokers: returns the number of live brokers.
    """

    def __init__(self, quotas: Callable[[], Quotas], now_s: Callable[[], float], brokers: Callable[[], int]) -> None:
        self._quotas = quotas
        self.now_s = now_s
        self._brokers = brokers
        self._meters: dict[Key, Meter] = {}
        self._clients: dict[tuple[str, str], Client | None] = {}
        self._shares: dict[Key, float] = {}
        """Of quotas that the leader has divided."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after quotas have changed."""
        self._past_s = dict.fromkeys(Kind, 0.0)
        """Waits at meters that are forgotten."""

    @property
    def is_on(self) -> bool:
        """Whether any quota exists."""
        return bool(self._quotas().by_entity)

    def changed(self) -> None:
        """Quotas have changed: clients get their new ones, and what they have used counts on."""
        before, self._meters = self._meters, {}
        self._clients.clear()
        quotas, now_s = self._quotas(), self.now_s()
        for (entity, kind), meter in before.items():
            found = quotas.of(kind, entity.user or "", entity.client_id or "")
            if found is None or found[0] != entity:
                self._past_s[kind] += meter.waited_s
                continue
            limit = found[1]
            if limit != meter.limit:
                self._shares.pop((entity, kind), None)
                meter.change(limit, self._share(entity, kind, limit), now_s)
            self._meters[entity, kind] = meter
        self.on_change()

    def client(self, user: str, client_id: str) -> Client | None:
        """The meters of a client; None if it has no quota."""
        key = (user, client_id)
        if key in self._clients:
            return self._clients[key]
        if len(self._clients) >= CLIENTS_MAX:
            self._clients.clear()
        quotas = self._quotas()
        found = [quotas.of(kind, user, client_id) for kind in Kind]
        client = None
        if any(found):
            meters = [
                None if quota is None else self._meter(quota[0], kind, quota[1]) for kind, quota in zip(Kind, found, strict=True)
            ]
            client = Client(*meters)
        self._clients[key] = client
        return client

    def _meter(self, entity: Entity, kind: Kind, limit: float) -> Meter:
        meter = self._meters.get((entity, kind))
        if meter is None:
            now_s = self.now_s()
            if len(self._meters) >= METERS_MAX:
                self._forget_full(now_s)
            meter = self._meters[entity, kind] = Meter(limit, self._share(entity, kind, limit), now_s)
        return meter

    def _forget_full(self, now_s: float) -> None:
        full = [key for key, meter in self._meters.items() if meter.is_full(now_s)]
        for key in full:
            self._past_s[key[1]] += self._meters.pop(key).waited_s
        self._clients.clear()
        self.on_change()

    def _share(self, entity: Entity, kind: Kind, limit: float) -> float:
        return min(self._shares.get((entity, kind), limit / max(self._brokers(), 1)), limit)

    # -- to and from the leader

    def divided(self, shares: Iterable[tuple[Entity, Kind, float]]) -> None:
        """The leader has divided quotas: this broker's shares, per second. Quotas that it does not name are divided equally."""
        self._shares = {(entity, kind): share for entity, kind, share in shares}
        now_s = self.now_s()
        for (entity, kind), meter in self._meters.items():
            meter.change(meter.limit, self._share(entity, kind, meter.limit), now_s)

    def report(self) -> list[Use]:
        """The use since the last report, of the quotas that were used most."""
        now_s, uses = self.now_s(), []
        for (entity, kind), meter in self._meters.items():
            throttled = meter.is_throttled(now_s)
            if meter.used or throttled:
                rate = meter.used / max(now_s - meter.reported_s, 0.1)
                uses.append(Use(entity, kind, meter.limit, meter.share, rate, throttled, meter.waited_s))
                meter.used = 0.0
            meter.reported_s = now_s
        uses.sort(key=lambda use: use.rate / use.limit, reverse=True)
        return uses[:USES_MAX]

    def throttled(self) -> list[tuple[Entity, Kind]]:
        """The quotas whose clients wait now."""
        now_s = self.now_s()
        return [key for key, meter in self._meters.items() if meter.is_throttled(now_s)]

    def waited_s(self) -> dict[Kind, float]:
        """Seconds that clients were told to wait since the start, by kind."""
        found = dict(self._past_s)
        for (_, kind), meter in self._meters.items():
            found[kind] += meter.waited_s
        return found
