"""Where a client reads each partition: at the lane that its lead has named, or at the lead. No I/O.

A lane that fails, or does not have the records, costs one question more: the client goes on at the lead. If the lane served
nothing, or only for a moment, the client stays at the lead for a while, so that it never goes in circles.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

STAY_S = 5.0
"""A reader that is back within this time, in seconds, does not go again at once: the lane is gone."""
REST_S, REST_S_MAX = 60.0, 960.0
"""Time, in seconds, for which the lead then serves the reader. It doubles each time in a row, up to the second number: an address
that cannot be reached from here may cost a time limit at each attempt."""


@dataclass(slots=True)
class _Way:
    address: str | None = None
    went_s: float = 0.0
    has_served: bool = False
    rest_s: float = REST_S
    rests_until_s: float = 0.0


class LaneWays:
    """The ways of one client, by partition."""

    def __init__(self) -> None:
        self._ways: dict[Hashable, _Way] = {}

    def address(self, partition: Hashable) -> str | None:
        """The address of the lane at which a partition is read; None: it is read at its lead."""
        way = self._ways.get(partition)
        return None if way is None else way.address

    def may_go(self, partition: Hashable, now_s: float) -> bool:
        """True if the reader at a lead goes to a lane that the lead names."""
        way = self._ways.get(partition)
        return way is None or now_s >= way.rests_until_s

    def go(self, partition: Hashable, address: str, now_s: float) -> None:
        """The lead has named this lane."""
        way = self._ways.setdefault(partition, _Way())
        way.address, way.went_s, way.has_served = address, now_s, False

    def served(self, partition: Hashable) -> None:
        """The lane has sent records of the partition."""
        way = self._ways.get(partition)
        if way is not None:
            way.has_served = True

    def back(self, partition: Hashable, now_s: float) -> None:
        """The lane failed, or has no more records of the partition: read at the lead."""
        way = self._ways.get(partition)
        if way is not None and way.address is not None:
            way.address = None
            if way.has_served and now_s - way.went_s >= STAY_S:
                way.rest_s = REST_S
            else:
                way.rests_until_s = now_s + way.rest_s
                way.rest_s = min(2 * way.rest_s, REST_S_MAX)

    def forget(self, partition: Hashable) -> None:
        """The partition is no longer read."""
        self._ways.pop(partition, None)
