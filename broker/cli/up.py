"""``headgate up``: a local cluster until Ctrl-C.

Starts broker processes over one store, restarts those that die, and follows the number of brokers that the cluster asks for:
reservations and load (`control/leader_capacity.py`). `cluster/fleet.py` makes the decisions; this module carries them out.

Once a broker has served, all later brokers must find its cluster in the store. Otherwise, when a disk is missing for a while,
they would make a new cluster in its place, and records acked there would be hidden when the disk is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import sys
from collections.abc import Coroutine, Mapping

from headgate.broker.cli.child import Child, Places, check_shareable, in_memory, tell
from headgate.broker.cluster.fleet import Drain, Fleet
from headgate.broker.runtime.config import Settings, Value
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.main import EXIT_FAILED, EXIT_SIGNAL, EXIT_USAGE

DEFAULTS: Mapping[str, Value] = {"log_level": "warning", "store_create": True}
"""Log level of the brokers: the user reads this terminal, so only faults are worth a line. A first run always finds an empty
store."""

BROKERS_MAX = 64
BROKERS_MAX_DEFAULT = 8
"""Most brokers on one machine by default."""
KEPT_MS_MAX = 1000
"""Longest pause before a restart in which clients wait at the broker's Kafka port while other brokers serve. Before a longer
pause the port refuses them: by then other brokers lead the partitions."""
KILL_S = 5.0
"""A broker that exceeds its own time limits by this is killed, which loses no acked records."""


def up(settings: Settings, brokers: int = 1, brokers_max: int | None = None) -> int:
    """Run a local cluster until SIGINT or SIGTERM. Returns the exit code.

    Args:
        brokers: fewest brokers.
        brokers_max: most brokers, even if more are reserved.

    Raises:
        InvalidError: the numbers do not fit, or only one broker can run with these settings.
    """
    most = max(brokers, BROKERS_MAX_DEFAULT) if brokers_max is None else brokers_max
    if not 1 <= brokers <= most <= BROKERS_MAX:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"a local cluster has 1 to {BROKERS_MAX} brokers, and --max-brokers is not below --brokers. "
            f"brokers=`{brokers}` max_brokers=`{most}`",
        )
    if most > 1:
        try:
            check_shareable(settings)
        except InvalidError:
            if brokers > 1 or brokers_max is not None:
                raise
            most = 1
    settings = dataclasses.replace(settings, capacity_brokers_min=brokers, capacity_brokers_max=most)
    return asyncio.run(Supervisor(settings, brokers, most).run())


class Supervisor:
    """Keeps the brokers of one fleet running."""

    def __init__(self, settings: Settings, brokers: int, brokers_max: int) -> None:
        self._settings = settings
        self._brokers, self._brokers_max = brokers, brokers_max
        self._fleet = Fleet(brokers, brokers_max)
        self._places = Places(settings)
        self._cluster_id = ""
        """Id of the cluster that the store must have. Empty until a broker has served, and for a store that ends with its
        broker."""
        self._children: dict[int, Child] = {}
        """By slot."""
        self._watching: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._announced = False
        self._stopping = False
        self._code = 0

    async def run(self) -> int:
        """Run until a signal and return 0; or return the exit code of a broker that a restart cannot help."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        while True:
            actions = self._fleet.decide(self._now_ms())
            self._places.release_others(self._fleet.slots)
            for action in actions:
                if isinstance(action, Drain):
                    self._drain(action.slot)
                else:
                    await self._start(action.slot, again=action.again)
            if self._stopping and not self._children:
                break
            next_ms = self._fleet.next_ms()
            pause_s = None if next_ms is None else max(next_ms - self._now_ms(), 0) / 1000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause_s)
            self._news.clear()
        if self._watching:
            await asyncio.wait(self._watching)
        self._places.release_others(())
        return self._code

    # -- brokers

    async def _start(self, slot: int, *, again: bool) -> None:
        try:
            settings = self._places.settings(slot)
            kafka = self._places.listen(slot, settings)
        except HeadgateError as error:
            reason = " ".join(error.message.split())
            if not self._announced:
                _say(reason)  # no process exists that would report it
            self._gone(slot, reason, EXIT_FAILED)
            return
        if self._cluster_id:
            settings = dataclasses.replace(settings, cluster_id=self._cluster_id)
        child = self._children[slot] = await Child.spawn(settings, kafka)
        child.on_wish = self._follow
        if self._announced and not again:
            _say(f"{self._name(slot)} starts")
        self._spawn(self._watch(slot, child, self._spawn(self._greet(slot, child, again=again))))

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._watched)
        return task

    async def _watch(self, slot: int, child: Child, greeting: asyncio.Task[None]) -> None:
        """Wait until a broker has ended; its greeting may have failed."""
        silence = asyncio.create_task(child.end_if_silent(self._settings.loop_timeout_ms))
        try:
            code = await child.wait()
        finally:
            silence.cancel()
        await asyncio.wait((greeting, silence))
        del self._children[slot]
        self._gone(slot, child.reason(code), code)
        self._news.set()

    async def _greet(self, slot: int, child: Child, *, again: bool) -> None:
        """Wait until a broker serves, or ends before it does; announce a broker that serves."""
        await child.ready.wait()
        if child.line is not None:
            self._fleet.served(slot, self._now_ms())
            if not in_memory(self._settings):
                self._cluster_id = child.cluster_id
            if self._announced:
                where = child.where
                addresses = " ".join(f"{name}={where[name]}" for name in ("kafka", "grpc", "http"))
                _say(f"{self._name(slot)} serves again" if again else f"{self._name(slot)} serves {addresses}")
            else:
                self._announce()
            self._news.set()

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watching.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._end(EXIT_FAILED)
            raise task.exception()  # type: ignore[misc]  # unexpected: the loop reports it with its traceback

    def _gone(self, slot: int, reason: str, code: int) -> None:
        """Handle the end of a broker, or a failed start."""
        pause_ms = self._fleet.ended(slot, self._now_ms())
        if pause_ms is None or (pause_ms > KEPT_MS_MAX and len(self._fleet.slots) > 1):
            self._places.release(slot)
        if self._stopping:
            self._code = self._code or (code if 0 < code < EXIT_SIGNAL else 0)
        elif not self._announced or (code == EXIT_USAGE and slot < self._brokers):
            self._end(code if code > 0 else EXIT_FAILED)
        elif pause_ms is not None:
            _say(f"{self._name(slot)} ended: {reason}; it starts again in {pause_ms / 1000:g} s")
        else:
            _say(f"{self._name(slot)} is gone" if code == 0 else f"{self._name(slot)} is gone: {reason}")

    def _drain(self, slot: int) -> None:
        child = self._children.get(slot)
        if child is None:
            return
        self._places.release(slot)  # the broker closes its own socket: then clients are refused, and look for another broker
        if not self._stopping:
            _say(f"{self._name(slot)} hands over what it leads, and goes")
        child.signal(signal.SIGTERM)
        # A broker gives itself less time for its whole end (`runtime/ending.py`).
        patience_s = 2 * self._settings.shutdown_timeout_ms / 1000 + KILL_S
        asyncio.get_running_loop().call_later(patience_s, child.signal, signal.SIGKILL)

    def _name(self, slot: int) -> str:
        return f"broker {self._settings.broker_id + slot}"

    def _announce(self) -> None:
        serving = [self._children[slot].where for slot in self._fleet.serving]
        if len(serving) < self._brokers:
            return
        self._announced = True
        addresses = " ".join(f"{name}={','.join(where[name] for where in serving)}" for name in ("kafka", "grpc", "http"))
        tell(sys.stdout, f"headgate serves {addresses} store={serving[0]['store']} (Ctrl-C ends it)\n")

    # -- how many

    def _follow(self) -> None:
        """Take the number of brokers that the cluster asks for from a broker's line: from the leader's, if it is one of them.

        A broker tells it through its pipe. So the supervisor needs no login and no permission, and no other process gets one.
        """
        wishes = [child.wish for child in self._children.values() if child.wish is not None]
        if not self._announced or self._stopping or not wishes:
            return
        wish = max(wishes, key=lambda wish: wish.leads)
        before = self._fleet.wanted
        self._fleet.want(wish.brokers)
        if self._fleet.wanted != before:
            count = "1 broker is" if self._fleet.wanted == 1 else f"{self._fleet.wanted} brokers are"
            _say(f"{count} asked for instead of {before}: {wish.why}")
            self._news.set()

    # -- the end

    def _end(self, code: int) -> None:
        self._code = self._code or code
        self._stopping = True
        self._fleet.stop()
        self._news.set()

    def _on_signal(self) -> None:
        if self._stopping:
            # A second signal means hurry: a broker that gets SIGTERM twice ends at once.
            for child in self._children.values():
                child.signal(signal.SIGTERM)
        self._end(0)

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def _say(text: str) -> None:
    tell(sys.stderr, f"headgate up: {text}\n")
