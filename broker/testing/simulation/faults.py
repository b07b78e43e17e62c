"""What goes wrong, by the seed: processes that die, stop and go on, networks that are cut, a store that fails, clocks that jump."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.testing.simulation.network import CLIENTS
from broker.testing.simulation.process import Broker

if TYPE_CHECKING:
    from broker.testing.simulation.scenario import Scenario

HOUR_MS = 3_600_000
QUIET_S = 8.0
"""After a fault, where only one may happen at a time: the failover is done, and whoever leads has a follower again."""


class Nemesis:
    """See the module's text."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.over = False
        self.made = 0
        self._lengths_s: tuple[float, ...] = (1.0,)
        self._undo: list[Callable[[], None]] = []

    async def run(self, rounds: int, lengths_s: tuple[float, ...]) -> None:
        """That many faults. `lengths_s`: how long they last, about."""
        random = self._scenario.random
        self._lengths_s = lengths_s
        await asyncio.sleep(random.random() * 1.5)
        for _ in range(rounds):
            self.made += 1
            await self._round()
            if self._scenario.replicated:
                await asyncio.sleep(QUIET_S)
            await asyncio.sleep(random.choice((0.0, 0.1, 0.5, 2.0)) * random.random())
        self.over = True

    def heal(self) -> None:
        """Everything that is cut, stopped or slow ends."""
        scenario = self._scenario
        for undo in self._undo:
            undo()
        self._undo.clear()
        scenario.network.heal()
        scenario.medium.weather = dataclasses.replace(scenario.calm)
        for broker in scenario.fleet.alive():
            broker.view.cut = False
            if broker.process.stopped:
                scenario.loop.resume(broker.process)

    def _victim(self) -> Broker | None:
        """A broker; the leader more often than others."""
        scenario = self._scenario
        alive = scenario.fleet.alive()
        leaders = [broker for broker in alive if broker.serving and broker.cluster.leader is not None]
        if leaders and scenario.random.random() < 0.4:
            return scenario.random.choice(leaders)
        return scenario.random.choice(alive) if alive else None

    async def _round(self) -> None:
        scenario, random = self._scenario, self._scenario.random
        victim = self._victim()
        kind = random.choices(
            (
                "kill",
                "stop",
                "drain",
                "cut",
                "cut_one",
                "cut_clients",
                "cut_store",
                "outage",
                "weather",
                "reset",
                "clock",
                "kill_all",
            ),
            (10, 8, 4, 9, 4, 2, 8, 2, 8, 3, 2, 0 if scenario.replicated else 1),
        )[0]
        seconds = random.choice(self._lengths_s) * (0.5 + random.random())
        scenario.trace("nemesis", kind, "" if victim is None else victim.name, round(seconds, 3))
        if kind == "weather":
            scenario.medium.weather = dataclasses.replace(
                scenario.calm,
                slow_rate=random.choice((0.0, 0.05, 0.3)),
                slow_s=random.choice((0.3, 2.0)),
                refused_rate=random.choice((0.0, 0.02, 0.1)),
                ambiguous_rate=random.choice((0.0, 0.05, 0.1)),
                late_rate=random.choice((0.0, 0.02, 0.1)),
            )
            await asyncio.sleep(seconds)
            scenario.medium.weather = dataclasses.replace(scenario.calm)
        elif kind == "outage":
            scenario.medium.weather.outage = True
            await asyncio.sleep(seconds)
            scenario.medium.weather.outage = False
        elif kind == "kill_all":
            for broker in scenario.fleet.alive():
                self._kill(broker)
        elif victim is not None:
            await self._hurt(kind, victim, seconds)

    async def _hurt(self, kind: str, victim: Broker, seconds: float) -> None:
        scenario, random, network = self._scenario, self._scenario.random, self._scenario.network
        others = [broker.door.place for broker in scenario.fleet.alive() if broker is not victim]
        place = victim.door.place
        if kind == "kill":
            self._kill(victim)
        elif kind == "drain":
            victim.stop()
        elif kind == "clock":
            victim.clock.wall_ms += random.choice((-HOUR_MS, HOUR_MS, -1000, 1000))
        elif kind == "stop":
            scenario.loop.stop_process(victim.process)
            await asyncio.sleep(seconds)
            scenario.loop.resume(victim.process)
        elif kind == "reset":
            for other in others:
                network.reset(place, other)
        elif kind == "cut_store":
            victim.view.cut = True
            await asyncio.sleep(seconds)
            victim.view.cut = False
        else:
            whom = others if kind == "cut" else [CLIENTS] if kind == "cut_clients" else [random.choice([*others, CLIENTS])]
            both = random.random() < 0.7
            for other in whom:
                network.cut(place, other, both=both)
            if random.random() < 0.2:
                self._kill(victim)
            await asyncio.sleep(seconds)
            network.heal()
            if random.random() < 0.5:
                for other in whom:
                    network.reset(place, other)

    def _kill(self, broker: Broker) -> None:
        broker.kill()
        self._scenario.fleet.gone(broker)
