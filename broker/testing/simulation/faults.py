"""Faults that the seed chooses: processes that die, stop, resume or run late; networks that are cut; a store that fails; clocks
that jump."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from random import Random

from headgate.broker.testing.simulation.fleet import Fleet
from headgate.broker.testing.simulation.ledger import Violation
from headgate.broker.testing.simulation.loop import Process
from headgate.broker.testing.simulation.network import CLIENTS
from headgate.broker.testing.simulation.process import LANE_ID, Broker
from headgate.broker.testing.simulation.scene import Scene

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMPS_MS = (2 * DAY_MS, 30 * DAY_MS, -30 * DAY_MS, HOUR_MS, -HOUR_MS, 5_000, -5_000)
QUIET_S = 8.0
"""Pause after a fault in seeds with one fault at a time, seconds. By then the failover is done and the leader has a follower
again."""


STARVED_RATE = 0.15
"""Share of the seeds in which processes are starved of CPU time and no other fault occurs."""
STARVED_TURN_S = 0.02
"""Longest time for which a starved process runs between two pauses, seconds."""
STARVED_PAUSES = (0.5, 1.0, 1.0, 2.5)
"""Longest pause of a starved process, as a multiple of the longest pause that does not count as a hang."""
REPORTS_S = 0.6
"""Upper bound of the age of a broker's last report when its pause begins, seconds."""
REMEMBERED_S = 10.0
"""Time after a pause during which the leader may still replace the broker because of it, seconds."""


