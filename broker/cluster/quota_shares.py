"""How the leader divides quotas among the brokers. No I/O.

Each broker enforces its share alone, so a request never waits for another broker. The leader hears what each broker's clients use,
and divides anew at each report: a broker whose clients wait gets what the others leave. The shares of a quota sum up to the quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.broker.cluster.meters import Use
from headgate.broker.cluster.quotas import Key

HEADROOM = 1.5
"""A broker whose clients do not wait keeps this multiple of what they use, so that growth does not wait for the next division."""
FLOOR = 0.1
"""Part of an equal share that every broker keeps: its first client must not wait for the next division."""
CHANGE_MIN = 0.01
"""Least relative change of a share that is worth a message."""


class QuotaBook:
    """What brokers use of their quotas, by incarnation, as they last reported it."""

    def __init__(self) -> None:
        self._uses: dict[str, dict[Key, Use]] = {}
        self._told: dict[str, dict[Key, float]] = {}

    def note(self, incarnation_id: str, uses: Iterable[Use]) -> None:
        self._uses[incarnation_id] = {(use.entity, use.kind): use for use in uses}

    def divide(self, incarnation_ids: list[str]) -> dict[str, dict[Key, float]]:
        """The shares of the live brokers whose shares have changed enough: all of a broker's shares replace its earlier ones."""
        self._uses = {key: uses for key, uses in self._uses.items() if key in incarnation_ids}
        limits = {key: use.limit for uses in self._uses.values() for key, use in uses.items()}
        shares: dict[str, dict[Key, float]] = {incarnation_id: {} for incarnation_id in incarnation_ids}
        for key, limit in limits.items():
            wants = {
                incarnation_id: _wanted(self._uses.get(incarnation_id, {}).get(key), limit) for incarnation_id in incarnation_ids
            }
            for incarnation_id, share in divide(limit, wants).items():
                shares[incarnation_id][key] = share
        fresh = {
            incarnation_id: found for incarnation_id, found in shares.items() if _differ(found, self._told.get(incarnation_id))
        }
        self._told = shares
        return fresh

    def all(self) -> list[tuple[str, Use]]:
        """The latest uses: (incarnation, use)."""
        return [(incarnation_id, use) for incarnation_id, uses in self._uses.items() for use in uses.values()]


def _wanted(use: Use | None, limit: float) -> float:
    if use is None:
        return 0.0
    return limit if use.is_throttled else min(use.rate * HEADROOM, limit)


def divide(limit: float, wants: Mapping[str, float]) -> dict[str, float]:
    """Divide a quota: nobody gets more than it wants before all others have as much, then the rest goes to all equally."""
    if not wants:
        return {}
    floor = limit * FLOOR / len(wants)
    shares = dict.fromkeys(wants, floor)
    left = limit - floor * len(wants)
    hungry = {incarnation_id: want - floor for incarnation_id, want in wants.items() if want > floor}
    while hungry and left > limit * 1e-9:
        part = left / len(hungry)
        step = min(part, min(hungry.values()))
        for incarnation_id in list(hungry):
            shares[incarnation_id] += step
            left -= step
            hungry[incarnation_id] -= step
            if hungry[incarnation_id] <= limit * 1e-9:
                del hungry[incarnation_id]
    for incarnation_id in shares:
        shares[incarnation_id] += max(left, 0.0) / len(shares)
    return shares


def _differ(now: Mapping[Key, float], told: Mapping[Key, float] | None) -> bool:
    if told is None:
        return bool(now)
    return now.keys() != told.keys() or any(abs(share - told[key]) > CHANGE_MIN * share for key, share in now.items())
