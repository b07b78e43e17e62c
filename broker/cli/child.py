"""One broker as a child process of ``headgate up``, and the addresses of such children.

Each broker is in a process group of its own, so that Ctrl-C reaches only the supervisor. All stay in its session: when the kernel
shares time by session (sched(7), autogroup), the niceness of a lane and of processes for history counts inside one session only. A
broker holds the read end of a pipe, and the supervisor holds the other end: if the supervisor is killed, the pipe closes and the
brokers end by themselves, in order.
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
from collections.abc import AsyncIterator, Callable, Collection
from typing import TextIO

from headgate.broker.runtime.children import KAFKA_SOCKETS, SUPERVISED
from headgate.broker.runtime.config import ADMIN_PASSWORD, ENVIRONMENT_PREFIX, Settings
from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason
from headgate.broker.runtime.listeners import shifted
from headgate.broker.runtime.modules import found_by
from headgate.broker.server.main import DESIRED
from headgate.broker.server.net import ports
from headgate.broker.store.open import PRIVATE_URLS

LINE_BYTES_MAX = 1 << 20
"""A longer line of a child is passed on in pieces."""
LOOKS = 15
"""Consecutive checks without a sign of life between them before a broker is killed."""
START_PARTS = 4
"""Factor by which the first sign of life may take longer than later ones."""
STRIDE = 10
"""Distance between the ports of two brokers: 9092, 9102, 9112 ..., or further if those are taken."""

_DESIRED = re.compile(DESIRED + r" (\d+) (leads|follows) (.*)\n")
_WHERE = re.compile(r" (kafka|grpc|http)=(\S+)")


def tell(stream: TextIO, text: str) -> None:
    """Write to a standard stream at once. If its reader has gone (a pipe to `head`, a closed terminal), the text and all later
    text is dropped: otherwise brokers would stand still with their output stuck in their pipe."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Places:
    """The addresses of the brokers of a fleet.

    Args:
        settings: settings of the first broker.
    """

    def __init__(self, settings: Settings) -> None:
        self._first = settings
        self._steps: dict[int, int] = {0: 0}
        """By slot: the number of strides between the first broker's ports and this slot's ports."""
        self._kept: dict[int, socket.socket] = {}
        """By slot: the listening socket of the Kafka port. It outlives the broker's process: clients that connect meanwhile wait
        for the next process. Refused clients would retry after growing pauses."""

    def settings(self, slot: int) -> Settings:
        """Settings of the broker in a slot. The ports stay the same, unless another process has taken them.

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
        values: dict[str, int | str] = {"broker_id": broker_id}
        values["kafka_listeners"] = shifted(self._first.kafka_listeners, STRIDE * step)
        for name in ("kafka_port", "grpc_port", "http_port", "grpc_mtls_port"):
            port: int = getattr(self._first, name)
            if port + STRIDE * step > 65535:
                raise FatalError(Reason.INVALID_CONFIG, f"no free ports are left for another broker. first=`{port}`")
            values[name] = port + STRIDE * step if port else 0
        return dataclasses.replace(self._first, **values)  # type: ignore[arg-type]

    def listen(self, slot: int, settings: Settings) -> socket.socket:
        """The listening socket of a broker's Kafka port: the kept one, or a new one that is kept from now on.

        Raises FatalError(INVALID_CONFIG): the port is taken.
        """
        kept = self._kept.get(slot)
        if kept is not None and settings.kafka_port not in (0, ports.address(kept)[1]):
            self.release(slot)  # the broker has moved to other ports
            kept = None
        if kept is None:
            kept = self._kept[slot] = ports.listen(settings.host, settings.kafka_port, "kafka_port")
        else:
            ports.listen_again(kept)
        return kept

    def release(self, slot: int) -> None:
        """Close the kept socket of this slot. Clients are refused, including waiting ones, unless the slot's broker runs and
        listens."""
        kept = self._kept.pop(slot, None)
        if kept is not None:
            kept.close()

    def release_others(self, slots: Collection[int]) -> None:
        """Release all slots except these."""
        for slot in self._kept.keys() - set(slots):
            self.release(slot)

    def _is_free(self, step: int, *, but_kafka: bool) -> bool:
        settings = self._at(step, 0)
        try:
            names = ["grpc_port", "http_port"] + ([] if but_kafka else ["kafka_port"])
            for name in names + (["grpc_mtls_port"] if settings.tls_certificate else []):
                if getattr(settings, name):
                    ports.check_free(settings.host, getattr(settings, name), name)
        except HeadgateError:
            return False
        return True


def in_memory(settings: Settings) -> bool:
    """Whether the store ends with its broker's process."""
    return settings.store in PRIVATE_URLS


