"""The contract of a fleet.

The cluster says how many brokers there are to be (`headgate capacity list`); a fleet makes it so. It decides no number, and drains
nothing: a broker that is told to stop hands its segments over first. Calling `scale` again with the same number changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """What the fleet knows. `asked`: brokers it was told to run. `running`: those that run. `note`: for a person, or empty."""

    asked: int
    running: int
    note: str = ""


class Fleet(Protocol):
    """Starts and stops brokers. Methods raise HeadgateError: FatalError (not allowed, no such service), RetryError (not now)."""

    @property
    def name(self) -> str:
        """What it is, for a person: ``statefulset headgate/brokers``."""
        ...

    @property
    def follows(self) -> bool:
        """Whether it follows the cluster's desired number by itself: then `scale` is not called."""
        ...

    def state(self) -> FleetState:
        """What there is now."""
        ...

    def scale(self, brokers: int) -> FleetState:
        """Ask for so many brokers, within the fleet's own limits. Returns at once, with what was asked for."""
        ...
