"""The cost of filling a gate, against the number of extents that the topic has already.

One engine alone over a directory; a topic with earlier gates that have 10, 1,000 or 100,000 files. Gates are opened and filled with
a few real files, in turn in all three. Measured: the whole `fill`, including the reads of the footers, the commit and the change
of the served logs. Some commits make snapshots of the manifest; these are in the mean and not in the median.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.bench.harness import Bench, Case
from tests.bench.report import Goal, Row

EXTENTS = (10, 1_000, 100_000)
PARTITIONS = 8
ROWS = 100
FLAT = 2.0


class Topic:
    """A broker with a topic that has a given number of extents."""

    def __init__(self, directory: Path, extents: int) -> None:
        self.directory, self.extents = directory, extents
        self.fills: list[float] = []
        self._engine: Any = None
        self._gates: Any = None

    async def open(self) -> None:
        from headgate.broker.cluster.edits.gates import OpenGate
        from headgate.broker.cluster.gates import Gate, GateWindow, ParquetExtent
        from headgate.broker.runtime.clock import Clock
        from headgate.broker.runtime.config import Settings
        from headgate.broker.store.local import LocalStore
        from tests.support import nodes

        self._store = LocalStore(str(self.directory))
        settings = dataclasses.replace(Settings(), wal_fsync="never")
        self._node = nodes.make(settings, self._store, Clock(), _fail)
        await self._node.start()
        engine = self._node.engine
        leader = self._node.participant.leader
        assert leader is not None
        topic = await engine.create_topic("t", PARTITIONS, {})
        each = self.extents // PARTITIONS + 1
        held = engine.hold(topic.id, "old", dict.fromkeys(range(PARTITIONS), each * ROWS), engine.manifest.term_epoch)
        windows = [GateWindow(one.partition, one.base_offset, one.base_offset + each * ROWS, one.leader_epoch) for one in held]
        old = [
            ParquetExtent(
                one.partition,
                one.base_offset + number * ROWS,
                one.base_offset + (number + 1) * ROWS,
                one.leader_epoch,
                f"topics/{topic.id.hex}/data/partition={one.partition}/old-0-{number:06d}.parquet",
                64 << 20,
                number,
                1_600_000_000_000,
                1_600_000_001_000,
            )
            for one in windows
            for number in range(each)
        ][: self.extents]
        gate = Gate(
            id="old", topic_id=topic.id, place="now", windows=windows, ttl_ms=1000, opened_ms=1, state="filled", extents=old
        )
        await leader.journal.commit_made(lambda _: [OpenGate(gate, [one.segment_id for one in held])])
        self._engine, self._gates = engine, leader.gates

    async def fill(self, number: int) -> None:
        from tests.unit.engine.gate_world import files_for

        gate = await self._gates.open("t", f"g{number}", "now", [ROWS] * PARTITIONS, 60_000)
        files = await files_for(self._engine, gate)
        began = time.perf_counter()
        await self._gates.fill("t", f"g{number}", files)
        self.fills.append(time.perf_counter() - began)

    async def close(self) -> None:
        await self._engine.close()
        await self._store.close()


def _fail(error: BaseException) -> None:
    raise error


async def _measure(directory: Path, rounds: int) -> list[Topic]:
    topics = [Topic(directory / str(extents), extents) for extents in EXTENTS]
    for topic in topics:
        await topic.open()
    for number in range(rounds):
        for topic in topics:
            await topic.fill(number)
    for topic in topics:
        await topic.close()
        del topic.fills[:2]  # the first ones import pyarrow
    return topics


def _run(bench: Bench) -> Iterable[Row]:
    topics = asyncio.run(_measure(bench.directory / "gates", 12 if bench.quick else 40))
    medians = [statistics.median(topic.fills) * 1000 for topic in topics]
    means = [statistics.fmean(topic.fills) * 1000 for topic in topics]
    for topic, median, mean in zip(topics, medians, means, strict=True):
        last = topic is topics[-1]
        yield Row(
            group="gates",
            case=f"fill a gate of {PARTITIONS} files beside {topic.extents:,} extents",
            measured=f"{median:.1f} ms median, {mean:.1f} ms mean",
            ratio=max(medians) / min(medians) if last else None,
            goal=FLAT if last else None,
            side=Goal.AT_MOST,
            unit="x",
            note="slowest median of quickest" if last else "",
            details={"fills_ms": [round(one * 1000, 2) for one in topic.fills]},
        )


CASES = [Case("gates", "cost of fill_gate", _run)]
