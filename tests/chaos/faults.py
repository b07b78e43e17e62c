"""The faults of a round. `Faults.apply` injects one, ends it, and waits until the cluster has recovered."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.floods import Floods
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.cluster import EXIT_FENCED, PATIENCE_S, Brokers, Trouble, Watched
from tests.support.loop_device import LoopDevice
from tests.support.network import Network

EXIT_FAILED = 1
LOOPS_PER_CORE = 8
STARVE_S = 6.0
CAP_S = 5.0
FRAME_BYTES = 64 << 20
"""Announced length of the request that fills the broker's memory, bytes; half of it is sent."""
CAP_ROOM_BYTES = (0, 1 << 20, 16 << 20)
"""Address space of a broker with a memory cap, in addition to its use at the start of the cap, bytes."""
HOLD_S = 4.0
"""Longest time for which a device freezes, or is full, seconds."""
JUMPS_S = tuple(sign * span for sign in (1, -1) for span in (30.0, 3_600.0, 2 * 86_400.0, 30 * 86_400.0))
OUTAGE_S = (60.0, 150.0)
"""Shortest and longest outage of S3, seconds."""
DELAY_S_MAX = 5.0
"""Longest delay of each way between two brokers, or between a broker and S3, seconds."""
ON_DEVICE = ("power", "freeze", "full")
ON_S3 = ("outage", "far-store")
ALL = ("kill", "drain", "pause", "peers", "starve", "clock", "memory", "far", *ON_DEVICE, *ON_S3)
WITH_FLOODS = (*ALL, "spark")
_BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end:\n    pass\n"


