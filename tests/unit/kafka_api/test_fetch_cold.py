"""Fetch from the store: which partitions of a request are read at the same time, and how many bytes each may have.

Runs: `collect_cold` with an engine that only answers reads. Compared: the reads under way at the same time, their room, and the
records of the answer. A mismatch means that a consumer waits for one partition after the other, or gets more than it asked for.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headgate.broker.engine.read.live_first import LiveFirst
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.kafka import fetch
from headgate.broker.wire.kafka.fetch import Wanted

READER = 1
BATCH_BYTES = 100


class Engine:
    """Answers a read with as many batches as fit, one at least. `rounds`: the room of the reads that began at the same time."""

    def __init__(self) -> None:
        self.history_out_bytes, self.lane = 0, None
        self.live_first = LiveFirst(time.monotonic, 1)
        self.rounds: list[list[int]] = []
        self.damaged: set[Any] = set()
        self._under_way = 0

    async def read(self, log: Any, offset: int, max_bytes: int, reader: int, reached: Any) -> list[memoryview]:
        if not self._under_way:
            self.rounds.append([])
        self.rounds[-1].append(max_bytes)
        self._under_way += 1
        await asyncio.sleep(0)  # all reads of a round have begun now
        await asyncio.sleep(0)
        self._under_way -= 1
        if log in self.damaged:
            raise RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer")
        return [memoryview(bytes(BATCH_BYTES * max(max_bytes // BATCH_BYTES, 1)))]


def wanted(count: int, max_bytes: int = 250, *, in_file: bool = False) -> list[tuple[Wanted[Any], Any]]:
    """Partitions whose records are in batches, or in a file."""
    return [(Wanted(object(), True, number, -1, 0, max_bytes), (0, 1000, object()) if in_file else None) for number in range(count)]


async def collect(engine: Engine, cold: list[tuple[Wanted[Any], Any]], max_bytes: int, total: int = 0) -> tuple[int, bool]:
    turn = Turns(time.monotonic).begin()
    made: Any = engine
    return await fetch.collect_cold(made, turn, cold, total, max_bytes, READER, committed=False)


async def test_partitions_are_read_at_the_same_time() -> None:
    engine, cold = Engine(), wanted(3)
    assert await collect(engine, cold, 10_000) == (600, False)
    assert engine.rounds == [[250, 250, 250]]
    assert [one.bytes for one, _ in cold] == [200, 200, 200]


async def test_no_more_partitions_are_read_than_there_is_room_for() -> None:
    engine, cold = Engine(), wanted(8)
    # Each gets whole batches, so some room is left after the first round.
    assert await collect(engine, cold, 600) == (600, False)
    assert engine.rounds == [[250, 250, 100], [100]]
    assert [one.bytes for one, _ in cold] == [200, 200, 100, 100, 0, 0, 0, 0]


async def test_a_request_with_many_partitions_is_read_in_groups() -> None:
    engine, cold = Engine(), wanted(fetch.READS_MAX + 1)
    assert await collect(engine, cold, 1 << 20) == (200 * len(cold), False)
    assert [len(one) for one in engine.rounds] == [fetch.READS_MAX, 1]


async def test_the_first_batch_comes_even_without_room_for_it() -> None:
    engine, cold = Engine(), wanted(2, max_bytes=0)
    assert await collect(engine, cold, 10) == (BATCH_BYTES, False)
    assert [one.bytes for one, _ in cold] == [BATCH_BYTES, 0]
    engine, cold = Engine(), wanted(2, max_bytes=50)
    assert await collect(engine, cold, 1000, total=1) == (1, False)
    assert [one.bytes for one, _ in cold] == [0, 0], "a batch that is larger than its partition's room waits"


async def test_rows_of_files_are_read_one_partition_after_the_other() -> None:
    engine = Engine()
    cold = [*wanted(2), *wanted(2, in_file=True), *wanted(2)]
    assert await collect(engine, cold, 10_000) == (1200, False)
    assert [len(one) for one in engine.rounds] == [2, 1, 1, 2]


async def test_an_error_is_the_partition_s_own() -> None:
    engine, cold = Engine(), wanted(3)
    engine.damaged = {cold[1][0].log}
    assert await collect(engine, cold, 10_000) == (400, True)
    assert [one.bytes for one, _ in cold] == [200, 0, 200]
    assert [bool(one.code) for one, _ in cold] == [False, True, False]


async def test_live_records_wait_for_no_history() -> None:
    """A partition with records in memory, and one far behind, in one request, while history is limited."""
    engine, cold = Engine(), wanted(1, in_file=True)
    engine.live_first.acks = lambda: (1000, 1.0)
    engine.live_first.bytes_per_s = 1.0
    engine.live_first.served(1000)
    assert await collect(engine, cold, 10_000, total=1) == (1, False)
    assert engine.rounds == [], "the records that are there are answered now"
