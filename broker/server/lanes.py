"""Lanes as processes: a broker starts those beside it, and a lane does its own upkeep.

A lane beside a broker runs the same program with `role=lane`, on free ports, as a nice process. It is started when a reader of
history should go to a lane and this broker has none. It holds the read end of a pipe and ends when that closes, so it ends with its
broker, also with one that was killed. It ends by itself when it was not read for `history_lane_idle_ms`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable

from headgate.broker.cluster.lanes import lane_id
from headgate.broker.cluster.objects import LANE
from headgate.broker.control.stream import Connect
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.read.lane import LaneLogs
from headgate.broker.runtime.children import SUPERVISED, how_ended
from headgate.broker.runtime.config import ENVIRONMENT_PREFIX, Settings
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.listeners import on_free_ports
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.modules import found_by
from headgate.broker.runtime.tasks import watch
from headgate.broker.server.grpc.bounds import find_bounds
from headgate.broker.server.grpc.peers import Peers
from headgate.broker.store.open import PRIVATE_URLS

logger = get_logger("lanes")

FAILED_PAUSE_S = 30.0
"""Pause, in seconds, before a lane that ended with an error is started again."""
END_S = 5.0
"""Time, in seconds, that lanes get to end in order. Then they are killed, which loses nothing."""
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
        history_lanes=0,
        kafka_port=0,
        grpc_port=0,
        http_port=0,
        grpc_mtls_port=0,
        advertised_kafka_port=0,
        advertised_grpc_port=0,
        kafka_listeners=on_free_ports(settings.kafka_listeners),
        kafka_advertised_listeners=on_free_ports(settings.kafka_advertised_listeners),
    )


class LaneKeeper:
    """The lanes beside one broker. Lives on the loop."""

    def __init__(self, settings: Settings, cluster_id: str, fail: Callable[[HeadgateError], None]) -> None:
        self._settings = settings
        self._cluster_id = cluster_id
        self._fail = fail
        self._running: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, Process] = {}
        self._not_before_s: dict[int, float] = {}

    def want(self) -> None:
        """Start the lanes that do not run."""
        now_s = asyncio.get_running_loop().time()
        # A store in memory is its broker's own.
        count = 0 if self._settings.store in PRIVATE_URLS else self._settings.history_lanes
        for number in range(count):
            if number not in self._running and now_s >= self._not_before_s.get(number, 0.0):
                task = self._running[number] = asyncio.create_task(self._run(number), name=f"lane-{number}")
                watch(task, "lane", self._fail)

    async def _run(self, number: int) -> None:
        """Run one lane until it ends."""
        settings = settings_of(self._settings, number, self._cluster_id)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        environment[SUPERVISED] = "1"
        reason = ""
        try:
            process = self._processes[number] = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "headgate.broker.cli.main", "broker", *settings.arguments(),
                stdin=PIPE, stdout=DEVNULL, env=found_by(environment),
            )  # fmt: skip
            logger.info("lane_started", lane=settings.broker_id, pid=process.pid)
            code = await process.wait()
            if code:
                reason = how_ended(code)
            else:
                logger.info("lane_ended", lane=settings.broker_id)
        except OSError as error:
            reason = f"it cannot be started: {error.strerror or error}"
        finally:
            self._processes.pop(number, None)
            del self._running[number]
        if reason:
            self._not_before_s[number] = asyncio.get_running_loop().time() + FAILED_PAUSE_S
            logger.warning("lane_failed", lane=settings.broker_id, reason=reason, effect="this broker serves history itself")

    async def close(self) -> None:
        """End the lanes."""
        running = list(self._running.values())
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()
        if running:
            await asyncio.wait(running, timeout=END_S)
        for process in list(self._processes.values()):
            process.kill()
        if running:
            await asyncio.wait(running, timeout=END_S)


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
            elif self._idle is not None and now_s - read_s > self._engine.settings.history_lane_idle_ms / 1000:
                logger.info("lane_idle", seconds=round(now_s - read_s, 1))
                self._idle()
                return
            topics, self._lane.asked = self._lane.asked, {}
            bounds = await find_bounds(self._engine, self._peers, topics)
            self._lane.ends = {key: (bound.high_watermark, bound.stable_end or -1) for key, bound in bounds.items()}
            await asyncio.sleep(UPKEEP_S)

    async def close(self) -> None:
        """Stop the work."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        await self._peers.close()
