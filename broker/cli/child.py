"""One broker as a child process of ``headgate up``, and the places that such children have.

Each broker is in a session of its own, so that Ctrl-C reaches only the supervisor, and holds the read end of a pipe whose other end
lives in the supervisor: if that is killed, the pipe closes and the brokers end by themselves, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection
from typing import TextIO

from headgate.broker.runtime.config import ENVIRONMENT_PREFIX, Settings
from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason
from headgate.broker.runtime.modules import found_by
from headgate.broker.server import ports
from headgate.broker.server.main import KAFKA_SOCKET, SUPERVISED
from headgate.broker.store.open import PRIVATE_URLS

LINE_BYTES_MAX = 1 << 20
"""A line of a child's that is longer is passed on in pieces."""
LOOKS = 15
"""Looks in a row without a sign of life between them, until a broker is killed."""
START_PARTS = 4
"""Times that the first sign of life may take longer than the others."""
STRIDE = 10
"""Between the ports of two brokers: 9092, 9102, 9112 ..., or further on where those are taken."""

_WHERE = re.compile(r" (kafka|grpc|http)=(\S+)")


def tell(stream: TextIO, text: str) -> None:
    """Write to a standard stream, at once. Where nobody reads it any more (a pipe to `head`, a terminal that is gone) all is lost
    from then on: brokers must not stand still for it, with what they say stuck in their pipe."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Places:
    """Where the brokers of a fleet listen.

    Args:
        settings: of the first one.
    """

    def __init__(self, settings: Settings) -> None:
        self._first = settings
        self._steps: dict[int, int] = {0: 0}
        """By slot: how many strides its ports are from the first one's."""
        self._kept: dict[int, socket.socket] = {}
        """By slot: the listening socket of its Kafka port, which outlives the broker's process. Clients that come meanwhile wait
        there for the next one; where they are refused, they come again after pauses that grow."""

    def settings(self, slot: int) -> Settings:
        """Of the broker in a slot; its ports are what they were before, unless somebody else has taken them.

        Raises FatalError(INVALID_CONFIG): there are no free ports.
        """
        first = self._first
        if slot == 0:
            return first
        taken = {step for other, step in self._steps.items() if other != slot}
        step = self._steps.get(slot, slot)
        while step in taken or not self._is_free(step, but_kafka=slot in self._kept and step == self._steps.get(slot)):
            step += 1
        self._steps[slot] = step
        return self._at(step, first.broker_id + slot)

    def _at(self, step: int, broker_id: int) -> Settings:
        values: dict[str, int] = {"broker_id": broker_id}
        for name in ("kafka_port", "grpc_port", "http_port"):
            port: int = getattr(self._first, name)
            values[name] = port + STRIDE * step if port else 0
            if values[name] > 65535:
                raise FatalError(Reason.INVALID_CONFIG, f"no free ports are left for another broker. first=`{port}`")
        return dataclasses.replace(self._first, **values)  # type: ignore[arg-type]

    def listen(self, slot: int, settings: Settings) -> socket.socket:
        """The listening socket of a broker's Kafka port: the one that is kept, or a new one, which is kept from now on.

        Raises FatalError(INVALID_CONFIG): the port is taken.
        """
        kept = self._kept.get(slot)
        if kept is not None and settings.kafka_port not in (0, ports.address(kept)[1]):
            self.release(slot)  # the broker has moved
            kept = None
        if kept is None:
            kept = self._kept[slot] = ports.listen(settings.host, settings.kafka_port, "kafka_port")
        else:
            ports.listen_again(kept)
        return kept

    def release(self, slot: int) -> None:
        """Refuse clients of this slot, unless its broker runs and listens; those that wait are refused, too."""
        kept = self._kept.pop(slot, None)
        if kept is not None:
            kept.close()

    def release_others(self, slots: Collection[int]) -> None:
        """Release all slots but these."""
        for slot in self._kept.keys() - set(slots):
            self.release(slot)

    def _is_free(self, step: int, *, but_kafka: bool) -> bool:
        settings = self._at(step, 0)
        try:
            for name in ("grpc_port", "http_port") if but_kafka else ("kafka_port", "grpc_port", "http_port"):
                if getattr(settings, name):
                    ports.check_free(settings.host, getattr(settings, name), name)
        except HeadgateError:
            return False
        return True