class Faults:
    """Faults for the brokers of one life.

    Args:
        clocks: by broker, the file with the clock's error in seconds (`tests/support/skewed_broker.py`).
        device: the device of the store; None: the store has no device of its own, and the faults of `ON_DEVICE` are unavailable.
        floods: if given, each fault occurs in the middle of one; otherwise the fault "spark" is unavailable.
    """

    def __init__(
        self,
        brokers: Brokers,
        clients: Watched,
        draw: random.Random,
        network: Network,
        clocks: dict[BrokerProcess, Path],
        device: LoopDevice | None,
        floods: Floods | None = None,
    ) -> None:
        self._brokers, self._clients, self._draw, self._clocks, self._device = brokers, clients, draw, clocks, device
        self._floods = floods
        self._network = network
        self._trouble = Trouble(brokers, clients, draw, network)

    def apply(self, how: str) -> str:
        """Inject one fault, and wait until the cluster, and the flood if there is one, have recovered.

        Returns a description for the round's line.
        """
        if self._floods is None:
            return self._inject(how)
        self._floods.begin()
        return f"{self._inject(how)}, {self._floods.end()}"

    def _inject(self, how: str) -> str:
        on_leader = self._draw.random() < 0.5
        if how in ("kill", "drain", "pause", "peers"):
            self._trouble.round(how, on_leader=on_leader, seconds=self._draw.uniform(1, 8))
            return "the leader" if on_leader else "any broker"
        victim = self._brokers.leader() if on_leader else self._draw.choice(self._brokers.all)
        act: Callable[[BrokerProcess], str] = getattr(self, f"_{how.replace('-', '_')}")
        done = act(victim)
        self._trouble.recover()
        return done

    def _starve(self, victim: BrokerProcess) -> str:
        count = LOOPS_PER_CORE * (os.cpu_count() or 1)
        loops = [subprocess.Popen([sys.executable, "-c", _BUSY, str(STARVE_S)]) for _ in range(count)]
        try:
            self._hold(STARVE_S)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        return f"{count} busy loops for {STARVE_S:.0f} s"

    def _clock(self, victim: BrokerProcess) -> str:
        jump_s = self._draw.choice(JUMPS_S)
        victims = self._draw.choice([[victim], self._brokers.all])
        for one in victims:
            self._clocks[one].write_text(str(jump_s))
        try:
            self._hold(HOLD_S)
        finally:
            for one in victims:
                self._clocks[one].write_text("0")
        return f"{jump_s / 3600:+,.2f} h for {len(victims)} brokers"

    def _memory(self, victim: BrokerProcess) -> str:
        pages = int(Path(f"/proc/{victim.pid}/statm").read_text().split()[0])
        room = self._draw.choice(CAP_ROOM_BYTES)
        _, hard = resource.prlimit(victim.pid, resource.RLIMIT_AS)
        resource.prlimit(victim.pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + room, hard))
        try:
            # A Produce request that never ends takes memory as long as its bytes arrive.
            with contextlib.suppress(OSError), socket.create_connection((HOST, victim.kafka_port), CAP_S) as hungry:
                hungry.settimeout(CAP_S)
                hungry.sendall(struct.pack(">ihhi", FRAME_BYTES, 0, 9, 1) + bytes(FRAME_BYTES // 2))
                self._hold(CAP_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(victim.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
        return f"{room >> 20} MiB more for {CAP_S:.0f} s"

    def _far(self, victim: BrokerProcess) -> str:
        """Brokers are far from each other. All of them are members and acknowledge, while the delays last."""
        delays_s = {str(self._brokers.number(one)): self._delay_s() for one in self._brokers.all}
        return self._apart(delays_s, "between brokers")

    def _far_store(self, victim: BrokerProcess) -> str:
        """The leader, or all brokers, are far from S3. All are members and acknowledge, while the delays last."""
        delay_s = round(self._draw.choice([self._draw.uniform(0.1, 1), self._draw.uniform(1, DELAY_S_MAX)]), 2)
        one = f"store-{self._brokers.number(victim)}"
        return self._apart({self._draw.choice([one, "store"]): delay_s}, "to S3")

    def _delay_s(self) -> float:
        return round(self._draw.choice([0.0, self._draw.uniform(0, 1), self._draw.uniform(1, DELAY_S_MAX)]), 2)

    def _apart(self, delays_s: dict[str, float], where: str) -> str:
        self._network.delay(delays_s)
        began = time.monotonic()
        try:
            self._hold(HOLD_S)
            self._trouble.recover()
            took_s = time.monotonic() - began
        finally:
            self._network.delay({})
        return f"delays of {delays_s} s each way {where}, all was well after {took_s:.1f} s"

    def _outage(self, victim: BrokerProcess) -> str:
        """No broker reaches S3."""
        seconds = self._draw.uniform(*OUTAGE_S)
        self._network.cut(*((str(self._brokers.number(one)), "store") for one in self._brokers.all))
        try:
            self._hold(seconds)
        finally:
            self._network.heal()
        return f"of S3 for {seconds:.0f} s"

    def _spark(self, victim: BrokerProcess) -> str:
        assert self._floods is not None
        return self._floods.kill()

    def _power(self, victim: BrokerProcess) -> str:
        assert self._device is not None
        self._device.lose_power()
        for broker in self._brokers.all:
            broker.kill()
        self._device.restore_power()
        for broker in self._brokers.all:
            broker.spawn()
        for broker in self._brokers.all:
            broker.wait_serving(PATIENCE_S)
        return "of all brokers"

    def _freeze(self, victim: BrokerProcess) -> str:
        assert self._device is not None
        seconds = self._draw.uniform(1, HOLD_S)
        self._device.freeze()
        try:
            self._hold(seconds)
        finally:
            self._device.thaw()
        return f"for {seconds:.1f} s"

    def _full(self, victim: BrokerProcess) -> str:
        assert self._device is not None
        seconds = self._draw.uniform(1, HOLD_S)
        self._device.fill()
        try:
            self._hold(seconds)
        finally:
            self._device.empty()
        return f"for {seconds:.1f} s"

    def _hold(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._clients.check()
            time.sleep(0.05)


def may_end(broker: BrokerProcess) -> bool:
    """Whether a broker ended because of these faults: it names its store or its memory before it exits with 1."""
    last = broker.output().rpartition("--- start")[2].lower()
    return broker.exit_code() in (EXIT_FENCED, EXIT_FAILED) and any(word in last for word in ("memory", "store", "no space"))
