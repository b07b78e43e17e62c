"""Operators of a simulated cluster: administrators that change topics and segments, and jobs that reserve brokers and write
history."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc

from headgate.broker.cluster.gates import GateWindow, ParquetExtent
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.testing.simulation import kafka
from headgate.broker.testing.simulation.clients import PAUSE_S, World, add_reader, add_writer
from headgate.broker.testing.simulation.kafka import GoneError, RefusedError
from headgate.broker.testing.simulation.process import GATE, RESERVE, SERVICE
from headgate.broker.wire.grpc.headgate.v1 import control_pb2

AT_ONCE = {"offline.after.bytes": "0", "offline.after.ms": "0"}
"""Topic settings with which records become Parquet files as soon as they are listed, and history when it is committed."""


class Operator:
    """An administrator that splits, merges, moves, creates, grows and deletes.

    Args:
        ack: ack mode of new topics; some changes of a topic's settings reset it.
        retention_ms: retention time of topics, at least.
        folds: records become Parquet files as soon as they are listed.
    """

    def __init__(
        self, world: World, pause_s: float, writer_pauses_s: tuple[float, ...], ack: str, retention_ms: int, *, folds: bool = False
    ) -> None:
        self._world = world
        self._pause_s = pause_s
        self.pauses_s = writer_pauses_s
        self._ack = ack
        self._retention_ms = retention_ms
        self._folds = folds
        self._names = itertools.count()
        self._others: dict[str, bytes] = {}

    async def run(self) -> None:
        world, random = self._world, self._world.random
        while world.writing:
            await asyncio.sleep(random.random() * 2 * self._pause_s)
            what = random.choices(("reshard", "create", "grow", "delete", "records", "configure"), (10, 2, 2, 1, 1, 1))[0]
            try:
                if what == "reshard":
                    await self._reshard()
                elif what == "create":
                    name = f"extra-{next(self._names)}"
                    await self.create(name, random.randint(1, 3))
                elif what == "delete" and self._others:
                    name = random.choice(sorted(self._others))
                    world.ledger.deleted.add(self._others.pop(name))
                    await world.ask_any(kafka.delete_topic(name))
                elif what == "grow":
                    await world.ask_any(kafka.grow("t", random.randint(2, 6)))
                elif what == "configure":
                    number = random.randint(1, 100)
                    config = {"retention.ms": str(self._retention_ms + number), "ack": self._ack if number % 2 else "durable"}
                    await world.ask_any(kafka.configure("t", config))
                elif what == "records":
                    await self._delete_records()
            except RefusedError:
                pass  # the request does not fit the cluster's state (any more)

    async def create(self, name: str, partitions: int, writers: int = 1) -> None:
        """Create a topic, and writers and readers for it."""
        world = self._world
        try:
            config = {"ack": self._ack, "retention.ms": str(self._retention_ms)}
            if self._folds:
                config |= AT_ONCE
            topic_id = await world.ask_any(kafka.create_topic(name, partitions, config))
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            # An earlier attempt created it, and its answer was lost.
            while True:
                rows = await world.ask_any(kafka.topics())
                if name in rows:
                    topic_id = rows[name].id
                    break
                await asyncio.sleep(PAUSE_S)
        if name != "t":
            self._others[name] = topic_id
        for partition in range(partitions):
            for _ in range(writers):
                await add_writer(world, name, topic_id, partition, world.random.choice(self.pauses_s))
            add_reader(world, name, topic_id, partition)

    async def _delete_records(self) -> None:
        world = self._world
        acked = sorted(key for key, records in world.ledger.acked.items() if records and key[0] not in world.ledger.deleted)
        if not acked:
            return
        key = world.random.choice(acked)
        before = world.random.randint(0, max(world.ledger.acked[key]))
        world.ledger.starts[key] = max(before, world.ledger.starts.get(key, 0))
        for name, row in (await world.ask_any(kafka.topics())).items():
            lead = row.leads[key[1]] if row.id == key[0] and key[1] < len(row.leads) else None
            if lead is not None:
                with suppress(RefusedError, GoneError):
                    await world.ask_one(lead, kafka.remove_records(name, key[1], before))

    async def _reshard(self) -> None:
        """Send the request to the leader's `Control` service, as `headgate segment` does."""
        world, random = self._world, self._world.random
        for broker in [world.brokers[key] for key in sorted(world.brokers)]:
            if not broker.alive or not broker.serving or broker.participant.leader is None:
                continue
            segments = sorted(broker.engine.manifest.segments.open)
            if not segments:
                return
            segment_id = random.choice(segments)
            request = control_pb2.ReshardRequest()
            kind = random.choice(("split", "merge", "move", "move"))
            if kind == "split":
                request.split.segment_id = segment_id
            elif kind == "merge":
                request.merge.segment_id = segment_id
                request.merge.next_segment_id = random.choice(segments)
            else:
                request.move.segment_id = segment_id
            with suppress(grpc.aio.AioRpcError):
                await world.network.call(SERVICE + "Reshard", broker.address, request.SerializeToString(), 10.0)
            return


