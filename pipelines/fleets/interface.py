"""The contract of a fleet.

The cluster states the desired number of brokers (`headgate capacity list`); a fleet carries it out. A fleet decides no number
and drains nothing: a broker that receives SIGTERM hands over its segments first. `scale` with the same number again changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """The fleet's state. `asked`: requested brokers. `running`: running brokers. `note`: a remark for a person, or empty."""

    asked: int
    running: int
    note: str = ""


class Fleet(Protocol):
    """Starts and stops brokers. Methods raise HeadgateError: FatalError (not allowed, no such service), RetryError (not now)."""

    @property
    def name(self) -> str:
        """The fleet's name for a person: ``statefulset headgate/brokers``."""
        ...

    @property
    def follows(self) -> bool:
        """True when the fleet follows the cluster's desired number by itself; `scale` is then not called."""
        ...

    def state(self) -> FleetState:
        """The current state."""
        ...

    def scale(self, brokers: int) -> FleetState:
        """Request a number of brokers, within the fleet's own limits. Returns the requested number at once."""
        ...