def check_shareable(settings: Settings) -> None:
    """Raises InvalidError if only one broker can run with these settings."""
    if in_memory(settings):
        raise InvalidError(
            Reason.INVALID_REQUEST, f"a store in memory is one broker's own: choose a directory. store=`{settings.store}`"
        )
    for name in ("advertised_kafka_port", "advertised_grpc_port", "kafka_advertised_listeners"):
        if port := getattr(settings, name):
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"two brokers cannot have one address: leave it out. setting=`{name}` value=`{port}`",
            )


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """All lines of a stream. The supervisor must read every line, of any content: a full pipe would stop the child."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """The desired number of brokers, and the reason. `leads`: the broker that told it leads the cluster."""

    brokers: int
    leads: bool
    why: str


def wish_of(line: bytes) -> Wish | None:
    """The number in a broker's line (`server.main.beat`); None: the line has none."""
    found = _DESIRED.fullmatch(line.decode(errors="replace"))
    return None if found is None else Wish(int(found[1]), found[2] == "leads", found[3])


class Child:
    """One broker process and its latest output. `line` is its ready line, None while it starts."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.beats = 0
        """Lines on its standard output: one a second while its event loop turns."""
        self.wish: Wish | None = None
        """The desired number of brokers, from its last line; None: it does not know it."""
        self.on_wish: Callable[[], None] = lambda: None
        """Called after each line."""
        self.silent = False
        """Whether it was killed because it gave no sign of life."""
        self.line: str | None = None
        self.last_words = ""
        self.ready = asyncio.Event()
        """Set once `line` is known, or the process has ended without it."""
        self._pumps = (asyncio.create_task(self._pump_output()), asyncio.create_task(self._pump_errors()))

    @classmethod
    async def spawn(cls, settings: Settings, kafka: socket.socket) -> Child:
        """Start a broker with exactly these settings; the environment changes none of them.

        Args:
            kafka: the listening socket of its Kafka port.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        if ADMIN_PASSWORD in os.environ:  # a secret, so it is no setting
            environment[ADMIN_PASSWORD] = os.environ[ADMIN_PASSWORD]
        environment[SUPERVISED] = "1"
        environment[KAFKA_SOCKETS] = str(kafka.fileno())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "headgate.broker.cli.main", "broker", *settings.arguments(),
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=found_by(environment), process_group=0, limit=LINE_BYTES_MAX,
            pass_fds=[kafka.fileno()],
        )  # fmt: skip
        return cls(process)

    @property
    def where(self) -> dict[str, str]:
        """Addresses by port name (`kafka`, `grpc`, `http`), and the `store`; empty while the broker starts."""
        # A path may contain spaces. A cluster's name may, too: it comes last.
        addresses, _, rest = (self.line or "").partition(" store=")
        store = rest.rpartition(" cluster=")[0]
        return dict(_WHERE.findall(addresses)) | ({"store": store} if store else {})

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that the broker serves; empty while it starts."""
        return (self.line or "").rpartition(" cluster=")[2]

    async def wait(self) -> int:
        """Wait until the process has ended and its output was passed on. Returns the exit code, negative for a signal."""
        code = await self.process.wait()
        await asyncio.wait(self._pumps, timeout=1)
        self.ready.set()
        return code

    async def end_if_silent(self, timeout_ms: int) -> None:
        """Kill the broker when its event loop has not turned for `timeout_ms`.

        Time is counted in checks of this process's loop: on a starved machine, or after both were stopped, both are
        late. A broker without a first sign of life gets `START_PARTS` times as long: on a starved machine the imports
        alone take a while.
        """
        looks = seen = 0
        while looks < LOOKS * (1 if self.beats else START_PARTS):
            await asyncio.sleep(timeout_ms / 1000 / LOOKS)
            looks, seen = looks + 1 if self.beats == seen else 0, self.beats
        self.silent = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended already."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def reason(self, code: int) -> str:
        """The reason of its end, for people."""
        if self.silent:
            return "it did not answer any more, and was killed"
        if code < 0:
            return f"killed by {next((known.name for known in signal.Signals if known == -code), f'signal {-code}')}"
        if code == 0:
            return "it was told to end"
        return self.last_words or f"exit code {code}"

    async def _pump_output(self) -> None:
        assert self.process.stdout is not None
        async for line in _lines(self.process.stdout):
            self.beats += 1
            self.wish = wish_of(line)
            self.on_wish()
            if self.line is None and self.wish is None and line != b"\n":
                self.line = line.decode(errors="replace").rstrip("\n")
                self.ready.set()

    async def _pump_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in _lines(self.process.stderr):
            if line.startswith(b"headgate broker "):  # otherwise a line of the log
                self.last_words = line.decode(errors="replace").strip().partition(": ")[2]
            tell(sys.stderr, line.decode(errors="replace"))
