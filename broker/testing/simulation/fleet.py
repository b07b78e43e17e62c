"""What starts brokers, and starts again those that ended: a supervisor that is always right."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from broker.cluster.manifest import OpenSegment, SealSegment
from broker.cluster.segments import SegmentInfo
from broker.runtime.config import Settings
from broker.runtime.errors import HeadgateError
from broker.testing.simulation.ledger import Partition
from broker.testing.simulation.loop import WORLD
from broker.testing.simulation.process import Broker

if TYPE_CHECKING:
    from broker.testing.simulation.scenario import Scenario


class Fleet:
    """All brokers of a run.

    Args:
        count: how many there are.
    """

    def __init__(self, scenario: Scenario, settings: Settings, count: int) -> None:
        self._scenario = scenario
        self._settings = settings
        self._count = count
        self._runs = 0
        self.brokers: dict[str, Broker] = {}
        """The newest at each address."""
        self.peace = False
        """No more faults: whoever ends now has a reason to say."""
        self.closing = False
        """Nobody is started again."""
        self.ends: dict[str, dict[Partition, int]] = {}
        """By incarnation: where its sealed segments end, as the journal says."""
        self._segments: dict[int, SegmentInfo] = {}

    def start(self) -> None:
        for number in range(1, self._count + 1):
            self._scenario.loop.call_later(self._scenario.random.random() * 0.5, self.begin, number, context=WORLD)

    def alive(self) -> list[Broker]:
        """In the order of their addresses."""
        return [self.brokers[key] for key in sorted(self.brokers) if self.brokers[key].alive]

    def begin(self, number: int) -> Broker:
        """A new run of a broker. Its machine and ports are those of the run before."""
        scenario = self._scenario
        self._runs += 1
        address = f"host{number}:{9000 + number}"
        broker = Broker(
            loop=scenario.loop,
            network=scenario.network,
            medium=scenario.medium,
            trace=scenario.trace,
            random=scenario.random,
            settings=dataclasses.replace(self._settings, broker_id=number),
            name=f"broker{number}.{self._runs}",
            place=f"host{number}",
            address=address,
            append=scenario.append,
            acked=scenario.broker_acks,
            exited=self._exited,
        )
        self.brokers[address] = broker
        scenario.trace(broker.name, "starts", broker.incarnation_id)
        return broker

    def _exited(self, broker: Broker, error: HeadgateError | None) -> None:
        self.begin_again(broker)

    def begin_again(self, broker: Broker) -> None:
        """Start another run in its place, soon."""
        number = int(broker.address.rpartition(":")[2]) - 9000
        delay_s = self._scenario.random.random()
        self._scenario.loop.call_later(delay_s, self._again, number, broker, context=WORLD)

    def _again(self, number: int, broker: Broker) -> None:
        if not self.closing and self.brokers[broker.address] is broker:
            self.begin(number)

    # -- what the journal says

    def opened(self, edit: OpenSegment) -> None:
        self._segments[edit.segment.id] = edit.segment

    def sealed(self, edit: SealSegment) -> None:
        """Note where a segment ends."""
        segment = self._segments.get(edit.segment_id)
        if segment is not None:
            ends = self.ends.setdefault(segment.incarnation_id, {})
            for number, end in zip(segment.partitions, edit.ends, strict=True):
                key = (segment.topic_id.bytes, number)
                ends[key] = max(ends.get(key, 0), end)
