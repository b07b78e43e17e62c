"""Cold reads of records that were produced live: the requests to the store, and the bytes that they read.

Runs: batches of eight partitions, written in turn to a directory and to a real S3 server, and read again after they left memory, by
one reader of all partitions, by a reader of each partition at once, and by one reader of one partition. Compared: the records with
those that were written, and the store's requests and bytes with the bytes that the readers got. A mismatch means that a
consumer that catches up costs a request for each batch, or reads everything once for each partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.broker.engine.base.keys import WAL
from headgate.broker.log.batch import parse_header, split
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.clock import Clock, ManualClock
from headgate.broker.store.interface import Store
from headgate.broker.store.local import LocalStore
from headgate.broker.store.s3 import open_s3
from headgate.broker.store.wrappers import MeteredStore
from tests.support.waiting import until_async
from tests.unit.engine.world import NOW_MS, Incarnation, Machine, settings

PARTITIONS = 8
FETCH_BYTES = 1 << 20
"""Bytes that consumers ask of a partition by default."""
REQUESTS_PER_MB_MAX = 2.0
SERVED_SHARE_MAX = 1.2
"""Bytes read from the store, per byte served."""
ENDS = 2
"""A reader of one partition on S3 also reads the rest of a unit at each end of a stretch. A chunk is one stretch."""


class World:
    """A broker whose store counts."""

    def __init__(self, broker: Incarnation, store: MeteredStore) -> None:
        self.broker = broker
        self.store = store

    async def write(self, batch_bytes: int, count: int) -> None:
        """Write batches to the partitions in turn, and drop them from memory once they are durable and listed."""
        engine = self.broker.engine
        await engine.create_topic("t", PARTITIONS, {})
        data = encode_batch([Record(0, NOW_MS, b"k", b"v" * (batch_bytes - 80))])
        for number in range(count):
            engine.append(self.broker.log("t", number % PARTITIONS), memoryview(bytearray(data)))
            if number % 1000 == 999:
                await asyncio.sleep(0)
        await engine.durable(60_000)
        for partition in range(PARTITIONS):
            self.broker.log("t", partition).tail.clear()

    def spent(self) -> tuple[int, int]:
        """Requests that read objects, and their bytes, so far."""
        reads = [self.store.counts[operation] for operation in ("get", "get_range", "get_ranges")]
        return sum(one.calls for one in reads), sum(one.bytes for one in reads)

    async def fetch(self, partition: int, offset: int) -> tuple[int, int]:
        """Read once. Returns the next offset and the bytes."""
        slices = await self.broker.engine.read(self.broker.log("t", partition), offset, FETCH_BYTES)
        size = sum(map(len, slices))
        assert size <= FETCH_BYTES
        for batch in [one for part in slices for one in split(part)]:
            header = parse_header(batch)
            assert header.base_offset == offset
            offset = header.next_offset
        return offset, size

    async def read_in_turn(self) -> int:
        """One reader of all partitions. Returns its bytes."""
        total = 0
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        while offsets:
            for partition, offset in list(offsets.items()):
                if offset == self.broker.log("t", partition).high_watermark:
                    del offsets[partition]
                    continue
                offsets[partition], size = await self.fetch(partition, offset)
                total += size
        return total

    async def read_one(self, partition: int = 0) -> int:
        """One reader of one partition. Returns its bytes."""
        offset = total = 0
        while offset < self.broker.log("t", partition).high_watermark:
            offset, size = await self.fetch(partition, offset)
            total += size
        return total

    async def read_at_once(self) -> int:
        """A reader of each partition, at the same time. Returns their bytes."""
        return sum(await asyncio.gather(*map(self.read_one, range(PARTITIONS))))


@pytest.fixture(params=["local", "s3"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL or the directory of an empty store."""
    if request.param == "local":
        yield str(tmp_path / "store")
    else:
        server = request.getfixturevalue("s3_server")
        yield server.url(server.bucket(), "some/prefix")


@pytest.mark.parametrize("reader", ["in_turn", "at_once", "one"])
@pytest.mark.parametrize(("batch_bytes", "count"), [(16 << 10, 1280), (1 << 10, 12_000)])
async def test_batches_that_lie_apart_are_read_together(
    medium: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, batch_bytes: int, count: int, reader: str
) -> None:
    # Chunks of a usual size: a read ends with its chunk, and the first chunk of a broker is small.
    monkeypatch.setattr("headgate.broker.engine.write.wal_group.FIRST_CHUNK_BYTES", 32 << 20)
    store = MeteredStore(open_s3(medium) if medium.startswith("s3:") else LocalStore(medium), Clock())

    def open_store() -> Store:
        return store

    machine = Machine(open_store, clock)
    try:
        broker = await machine.start(settings(wal_chunk_bytes=128 << 20, wal_flush_interval_ms=500))
        world = World(broker, store)
        await world.write(batch_bytes, count)
        if medium.startswith("s3:"):
            await until_async(lambda: all(not len(broker.log("t", number).open) for number in range(PARTITIONS)))
        requests, read_bytes = world.spent()
        served = await {"in_turn": world.read_in_turn, "at_once": world.read_at_once, "one": world.read_one}[reader]()
        requests_after, read_bytes_after = world.spent()
        chunks = sum(one.key.rpartition("/")[2].isdigit() for one in await store.list(WAL))
    finally:
        await machine.close()
        await store.close()
    assert served >= batch_bytes * count * 0.9 / (PARTITIONS if reader == "one" else 1)
    spare = 3  # requests of the broker's upkeep
    assert requests_after - requests <= REQUESTS_PER_MB_MAX * served / 1e6 + spare
    ends_bytes = ENDS * chunks * store.read_unit_bytes if reader == "one" else 0
    assert read_bytes_after - read_bytes <= SERVED_SHARE_MAX * served + ends_bytes