def in_memory(settings: Settings) -> bool:
    """Whether the store goes with its broker's process."""
    return settings.store in PRIVATE_URLS


def check_shareable(settings: Settings) -> None:
    """Raises InvalidError where only one broker can run with these settings."""
    if in_memory(settings):
        raise InvalidError(
            Reason.INVALID_REQUEST, f"a store in memory is one broker's own: choose a directory. store=`{settings.store}`"
        )
    for name in ("advertised_kafka_port", "advertised_grpc_port"):
        if port := getattr(settings, name):
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"two brokers cannot have one address: leave it out. setting=`{name}` value=`{port}`",
            )


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines until the end. What a child says must be taken off its pipe whatever it is, or it stands still with it."""
    while True:
        try:
            line = await stream.readuntil()
        except asyncio.LimitOverrunError as error:
            line = await stream.readexactly(error.consumed)
        except asyncio.IncompleteReadError as error:
            line = error.partial
        if not line:
            return
        yield line


class Child:
    """One broker process and what it said last. `line` is its ready line, None while it starts."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.beats = 0
        """Lines on its standard output: one a second while its event loop turns."""
        self.silent = False
        """Whether it was killed for its silence."""
        self.line: str | None = None
        self.last_words = ""
        self.ready = asyncio.Event()
        """Set when `line` is there, or never will be."""
        self._pumps = (asyncio.create_task(self._pump_output()), asyncio.create_task(self._pump_errors()))

    @classmethod
    async def spawn(cls, settings: Settings, kafka: socket.socket) -> Child:
        """Start a broker with exactly these settings, whatever the environment says.

        Args:
            kafka: the listening socket of its Kafka port.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        environment[SUPERVISED] = "1"
        environment[KAFKA_SOCKET] = str(kafka.fileno())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "headgate.broker.cli.main", "broker", *settings.arguments(),
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=found_by(environment), start_new_session=True, limit=LINE_BYTES_MAX,
            pass_fds=[kafka.fileno()],
        )  # fmt: skip
        return cls(process)

    @property
    def where(self) -> dict[str, str]:
        """Addresses by door (`kafka`, `grpc`, `http`), and the `store`; nothing while it starts."""
        # A path may have spaces, and a cluster's name, which is the last.
        doors, _, rest = (self.line or "").partition(" store=")
        store = rest.rpartition(" cluster=")[0]
        return dict(_WHERE.findall(doors)) | ({"store": store} if store else {})

    @property
    def cluster_id(self) -> str:
        """Of the cluster that it serves; empty while it starts."""
        return (self.line or "").rpartition(" cluster=")[2]

    async def wait(self) -> int:
        """Until it has ended and all it said was passed on. Returns the exit code, negative for a signal."""
        code = await self.process.wait()
        await asyncio.wait(self._pumps, timeout=1)
        self.ready.set()
        return code

    async def end_if_silent(self, timeout_ms: int) -> None:
        """Kill it once its event loop has not turned for so long.

        Time counts in looks of this process's loop: where the machine is starved, or both were stopped, both are late. A broker
        that has not said anything yet is given `START_PARTS` times as long: modules alone take a starved machine a while.
        """
        looks = seen = 0
        while looks < LOOKS * (1 if self.beats else START_PARTS):
            await asyncio.sleep(timeout_ms / 1000 / LOOKS)
            looks, seen = looks + 1 if self.beats == seen else 0, self.beats
        self.silent = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended already."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def reason(self, code: int) -> str:
        """Why it ended, for people."""
        if self.silent:
            return "it did not answer any more, and was killed"
        if code < 0:
            return f"killed by {next((known.name for known in signal.Signals if known == -code), f'signal {-code}')}"
        if code == 0:
            return "somebody told it to"
        return self.last_words or f"exit code {code}"

    async def _pump_output(self) -> None:
        assert self.process.stdout is not None
        async for line in _lines(self.process.stdout):
            self.beats += 1
            if self.line is None and line != b"\n":
                self.line = line.decode(errors="replace").rstrip("\n")
                self.ready.set()

    async def _pump_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in _lines(self.process.stderr):
            if line.startswith(b"headgate broker "):  # else it is of the log
                self.last_words = line.decode(errors="replace").strip().partition(": ")[2]
            tell(sys.stderr, line.decode(errors="replace"))