class Replacements:
    """Decides whether the leader may replace a living broker, in seeds where processes are starved and no other fault occurs.

    The leader cannot distinguish a hanging broker from one that a pause kept silent for the member timeout. It may replace
    such brokers, one at a time. It may replace no other living broker.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.timeout_s = scene.member_timeout_ms / 1000
        self.pause_s_max = self.timeout_s - REPORTS_S
        """Longest pause of a broker that may not be replaced, seconds."""
        self._hung_until_s: dict[Process, float] = {}
        self._leader = ""
        self._last: tuple[str, float] = ("", float("-inf"))
        """The leader that replaced a living broker last, and the time at which it did."""

    def pauses(self, process: Process, seconds: float) -> None:
        """Note that a process is paused from now on, for some seconds."""
        if seconds > self.pause_s_max:
            self._hung_until_s[process] = self._scene.loop.time() + seconds + REMEMBERED_S

    def leads(self, incarnation_id: str) -> None:
        self._leader = incarnation_id

    def replaced(self, broker: Broker) -> None:
        """Check a broker that ended although it lived and was not told to end. Raises Violation."""
        now_s = self._scene.loop.time()
        if now_s > self._hung_until_s.get(broker.process, float("-inf")):
            raise Violation("starved brokers stay", f"{broker.name} was replaced, and did nothing but run late")
        leader, at_s = self._last
        if leader == self._leader and now_s - at_s < self.timeout_s:
            raise Violation("starved brokers stay", f"{broker.name} was replaced {now_s - at_s:.1f} s after another silent broker")
        self._last = (self._leader, now_s)


class Nemesis:
    """Injects faults into a running scenario, as the seed chooses."""

    def __init__(self, scene: Scene, fleet: Fleet) -> None:
        self._scene = scene
        self._fleet = fleet
        self.over = False
        self.made = 0
        self.only_starves = not scene.jumps and scene.random.random() < STARVED_RATE
        """Only starve, kill and drain processes (`Replacements`)."""
        self.replacements = Replacements(scene)
        self._lengths_s: tuple[float, ...] = (1.0,)
        self._undo: list[Callable[[], None]] = []

    async def run(self, rounds: int, lengths_s: tuple[float, ...]) -> None:
        """Inject `count` faults. `lengths_s`: their approximate durations."""
        random = self._scene.random
        self._lengths_s = lengths_s
        await asyncio.sleep(random.random() * 1.5)
        for _ in range(rounds):
            self.made += 1
            await self._round()
            if self._scene.replicated:
                await asyncio.sleep(QUIET_S)
            await asyncio.sleep(random.choice((0.0, 0.1, 0.5, 2.0)) * random.random())
        self.over = True

    async def hurt_lane(self, random: Random) -> None:
        """Start the lane; kill, stop, cut off and restart it until the faults are over.

        Args:
            random: apart from that of the other faults.
        """
        lane = self._fleet.begin(LANE_ID)
        while True:
            await asyncio.sleep(random.random() * 3.0)
            if self.over:
                return
            if not lane.alive:
                lane = self._fleet.begin(LANE_ID)
                continue
            seconds = random.random() * 8.0
            kind = random.choice(("kill", "stop", "leave", "cut_store") if self.only_starves else ("kill", "stop", "leave", "cut"))
            self._scene.trace("nemesis", "lane", kind, round(seconds, 3))
            if kind == "kill":
                lane.kill()
            elif kind == "leave":
                lane.stop()
            else:
                await self._hurt(kind, lane, seconds)

    def heal(self) -> None:
        """End every cut, stop and slowdown."""
        scene = self._scene
        for undo in self._undo:
            undo()
        self._undo.clear()
        scene.network.heal()
        scene.medium.weather = dataclasses.replace(scene.calm)
        for broker in (*self._fleet.alive(), *self._fleet.lanes_alive()):
            broker.view.cut = False
            if broker.process.stopped:
                scene.loop.resume(broker.process)

    def _victim(self) -> Broker | None:
        """A random broker; the leader is chosen more often than others."""
        scene = self._scene
        alive, leaders = self._fleet.alive(), self._leaders()
        if leaders and scene.random.random() < 0.4:
            return scene.random.choice(leaders)
        return scene.random.choice(alive) if alive else None

    def _leaders(self) -> list[Broker]:
        """The brokers that lead the cluster, or think so."""
        return [broker for broker in self._fleet.alive() if broker.serving and broker.participant.leader is not None]

    async def _round(self) -> None:
        scene, random = self._scene, self._scene.random
        victim = self._victim()
        if self.only_starves:
            await self._starved_round(victim)
            return
        if scene.jumps:
            if victim is not None:
                await self._hurt("clock", victim, random.choice(self._lengths_s) * (0.5 + random.random()))
            return
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
                "starve",
                "strand" if scene.replicated else "kill_all",
            ),
            (10, 8, 4, 9, 4, 2, 8, 2, 8, 3, 6, 4, 8 if scene.replicated else 1),
        )[0]
        seconds = random.choice(self._lengths_s) * (0.5 + random.random())
        scene.trace("nemesis", kind, "" if victim is None else victim.name, round(seconds, 3))
        if kind == "weather":
            scene.medium.weather = dataclasses.replace(
                scene.calm,
                slow_rate=random.choice((0.0, 0.05, 0.3)),
                slow_s=random.choice((0.3, 2.0)),
                refused_rate=random.choice((0.0, 0.02, 0.1)),
                ambiguous_rate=random.choice((0.0, 0.05, 0.1)),
                late_rate=random.choice((0.0, 0.02, 0.1)),
            )
            await asyncio.sleep(seconds)
            scene.medium.weather = dataclasses.replace(scene.calm)
        elif kind == "outage":
            scene.medium.weather.outage = True
            await asyncio.sleep(seconds)
            scene.medium.weather.outage = False
        elif kind == "starve":
            await self._starve(seconds)
        elif kind == "kill_all":
            for broker in self._fleet.alive():
                self._kill(broker)
        elif kind == "strand":
            await self._strand(seconds)
        elif victim is not None:
            await self._hurt(kind, victim, seconds)

    async def _starved_round(self, victim: Broker | None) -> None:
        """Starve processes; one of them may be killed or drained meanwhile."""
        random = self._scene.random
        seconds = 3 * random.choice(self._lengths_s) * (0.5 + random.random())
        self._scene.trace("nemesis", "only starves", round(seconds, 3))
        starving = asyncio.create_task(self._starve(seconds))
        if victim is not None and random.random() < 0.3:
            await asyncio.sleep(seconds * random.random())
            if victim.alive:
                self._scene.trace("nemesis", "ends", victim.name)
                self._kill(victim) if random.random() < 0.5 else victim.stop()
        await starving

    async def _starve(self, seconds: float) -> None:
        """All processes, or some of them, run for a moment between two pauses."""
        scene, random = self._scene, self._scene.random
        addresses = sorted(self._fleet.brokers)
        starved = addresses if random.random() < 0.6 else random.sample(addresses, random.randint(1, len(addresses)))
        pause_s = random.choice(STARVED_PAUSES) * self.replacements.pause_s_max
        scene.trace("nemesis", "starves", " ".join(starved), pause_s)
        await asyncio.gather(*(self._starve_one(address, pause_s, scene.loop.time() + seconds) for address in starved))

    async def _starve_one(self, address: str, pause_s: float, until_s: float) -> None:
        """The process that runs at an address now."""
        scene, random = self._scene, self._scene.random
        while scene.loop.time() < until_s:
            process = self._fleet.brokers[address].process
            paused_s = random.random() * pause_s
            self.replacements.pauses(process, paused_s)
            scene.loop.stop_process(process)
            await asyncio.sleep(paused_s)
            if process.stopped:
                scene.loop.resume(process)
            await asyncio.sleep(random.random() * STARVED_TURN_S)

    async def _hurt(self, kind: str, victim: Broker, seconds: float) -> None:
        scene, random, network = self._scene, self._scene.random, self._scene.network
        others = [broker.door.place for broker in self._fleet.alive() if broker is not victim]
        place = victim.door.place
        if kind == "kill":
            self._kill(victim)
        elif kind == "drain":
            victim.stop()
        elif kind == "clock":
            wall = victim.clock.wall
            wall.wrong_ms = 0 if wall.wrong_ms and random.random() < 0.3 else wall.wrong_ms + random.choice(JUMPS_MS)
            scene.trace("nemesis", "clock is wrong by ms", victim.name, wall.wrong_ms)
            await self._after_jump(victim, seconds)
        elif kind == "stop":
            scene.loop.stop_process(victim.process)
            await asyncio.sleep(seconds)
            scene.loop.resume(victim.process)
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

    async def _strand(self, seconds: float) -> None:
        """Cut a lead off from the store and from the leader, and not from its follower. Only the follower can ack its records now,
        or stop it."""
        scene = self._scene
        if not (leaders := self._leaders()):
            return
        leader = leaders[0]
        followers = leader.engine.manifest.followers
        followed = [
            broker
            for broker in self._fleet.alive()
            if broker.serving
            and broker is not leader
            and (follower := followers.get(broker.engine.incarnation_id)) is not None
            and follower.incarnation_id != leader.engine.incarnation_id
        ]
        if not followed:
            return
        lead = scene.random.choice(followed)
        scene.trace("nemesis", "strands", lead.name)
        lead.view.cut = True
        scene.network.cut(lead.door.place, leader.door.place)
        await asyncio.sleep(seconds + 2 * scene.member_timeout_ms / 1000)
        scene.network.heal()
        lead.view.cut = False

    async def _after_jump(self, victim: Broker, seconds: float) -> None:
        """Make a clock jump matter: a broker starts with the wrong clock, or producers retry batches that were acked before the
        jump."""
        scene, random = self._scene, self._scene.random
        what = random.choices(("nothing", "kill", "kill_all", "cut_clients"), (3, 3, 0 if scene.replicated else 1, 3))[0]
        if what == "kill":
            self._kill(victim)
        elif what == "kill_all":
            for broker in self._fleet.alive():
                self._kill(broker)
        elif what == "cut_clients":
            scene.network.cut(victim.door.place, CLIENTS, both=False)
            await asyncio.sleep(max(seconds, 1.0))
            # Resets first: messages that were held back are lost with their connection.
            scene.network.reset(victim.door.place, CLIENTS)
            scene.network.heal()

    def _kill(self, broker: Broker) -> None:
        broker.kill()
        self._fleet.gone(broker)
