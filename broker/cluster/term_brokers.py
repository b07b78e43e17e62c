"""What the leader knows of the brokers of its cluster, and the questions about them. Answers change nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.segments import BrokerLoad
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason


@dataclass(eq=False)
class Member:
    """A member with a stream to the leader, and the contents of its last report."""

    incarnation: Incarnation
    load: BrokerLoad
    trouble: str = ""
    """The reason why the member cannot store records. Empty: it can store."""
    trouble_since_s: float | None = None
    """The monotonic time, in seconds, since which the member has reported trouble. None: it has none."""
    clock_ahead_ms: int | None = None
    """Milliseconds by which the leader's clock was ahead of the member's machine. None: unknown."""


class Brokers:
    """The brokers of one term, for reading. Only `Term` changes what is known of them.

    Args:
        mine: this broker's incarnation.
        is_draining: this broker must lose its segments and get no new ones.
    """

    def __init__(self, mine: Incarnation, *, is_draining: bool) -> None:
        self.manifest = Manifest()
        self.members: dict[str, Member] = {}
        """Members with a stream, by incarnation."""
        self.condemned: set[str] = set()
        """Incarnations that were lost in this term. The leader commits none of their edits."""
        self.is_draining = is_draining
        self._mine = mine
        self._own_load: BrokerLoad | None = None
        self._damaged: dict[str, float] = {}
        """Incarnations with an unreadable log, and the monotonic time in seconds before which their recovery is not tried again."""
        self._drained: set[str] = set()
        """Incarnations that an operator drained, or that announced their end."""

    def others(self) -> list[Incarnation]:
        """The open incarnations of other brokers."""
        return [
            incarnation
            for incarnation in self.manifest.incarnations.values()
            if not incarnation.sealed and incarnation.id != self._mine.id
        ]

    def to_recover(self) -> list[Incarnation]:
        """The condemned brokers that no failover has recovered yet."""
        return [other for other in self.others() if other.id in self.condemned]

    def trouble_of(self, incarnation_id: str) -> str:
        """The reason why another live broker cannot store records at the moment. Empty: it can."""
        member = self.members.get(incarnation_id)
        return "it is not connected" if member is None else member.trouble

    def takers(self) -> int:
        """The number of brokers that can take the segments of one that drains. A broker that has not joined yet counts: it may."""
        draining = {key for key, member in self.members.items() if member.load.draining} | self._drained | self.condemned
        return (not self.is_draining) + sum(other.id not in draining and not other.is_lane for other in self.others())

    def lane_loads(self) -> list[BrokerLoad]:
        """The last reports of the live lanes."""
        return [self.members[key].load for key in self._live_members() if self.members[key].incarnation.is_lane]

    def _live_members(self) -> list[str]:
        incarnations = self.manifest.incarnations
        return [key for key in self.members if key not in self.condemned and key in incarnations and not incarnations[key].sealed]

    def _lanes(self) -> set[str]:
        return {key for key, member in self.members.items() if member.incarnation.is_lane}

    def loads(self) -> list[BrokerLoad]:
        """The last reports of the live brokers, this one included. Lanes, and an incarnation that sealed itself, are left out,
        because they can lead nothing."""
        incarnations = self.manifest.incarnations
        loads = [self.members[key].load for key in self._live_members() if not self.members[key].incarnation.is_lane]
        mine = incarnations.get(self._mine.id)
        if self._own_load is not None and (mine is None or not mine.sealed):
            loads.insert(0, replace(self._own_load, draining=self.is_draining))
        # A drained member may not have received the message yet.
        return [
            load if load.draining or load.incarnation_id not in self._drained else replace(load, draining=True) for load in loads
        ]

    def awaits_members(self) -> bool:
        """True if some brokers have neither connected nor been found lost yet."""
        return any(other.id not in self.members and other.id not in self._damaged for other in self.others())

    def check_condemned(self, incarnation_id: str) -> None:
        """Raises FencedError if a broker is condemned: the leader takes nothing from it."""
        if incarnation_id in self.condemned:
            raise FencedError(Reason.FENCED, f"another broker takes over from this one. incarnation=`{incarnation_id}`")

    def check_id(self, incarnation: Incarnation) -> None:
        """Raises InvalidError if another live broker has the broker id of one that asks to join."""
        for other in [self._mine, *(member.incarnation for member in self.members.values())]:
            if other.broker_id == incarnation.broker_id and other.id != incarnation.id:
                raise InvalidError(
                    Reason.INVALID_CONFIG,
                    f"another broker has this id: choose another with --broker-id. broker_id=`{incarnation.broker_id}` "
                    f"address=`{other.host}:{other.kafka_port}`",
                )
