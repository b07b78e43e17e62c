"""The store changes bytes of chunks and their indexes (`broker/engine/read/reader.py`, `broker/engine/upkeep/chunk_fold.py`).

Runs: an engine over a directory with damaged chunks and indexes: one value of a row, one bit of a batch. Compared: the records
that are read after a fold and a restart with the records that were acked, and the partitions beside the damaged one. A mismatch
means that a fold deletes acked records, or that consumers are sent other records than were written.
"""

from __future__ import annotations

import pytest

from headgate.broker.cluster.objects import Chunk, Extent
from headgate.broker.engine.base import keys
from headgate.broker.engine.partition import openings
from headgate.broker.log.batch import crc_matches, parse_header, split
from headgate.broker.log.index import BatchIndex
from headgate.broker.runtime.errors import CorruptError, HeadgateError, Reason
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.conftest import machine_on
from tests.unit.engine.test_fold import FANOUT, fill, forget_memory
from tests.unit.engine.world import Incarnation, Machine, fold_by, read_all

machine = machine_on("local")

COLUMNS = ("offsets", "timestamps", "positions", "sizes")


@pytest.fixture(autouse=True)
def no_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop folds until a test allows them."""
    fold_by(monkeypatch, 1000)


async def filled(machine: Machine) -> tuple[Incarnation, Chunk, Extent]:
    broker = await machine.begin(3)
    await fill(machine, broker, 8)
    return broker, *chunk_with_rows(broker)


def chunk_with_rows(broker: Incarnation, partition: int = 0) -> tuple[Chunk, Extent]:
    """A chunk with several batches of a partition, and its extent."""
    for chunk in broker.engine.manifest.chunks[broker.engine.incarnation_id].values():
        for extent in chunk.extents:
            if extent.partition == partition and extent.length_bytes >= 3 * 24:
                return chunk, extent
    raise AssertionError("no chunk has so many batches")


async def damage_index(broker: Incarnation, column: str, row: int, value: int, extent: Extent, chunk: Chunk) -> tuple[str, bytes]:
    """Change one value in an index so that it stays plausible: rows still rise. Returns the key and the right index."""
    key = keys.index_object(broker.engine.incarnation_id, chunk)
    right = await broker.faults.get(key)
    data = bytearray(right)
    index = BatchIndex.decode(data[extent.position : extent.position + extent.length_bytes])
    # The last batch may end at the end of the chunk.
    getattr(index, column)[row] += -2 if row < 0 and column in ("positions", "sizes") else value
    assert index.fits(chunk.size_bytes)
    data[extent.position : extent.position + extent.length_bytes] = index.encode()
    assert data != right
    await broker.faults.put(key, data)
    return key, right


async def damage_batch(broker: Incarnation, chunk: Chunk, extent: Extent, row: int) -> None:
    """Flip a bit of the records of one batch."""
    inc = broker.engine.incarnation_id
    sections = await broker.faults.get(keys.index_object(inc, chunk))
    index = BatchIndex.decode(sections[extent.position : extent.position + extent.length_bytes])
    key = keys.chunk_object(inc, chunk)
    data = bytearray(await broker.faults.get(key))
    data[index.positions[row] + index.sizes[row] - 5] ^= 1
    await broker.faults.put(key, data)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("row", "value"), [(0, 1), (1, -1), (-1, 1)])
async def test_a_fold_with_wrong_rows_loses_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, column: str, row: int, value: int
) -> None:
    broker, chunk, extent = await filled(machine)
    await damage_index(broker, column, row, value, extent, chunk)
    fold_by(monkeypatch, FANOUT)
    await broker.sweeper.fold()
    assert broker.sweeper.chunks_folded >= 2 * FANOUT, "the index was made again"
    forget_memory(broker)
    await machine.check(broker, exact=True)
    await machine.crash(broker)
    await machine.check(await machine.start(), exact=True)


async def test_a_fold_leaves_a_damaged_chunk_where_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, chunk, extent = await filled(machine)
    key = keys.chunk_object(broker.engine.incarnation_id, chunk)
    right = await broker.faults.get(key)
    await damage_batch(broker, chunk, extent, 1)
    fold_by(monkeypatch, FANOUT)
    await broker.sweeper.fold()
    assert broker.sweeper.chunks_folded
    (told,) = [record for record in caplog.records if record.message == "chunks_not_folded"]
    assert told.levelname == "ERROR"
    await broker.faults.put(key, right)
    forget_memory(broker)
    await machine.check(broker, exact=True)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("row", "value"), [(0, 1), (1, 1), (-1, 1)])
async def test_a_reader_makes_an_index_with_wrong_rows_again(machine: Machine, column: str, row: int, value: int) -> None:
    broker, chunk, extent = await filled(machine)
    key, right = await damage_index(broker, column, row, value, extent, chunk)
    forget_memory(broker)
    await machine.check(broker, exact=True)
    assert await broker.faults.get(key) == right


async def test_a_damaged_batch_is_not_served_and_can_be_skipped(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """The broker serves the batches before and behind the damaged one, and other partitions."""
    broker, chunk, extent = await filled(machine)
    await damage_batch(broker, chunk, extent, 1)
    forget_memory(broker)
    log = broker.log("t", 0)
    offset = extent.base_offset
    (first,) = await broker.engine.read(log, offset, 1 << 20)
    offset = parse_header(first).next_offset
    for _ in range(3):
        with raises(CorruptError, Reason.CORRUPT_STORE, f"not what was written.*offset=`{offset}`"):
            await broker.engine.read(log, offset, 1 << 20)
    (told,) = [record for record in caplog.records if record.message == "records_unreadable"]
    assert told.levelname == "ERROR"
    assert [len(await read_all(broker, "t", other)) for other in (1, 2)] == [len(machine.acked["t", other]) for other in (1, 2)]
    checked = await broker.engine.find_unreadable(log, 0, log.high_watermark - 1)
    (bad,) = checked.found
    assert bad.base_offset == offset
    await broker.engine.skip_records(log, bad.base_offset, bad.end_offset - 1)
    rest = [one for part in await broker.engine.read(log, bad.end_offset, 1 << 20) for one in split(part)]
    assert parse_header(rest[0]).base_offset == bad.end_offset and all(crc_matches(batch) for batch in rest)


async def test_a_start_over_a_damaged_state_of_producers(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "DAMAGED_RETRY_S", 0.05)
    broker = await machine.begin()
    await broker.engine.create_topic("u", 1, {})
    for topic in ("t", "u"):
        await machine.send(broker, [b"0"], topic, producer=(7, 0, 0))
    segment = next(one for one in broker.engine.leads.segments() if one.topic_id == broker.engine.topic("t").id)
    await machine.stop(broker)
    (key,) = [row.key for row in await broker.faults.list("wal/") if row.key.endswith(f"producers-segment-{segment.id}")]
    data = await broker.faults.get(key)
    await broker.faults.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    for _ in range(2):
        broker = await machine.start()
        await machine.send(broker, [b"more"], "u")
        assert list(broker.engine.leads.openings.damaged) and broker.engine.leads.by_id[broker.engine.topic("t").id] == [None]
        await machine.stop(broker)
        machine.sent["u", 0].clear()
        machine.acked.pop(("u", 0))
    broker = await machine.start()
    await broker.faults.put(key, data)
    await until_async(lambda: not broker.engine.leads.openings.damaged)
    with raises(HeadgateError, Reason.OUT_OF_ORDER_SEQUENCE):
        await machine.send(broker, [b"0"], "t", producer=(7, 0, 5))
    await machine.check(broker, exact=True)
