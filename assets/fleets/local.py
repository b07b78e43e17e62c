"""Broker processes of `headgate up`, which follows the desired number by itself: this fleet observes."""

from __future__ import annotations

from collections.abc import Callable

from assets.fleets.interface import FleetState
from broker.client.control import DesiredBrokers


class LocalFleet:
    """What `headgate up` runs.

    Args:
        desired: asks the cluster how many brokers there are to be, and how many there are.
    """

    name = "headgate up"
    follows = True

    def __init__(self, desired: Callable[[], DesiredBrokers]) -> None:
        self._desired = desired

    def state(self) -> FleetState:
        """What the cluster says."""
        found = self._desired()
        return FleetState(asked=found.brokers, running=found.live_brokers, note="; ".join(found.reasons))

    def scale(self, brokers: int) -> FleetState:
        """Nothing to do: the supervisor looks by itself."""
        return self.state()
