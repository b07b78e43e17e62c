"""Lanes as processes: a broker starts those beside it, and a lane does its own upkeep.

A lane beside a broker runs the same program with `role=lane`, on free ports, as a nice process. It is started when a reader of
history should go to a lane and this broker has none, and when a client connects to the address that it had. It holds one end of a
socket and ends when the other one closes, so it ends with its broker, also with one that was killed. It ends by itself when it was
not read for `history_lane_idle_ms`, or soon, if a reservation asked for it and has ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial

from headgate.broker.cluster.lanes import LANE_IDS, lane_id, number_beside
from headgate.broker.cluster.objects import LANE
from headgate.broker.control.stream import Connect
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.read.lane import LaneLogs
from headgate.broker.runtime.children import KAFKA_SOCKETS, SUPERVISED, how_ended
from headgate.broker.runtime.config import ENVIRONMENT_PREFIX, Settings
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.listeners import is_local, listeners, on_free_ports
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.setting_kinds import AUTO
from headgate.broker.runtime.supervised import Supervised
from headgate.broker.runtime.tasks import watch
from headgate.broker.server.grpc.bounds import find_bounds
from headgate.broker.server.grpc.peers import Peers
from headgate.broker.server.net import ports
from headgate.broker.store.open import PRIVATE_URLS

logger = get_logger("lanes")

SOON_S = 10.0
"""A lane that ends with an error within this time, in seconds, twice in a row, would probably do so again."""
REST_S = 30.0
"""Pause, in seconds, before such a lane may be started again."""
END_S = 5.0
"""Time, in seconds, that lanes get to end in order. Then they are killed, which loses nothing."""
LEAVE_S = 2.0
"""Time, in seconds, in which a lane that was told to end sends its readers back: their clients ask again within it, unless they are
busy with what they have got."""
SPARE_IDLE_S = 10.0
"""Time, in seconds, without a read after which a lane ends that no reservation asks for any more. Readers that still catch up keep
it."""
UPKEEP_S = 1.0
"""Pause, in seconds, between two works of a lane's upkeep. It bounds the age of the ends of partitions that its clients see."""


def settings_of(settings: Settings, number: int, cluster_id: str) -> Settings:
    """The settings of a lane beside a broker. `number`: from 0."""
    return dataclasses.replace(
        settings,
        role=LANE,
        broker_id=lane_id(settings.broker_id, number),
        cluster_id=cluster_id,
        store_create=False,
        kafka_port=0,
        grpc_port=0,
        http_port=0,
        grpc_mtls_port=0,
        advertised_kafka_port=0,
        advertised_grpc_port=0,
        kafka_listeners=on_free_ports(settings.kafka_listeners),
        kafka_advertised_listeners=on_free_ports(settings.kafka_advertised_listeners),
    )


def own_lanes(settings: Settings) -> int:
    """Number of lanes that a broker may start beside it without a reservation; 0: none ever.

    By default a broker that listens on loopback only may start one. Elsewhere the free ports of a lane may be out of reach: a
    firewall, or a container, lets only known ports pass.
    """
    if settings.store in PRIVATE_URLS:  # in memory, and the broker's own
        return 0
    if settings.history_lanes != AUTO:
        return settings.history_lanes
    return int(is_local(settings) and settings.broker_id < LANE_IDS)


