"""Starts brokers, restarts brokers that ended, and drains surplus brokers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.fleet import Drain
from headgate.broker.cluster.fleet import Fleet as Plan
from headgate.broker.cluster.objects import LANE
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import FencedError, HeadgateError
from headgate.broker.testing.simulation.clients import World
from headgate.broker.testing.simulation.clock import WallClock
from headgate.broker.testing.simulation.ledger import Partition, Violation
from headgate.broker.testing.simulation.loop import WORLD
from headgate.broker.testing.simulation.process import DESIRED, LANE_ID, Broker, address_of, place_of
from headgate.broker.testing.simulation.scene import Scene

EXTRA_MAX = 2
"""Most brokers that reservations can add to the base count."""
LOOK_S = 0.5
SKEWS_MS = (0, 0, 0, -5_000, 5_000)
"""Initial errors of a machine's wall clock, milliseconds."""
PATIENCE_S = 30.0
"""Longest time that a drained broker may take to end, seconds. It is killed then."""


class Fleet:
    """All brokers of a run. Stands for `headgate up` and makes the same decisions (`cluster/fleet.py`).

    Args:
        count: number of brokers without reservations.
        acked: the brokers' `acked`, see `Broker`.
    """

    def __init__(self, scene: Scene, settings: Settings, count: int, acked: Callable[[str, bytes, int, int, int], None]) -> None:
        self._scene = scene
        self._acked = acked
        self._settings = dataclasses.replace(settings, capacity_brokers_min=count, capacity_brokers_max=count + EXTRA_MAX)
        self._plan = Plan(count, count + EXTRA_MAX)
        self._walls: dict[int, WallClock] = {}
        """By broker: the wall clock of its machine. It outlives the broker's process."""
        self._runs = 0
        self.count = count
        self.brokers: dict[str, Broker] = {}
        """By address: the newest broker process."""
        self.lane: Broker | None = None
        """The newest process of the lane, which is no broker: it leads nothing, and no fault of brokers hits it."""
        self.peace = False
        """True when faults are over: from then on a broker that ends with an error is a violation."""
        self.closing = False
        """True at the end of the run: the fleet starts no broker any more."""
        self.ends: dict[str, dict[Partition, int]] = {}
        """By incarnation: the end offsets of its sealed segments, from the journal."""
        self._segments: dict[int, SegmentInfo] = {}
        self._starting: dict[int, Any] = {}
        """By slot: the timer of the next start."""
        self._drained: set[Broker] = set()
        """Brokers that were told to end after the faults were over."""

    def start(self, world: World) -> None:
        """Start the first brokers. A task of `world` follows the wanted number of brokers."""
        self._decide()
        world.spawn(self._follow(world), "fleet")

    def alive(self) -> list[Broker]:
        """The living brokers, in the order of their addresses."""
        return [self.brokers[key] for key in sorted(self.brokers) if self.brokers[key].alive]

    def lanes_alive(self) -> list[Broker]:
        """The lane, if it lives."""
        return [self.lane] if self.lane is not None and self.lane.alive else []

    @property
    def at_rest(self) -> bool:
        """True if exactly the base count of brokers runs, and no more are wanted."""
        return self._plan.wanted == len(self._plan.slots) == self.count and len(self._plan.serving) == self.count

    def begin(self, number: int) -> Broker:
        """Start a new run of a broker, or of the lane, on the same machine and ports as the run before."""
        scene = self._scene
        self._runs += 1
        address = address_of(number)
        is_lane = number == LANE_ID
        broker = Broker(
            loop=scene.loop,
            network=scene.network,
            medium=scene.medium,
            trace=scene.trace,
            random=scene.random,
            settings=dataclasses.replace(self._settings, broker_id=number, role=LANE if is_lane else self._settings.role),
            name=f"{'lane' if is_lane else 'broker'}{number}.{self._runs}",
            place=place_of(number),
            address=address,
            wall=self._walls.setdefault(number, WallClock(scene.random.choice(SKEWS_MS))),
            append=scene.append,
            acked=self._acked,
            served=self._served,
            exited=self.gone,
        )
        if is_lane:
            self.lane = broker
        else:
            self.brokers[address] = broker
        scene.trace(broker.name, "starts")
        return broker

    def gone(self, broker: Broker) -> None:
        """A broker's process has ended, by itself or by a signal."""
        # (A broker that was replaced because of an earlier fault has nothing left to hand over.)
        if broker in self._drained and not isinstance(broker.exit_error, FencedError | None):
            self._scene.fail(Violation("capacity ends", f"{broker.name} was drained in peace and failed: {broker.exit_error!r}"))
        if self.brokers.get(broker.address) is broker and broker.slot in self._plan.slots:
            self._plan.ended(broker.slot, self._now_ms())
            self._decide()

    def _served(self, broker: Broker) -> None:
        if broker.slot in self._plan.slots:
            self._plan.served(broker.slot, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._scene.loop.time() * 1000)

    def _decide(self) -> None:
        if self.closing:
            return
        scene = self._scene
        for action in self._plan.decide(self._now_ms()):
            if isinstance(action, Drain):
                self._drain(action.slot)
            else:
                delay_s = scene.random.random() * 0.5
                self._starting[action.slot] = scene.loop.call_later(delay_s, self._begin, action.slot, context=WORLD)
        next_ms = self._plan.next_ms()
        if next_ms is not None:
            scene.loop.call_later(max(next_ms - self._now_ms(), 1) / 1000, self._decide, context=WORLD)

    def _begin(self, slot: int) -> None:
        del self._starting[slot]
        if not self.closing:
            self.begin(slot + 1)

    def _drain(self, slot: int) -> None:
        if slot in self._starting:
            self._starting.pop(slot).cancel()
            self._plan.ended(slot, self._now_ms())
            return
        broker = next(broker for broker in self.brokers.values() if broker.slot == slot)
        if self.peace and broker.serving:
            self._drained.add(broker)
        self._scene.trace(broker.name, "is drained")
        broker.stop()
        self._scene.loop.call_later(PATIENCE_S, self._give_up, broker, context=WORLD)

    def _give_up(self, broker: Broker) -> None:
        if broker.alive and not self.closing:
            broker.kill()
            self.gone(broker)

    async def _follow(self, world: World) -> None:
        """Ask the cluster for the wanted number of brokers."""
        while not self.closing:
            await asyncio.sleep(LOOK_S)
            for address in [broker.address for broker in self.alive() if broker.serving]:
                try:
                    wanted = await world.ask_control(address, DESIRED, None)
                except HeadgateError:
                    continue
                if wanted != self._plan.wanted:
                    self._scene.trace("fleet", "wants", wanted)
                self._plan.want(wanted)
                self._decide()
                break

    # -- edits of the journal

    def incarnation(self, incarnation_id: str) -> Broker | None:
        """The broker of this incarnation, if it is the newest at its address; else None."""
        return next((broker for broker in self.brokers.values() if broker.incarnation_id == incarnation_id), None)

    def opened(self, edit: OpenSegment) -> None:
        self._segments[edit.segment.id] = edit.segment

    def sealed(self, edit: SealSegment) -> None:
        """Note the end offsets of a segment."""
        segment = self._segments.get(edit.segment_id)
        if segment is not None:
            ends = self.ends.setdefault(segment.incarnation_id, {})
            for number, end in zip(segment.partitions, edit.ends, strict=True):
                key = (segment.topic_id.bytes, number)
                ends[key] = max(ends.get(key, 0), end)