class Planner:
    """A flood job: reserves brokers, renews the reservation several times, and ends without releasing it."""

    def __init__(self, world: World, brokers: int) -> None:
        self._world = world
        self._brokers = brokers

    async def run(self) -> None:
        world, random = self._world, self._world.random
        await asyncio.sleep(random.random())
        ttl_ms = random.choice((1_000, 3_000))
        await world.ask_leader(RESERVE, ("flood", self._brokers, ttl_ms))
        world.trace("planner", "reserves", self._brokers, ttl_ms)
        for _ in range(random.randint(0, 4)):
            await asyncio.sleep(ttl_ms / 2000)
            if not world.writing:
                return
            try:
                await world.ask_leader(RESERVE, ("flood", 0, ttl_ms))
            except InvalidError:
                return  # the renewal came after the reservation had expired


class Historian:
    """A history job: opens gates, uploads files and fills; sometimes it gives up or dies half-way.

    Args:
        adopts: decides for each gate whether it adopts files with rows of all partitions, or writes files of its own.
    """

    def __init__(self, world: World, put: Callable[[str, bytes], None], adopts: Callable[[], bool]) -> None:
        self._world = world
        self._put = put
        self._adopts = adopts

    async def run(self) -> None:
        world, random = self._world, self._world.random
        world.ledger.windows = True
        for number in range(random.randint(1, 3)):
            await asyncio.sleep(random.random())
            if not world.writing:
                return
            try:
                await self._gate(f"gate-{number}")
            except InvalidError as error:
                world.trace("historian", "refused", error.reason.value)

    async def _gate(self, gate_id: str) -> None:
        world, random = self._world, self._world.random
        topic = (await world.ask_any(kafka.topics()))["t"]
        rows = [random.choice((0, 1, 5)) for _ in topic.leads]
        gate = await self._ask("open", "t", gate_id, "now", rows, random.choice((1_000, 3_000)))
        world.trace(
            "historian", "opened", gate_id, [(window.partition, window.base_offset, window.end_offset) for window in gate.windows]
        )
        end = random.choice(("fill", "fill", "fill", "release", "die"))
        if end == "release":
            await self._ask("release", "t", gate_id)
        if end != "fill":
            return
        values = {}
        for window in gate.windows:
            if window.end_offset > window.base_offset and (some := self._values(topic.id, gate_id, window)):
                values[window.partition] = some
        files = self._upload(topic.id, gate_id, gate.windows, values)
        await asyncio.sleep(random.random())
        for _ in range(random.randint(1, 2)):
            filled = await self._ask("fill", "t", gate_id, files)
            world.ledger.told_filled.add((topic.id, gate_id))
            world.trace("historian", "filled", gate_id, filled.rows)

    def _values(self, topic_id: bytes, gate_id: str, window: GateWindow) -> list[bytes]:
        """The values of one partition, sometimes fewer than the window has room for."""
        base = window.base_offset
        end = window.end_offset - self._world.random.choice((0, 0, 1))
        values = [b"history-%s-%d-%d" % (gate_id.encode(), window.partition, offset) for offset in range(base, end)]
        history = self._world.ledger.history.setdefault((topic_id, window.partition), {})
        history.update((offset, (gate_id, value)) for offset, value in enumerate(values, base))
        return values

    def _upload(
        self, topic_id: bytes, gate_id: str, windows: Sequence[GateWindow], values: Mapping[int, list[bytes]]
    ) -> list[ParquetExtent]:
        from headgate.broker.testing.simulation import lake

        if values and self._adopts():
            self._world.trace("historian", "adopts", gate_id)
            return lake.adopt(topic_id, gate_id, next(self._world.values), windows, values, self._put)
        return [
            lake.write(topic_id, gate_id, next(self._world.values), windows[partition], some, self._put)
            for partition, some in values.items()
        ]

    async def _ask(self, *args: Any) -> Any:
        return await self._world.ask_leader(GATE, args)