class LaneKeeper:
    """The lanes beside one broker. Lives on the loop.

    It listens for its lanes as long as the broker lives. Some clients stay with the address of a lane that has left, franz-go for
    half an hour: when one connects, the lane is started again, and serves it or names the lead.
    """

    def __init__(self, settings: Settings, engine: Engine, fail: Callable[[HeadgateError], None]) -> None:
        self.own = own_lanes(settings)
        """Number of lanes without a reservation; 0: none ever."""
        self._settings = dataclasses.replace(settings, history_lanes=self.own)
        self._engine = engine
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[int, list[socket.socket]] = {}
        """The listening sockets of each lane that has ever run, by its number."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, Supervised] = {}
        self._soon: dict[int, int] = {}
        """How often in a row a lane ended with an error soon after its start."""
        self._rests: dict[int, asyncio.TimerHandle] = {}
        """Lanes that would probably fail again, until they may start."""
        self._closing = False

    def want(self) -> None:
        """Start the lanes that do not run."""
        for number in range(_number(self._engine, self._settings, self._settings.broker_id)):
            self._start(number)

    def _start(self, number: int) -> None:
        if number in self._running or number in self._rests or self._closing:
            return
        settings = settings_of(self._settings, number, self._engine.cluster_id)
        try:
            kept = self._sockets.get(number) or [ports.listen(listener.host, 0, "kafka_port") for listener in listeners(settings)]
        except HeadgateError as error:
            self._rest(number, error.message)
            return
        self._sockets[number] = kept
        for socket_ in kept:
            self._loop.remove_reader(socket_)
            ports.listen_again(socket_)
        task = self._running[number] = asyncio.create_task(self._run(number, settings, kept), name=f"lane-{number}")
        watch(task, "lane", self._fail)

    async def _run(self, number: int, settings: Settings, kept: Sequence[socket.socket]) -> None:
        """Run one lane until it ends."""
        began_s = self._loop.time()
        descriptors = [socket_.fileno() for socket_ in kept]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        environment |= {SUPERVISED: "1", KAFKA_SOCKETS: ",".join(map(str, descriptors))}
        reason = ""
        try:
            command = ("headgate.broker.cli.main", "broker", *settings.arguments())
            start = partial(Supervised, command, environment, descriptors)
            process = self._processes[number] = await self._loop.run_in_executor(None, start)
            if self._closing:
                process.stop()
            logger.info("lane_started", lane=settings.broker_id, pid=process.pid)
            if code := await process.wait():
                reason = how_ended(code)
        except OSError as error:
            reason = f"it cannot be started: {error.strerror or error}"
        finally:
            self._processes.pop(number, None)
            del self._running[number]
        if reason:
            logger.warning("lane_failed", lane=settings.broker_id, reason=reason)
        else:
            logger.info("lane_ended", lane=settings.broker_id)
        soon = bool(reason) and self._loop.time() - began_s < SOON_S
        self._soon[number] = self._soon.get(number, 0) + 1 if soon else 0
        if self._soon[number] > 1:
            self._rest(number, reason)
        else:
            self._await_clients(number)

    def _rest(self, number: int, reason: str) -> None:
        logger.warning("lane_rests", number=number, seconds=REST_S, reason=reason, effect="this broker serves history itself")
        self._rests[number] = self._loop.call_later(REST_S, self._rested, number)

    def _rested(self, number: int) -> None:
        del self._rests[number]
        self._await_clients(number)

    def _await_clients(self, number: int) -> None:
        """Start a lane when a client connects to its address."""
        if not self._closing:
            for socket_ in self._sockets.get(number, ()):
                ports.listen_again(socket_)  # an ending lane refuses connections for all that hold its sockets
                self._loop.add_reader(socket_, self._start, number)

    async def close(self) -> None:
        """End the lanes."""
        self._closing = True
        for rest in self._rests.values():
            rest.cancel()
        running = list(self._running.values())
        for process in self._processes.values():
            process.stop()
        if running:
            await asyncio.wait(running, timeout=END_S)
        for process in list(self._processes.values()):
            process.kill()
        if running:
            await asyncio.wait(running, timeout=END_S)
        for socket_ in (socket_ for kept in self._sockets.values() for socket_ in kept):
            self._loop.remove_reader(socket_)
            socket_.close()


class LaneUpkeep:
    """A lane's own work beside its clients.

    Args:
        connect: makes a channel to a broker.
        idle: called when the lane was not read for `history_lane_idle_ms`; None: it lives on.
    """

    def __init__(self, engine: Engine, lane: LaneLogs, connect: Connect, idle: Callable[[], None] | None) -> None:
        self._engine = engine
        self._lane = lane
        self._peers = Peers(engine, connect)
        self._idle = idle
        self._task = asyncio.create_task(self._run(), name="lane-upkeep")
        watch(self._task, "lane upkeep", engine.fail)

    async def _run(self) -> None:
        fetches, read_s = -1, 0.0
        while True:
            now_s = self._engine.clock.monotonic()
            if self._lane.fetches != fetches:
                fetches, read_s = self._lane.fetches, now_s
            elif self._idle is not None and now_s - read_s > self._idle_s():
                logger.info("lane_idle", seconds=round(now_s - read_s, 1))
                self._idle()
                return
            topics, self._lane.asked = self._lane.asked, {}
            bounds = await find_bounds(self._engine, self._peers, topics)
            self._lane.ends = {key: (bound.high_watermark, bound.stable_end or -1) for key, bound in bounds.items()}
            await asyncio.sleep(UPKEEP_S)

    def _idle_s(self) -> float:
        """Time without a read after which the lane ends."""
        settings = self._engine.settings
        number, broker_id = divmod(settings.broker_id, LANE_IDS)
        is_spare = number > _number(self._engine, settings, broker_id)
        return min(settings.history_lane_idle_ms / 1000, SPARE_IDLE_S if is_spare else float("inf"))

    async def close(self) -> None:
        """Stop the work, and send the readers back. Those of a lane beside a broker find it at the same address again."""
        self._lane.is_leaving = True
        if self._idle is None:
            await asyncio.sleep(LEAVE_S)
        self._task.cancel()
        await asyncio.wait((self._task,))
        await self._peers.close()


def _number(engine: Engine, settings: Settings, broker_id: int) -> int:
    """The number of lanes that may run beside a broker of this machine now. `settings`: the broker's, or a lane's beside it."""
    broker_ids = [one.broker_id for one in engine.brokers()]
    return number_beside(
        settings.history_lanes, engine.manifest.reservations.values(), broker_ids, broker_id, cores=os.cpu_count() or 1
    )
