"""Broker processes of `headgate up`, which follows the desired number by itself: this fleet only observes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.pipelines.fleets.interface import FleetState

if TYPE_CHECKING:
    from headgate.broker.client.control import DesiredBrokers


class LocalFleet:
    """The brokers of `headgate up`.

    Args:
        desired: returns the cluster's desired and live numbers of brokers.
    """

    name = "headgate up"
    follows = True

    def __init__(self, desired: Callable[[], DesiredBrokers]) -> None:
        self._desired = desired

    def state(self) -> FleetState:
        """The cluster's own numbers."""
        found = self._desired()
        return FleetState(asked=found.brokers, running=found.live_brokers, note="; ".join(found.reasons))

    def scale(self, brokers: int) -> FleetState:
        """Do nothing: `headgate up` polls the number by itself."""
        return self.state()
