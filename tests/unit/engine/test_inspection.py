"""`headgate store`: the check of a store beside its broker, the usage of topics, and the preview of retention and sweeps.

Runs: an engine with live records and history; then one object is removed, cut off or changed. Compared: the damages that the check
names with the damage that was done, and the preview with the actions of the broker's own sweeper. A mismatch means that an operator
trusts a damaged store, or is told of records that stay.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable

import pyarrow.parquet as pq
import pytest

from headgate.broker.cli.commands.store import cost
from headgate.broker.cluster.gates import data_prefix
from headgate.broker.engine.base import keys
from headgate.broker.engine.read.references import References
from headgate.broker.engine.upkeep.inspection import Damage, Inspection, check_store, take_stock
from headgate.broker.engine.upkeep.inventory import Kind, Records, Standing, expiring, topic_use
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.turns import Turns
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.gate_world import files_for
from tests.unit.engine.test_damage import chunk_with_rows, damage_batch
from tests.unit.engine.test_fold import fill
from tests.unit.engine.world import Incarnation, fold_by, settings, swept

HOUR_MS = 3_600_000
ROWS = 30


@pytest.fixture(autouse=True)
def no_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold would replace the chunk that a test damages."""
    fold_by(monkeypatch, 1000)


@pytest.fixture
async def broker(make_machine: MakeMachine) -> Incarnation:
    """Live records in three partitions of `t`, behind history in partition 0."""
    machine = make_machine("local")
    broker = await machine.begin(3)
    gate = await broker.leader.gates.open("t", "g", "now", [ROWS, 0, 0], HOUR_MS)
    await broker.leader.gates.fill("t", "g", await files_for(broker.engine, gate))
    await fill(machine, broker, 4)
    return broker


async def inspect(broker: Incarnation, *, deep: bool = False, oldest_ms: int = 0) -> Inspection:
    references = References(broker.faults, "", Turns(broker.engine.clock.monotonic))
    return await check_store(broker.faults, references, oldest_ms, deep=deep, progress=lambda done, total: None)


@pytest.mark.parametrize("deep", [False, True])
async def test_a_whole_store_is_whole(broker: Incarnation, deep: bool) -> None:
    found = await inspect(broker, deep=deep)
    assert (found.damages, found.unreadable) == ([], [])
    standings = {(one.kind, one.standing) for one in found.judged}
    assert {(Kind.CLUSTER, Standing.NEEDED), (Kind.CHUNK, Standing.NEEDED), (Kind.HISTORY, Standing.NEEDED)} <= standings
    assert (Kind.CHUNK, Standing.IN_PROGRESS) in standings, "the broker writes a chunk"
    assert not any(one.standing is Standing.LEFT_OVER for one in found.judged)


def test_a_lost_checkpoint_of_producers_is_not_made_light_of() -> None:
    """Brokers make an index again. A partition whose checkpoint is lost waits for an operator (`partition/openings.py`)."""
    assert "do not open until it is restored" in cost(Damage("wal/a/producers-segment-1", "no such object", (), Kind.PRODUCERS))
    assert "brokers make it again" in cost(Damage("wal/a/1.index", "no such object", (), Kind.INDEX))


async def _no_file(broker: Incarnation) -> tuple[str, int, int]:
    (gate,) = broker.engine.manifest.gates.by_topic[broker.engine.topic("t").id].values()
    await broker.faults.delete(gate.extents[0].path)
    return gate.extents[0].path, 0, ROWS


async def _short_file(broker: Incarnation) -> tuple[str, int, int]:
    (gate,) = broker.engine.manifest.gates.by_topic[broker.engine.topic("t").id].values()
    data = await broker.faults.get(gate.extents[0].path)
    await broker.faults.put(gate.extents[0].path, data[:-100])
    return gate.extents[0].path, 0, ROWS


async def _changed_page(broker: Incarnation) -> tuple[str, int, int]:
    (gate,) = broker.engine.manifest.gates.by_topic[broker.engine.topic("t").id].values()
    data = bytearray(await broker.faults.get(gate.extents[0].path))
    column = pq.read_metadata(io.BytesIO(data)).row_group(0).column(2)
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    await broker.faults.put(gate.extents[0].path, data)
    return gate.extents[0].path, 0, ROWS


async def _no_chunk(broker: Incarnation) -> tuple[str, int, int]:
    chunk, extent = chunk_with_rows(broker, 1)
    key = keys.chunk_object(broker.engine.incarnation_id, chunk)
    await broker.faults.delete(key)
    return key, extent.base_offset, extent.end_offset


async def _short_chunk(broker: Incarnation) -> tuple[str, int, int]:
    chunk, extent = chunk_with_rows(broker, 1)
    key = keys.chunk_object(broker.engine.incarnation_id, chunk)
    await broker.faults.put(key, (await broker.faults.get(key))[: chunk.size_bytes - 1])
    return key, extent.base_offset, extent.end_offset


async def _changed_batch(broker: Incarnation) -> tuple[str, int, int]:
    chunk, extent = chunk_with_rows(broker, 1)
    await damage_batch(broker, chunk, extent, 0)
    return keys.chunk_object(broker.engine.incarnation_id, chunk), extent.base_offset, extent.end_offset


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("damage", "needs_deep"),
    [
        (_no_file, False), (_short_file, False), (_changed_page, True),
        (_no_chunk, False), (_short_chunk, False), (_changed_batch, True),
    ],
)  # fmt: skip
async def test_a_damage_is_named_with_its_records(
    broker: Incarnation, damage: Callable[[Incarnation], Awaitable[tuple[str, int, int]]], needs_deep: bool, deep: bool
) -> None:
    key, first, end = await damage(broker)
    found = await inspect(broker, deep=deep)
    if needs_deep and not deep:
        assert found.damages == []
        return
    (one,) = found.damages
    assert one.key == key
    partition = 0 if key.startswith("topics/") else 1
    assert Records("t", partition, first, end) in one.records
    assert one.what


async def test_folded_files_are_a_kind_of_their_own(broker: Incarnation, clock: ManualClock) -> None:
    await broker.engine.alter_topic_config(broker.engine.topic("t"), {"offline.after.bytes": "0", "offline.after.ms": "-1"})
    await broker.wal.roll(cut=True)
    await broker.checkpointer.list_all()
    assert await broker.engine.running.offline.run_once()
    (gate,) = broker.engine.manifest.gates.by_topic[broker.engine.topic("t").id].values()
    assert not gate.extents
    use = topic_use(broker.engine.manifest)["t"]
    files = [one for _, one in broker.engine.manifest.files.all()]
    assert (use.live_bytes, use.history.objects) == (0, 0)
    assert (use.folded.objects, use.folded.size_bytes) == (len(files), sum(one.size_bytes for one in files))
    found = await inspect(broker, deep=True)
    assert (found.damages, found.unreadable) == ([], [])
    kinds = {one.found.key: (one.kind, one.standing) for one in found.judged}
    assert all(kinds[one.path] == (Kind.FOLDED, Standing.NEEDED) for one in files)
    (replaced,) = broker.engine.manifest.superseded
    assert kinds[replaced] == (Kind.HISTORY, Standing.IN_PROGRESS), "readers may still read it"
    assert all(one.standing is not Standing.LEFT_OVER for one in found.judged if one.kind is Kind.FOLDED)
    (left,) = [one for one in (await inspect(broker, oldest_ms=1 << 60)).judged if one.found.key == replaced]
    assert left.standing is Standing.LEFT_OVER
    # A folded file that is lost or damaged is named with its records.
    (of_one,) = [one for one in files if one.partition == 1]
    await broker.faults.put(of_one.path, (await broker.faults.get(of_one.path))[:-10])
    (damage,) = (await inspect(broker)).damages
    assert (damage.key, damage.records) == (of_one.path, (Records("t", 1, of_one.base_offset, of_one.end_offset),))
    await broker.faults.delete(of_one.path)
    (damage,) = (await inspect(broker)).damages
    assert (damage.key, damage.records) == (of_one.path, (Records("t", 1, of_one.base_offset, of_one.end_offset),))


async def test_a_missing_index_costs_no_record(broker: Incarnation) -> None:
    chunk, _ = chunk_with_rows(broker)
    assert not chunk.index_inline
    await broker.faults.delete(keys.index_object(broker.engine.incarnation_id, chunk))
    (one,) = (await inspect(broker)).damages
    assert (one.key, one.records) == (keys.index_object(broker.engine.incarnation_id, chunk), ())


async def test_objects_that_nothing_refers_to(broker: Incarnation, clock: ManualClock) -> None:
    topic_id = broker.engine.topic("t").id
    stray = f"{data_prefix(topic_id)}partition=0/stray.parquet"
    await broker.faults.put(stray, b"x")
    wal = keys.wal_prefix(broker.engine.incarnation_id)
    foreign = ["somebody/elses", *(f"{wal}{name}" for name in ("readme.txt", "7", f"{0:020d}.bak", f"{0:020d}.fold-copy-1"))]
    for key in foreign:
        await broker.faults.put(key, b"x")
    await broker.faults.put("topics/" + "0" * 32 + "/data/old.parquet", b"x")
    waiting = await broker.leader.gates.open("t", "h", "now", [1, 0, 0], HOUR_MS)
    uploaded = f"{data_prefix(topic_id)}partition=0/{waiting.id}-0-000.parquet"
    await broker.faults.put(uploaded, b"x")
    for oldest_ms, standing in ((0, Standing.IN_PROGRESS), (1 << 60, Standing.LEFT_OVER)):
        judged = {one.found.key: one for one in (await take_stock(broker.faults, oldest_ms)).judged}
        assert judged[stray].standing is standing
        assert judged[uploaded].standing is Standing.IN_PROGRESS, "the gate is open"
        assert {(judged[key].kind, judged[key].standing) for key in foreign} == {(Kind.FOREIGN, Standing.NEEDED)}
        assert judged["topics/" + "0" * 32 + "/data/old.parquet"].why == "its topic was deleted"


async def test_usage_by_topic(broker: Incarnation) -> None:
    manifest = broker.engine.manifest
    use = topic_use(manifest)["t"]
    (gate,) = manifest.gates.by_topic[broker.engine.topic("t").id].values()
    assert (use.history.objects, use.history.size_bytes) == (1, gate.extents[0].size_bytes)
    listed = [one for chunks in manifest.chunks.values() for chunk in chunks.values() for one in chunk.extents]
    assert use.live_bytes == sum(one.data_bytes for one in listed) > 0


@pytest.mark.parametrize("config", [{"retention.ms": str(HOUR_MS)}, {"retention.bytes": "30000"}, {"cleanup.policy": "compact"}])
async def test_the_preview_is_what_the_sweeper_does(make_machine: MakeMachine, clock: ManualClock, config: dict[str, str]) -> None:
    machine = make_machine("local")
    broker = await machine.begin(3, {"retention.ms": "-1", **config}, settings=settings(wal_chunk_bytes=16_384))
    await fill(machine, broker, 8)
    clock.advance(2 * HOUR_MS)
    # Retention completes the newest chunk early: let it, before the preview.
    await broker.wal.roll(cut=True)
    await broker.checkpointer.list_all()
    manifest = broker.engine.manifest
    told = list(expiring(manifest, broker.engine.cutoff_ms))
    starts = {one.records.partition: one.records.end_offset for one in told}
    assert bool(told) == ("cleanup.policy" not in config)
    assert all(one.size_bytes > 0 and next(iter(config)).split(".")[1][:2] in one.why for one in told)
    await swept(broker)
    assert {partition: log.log_start for partition in range(3) if (log := broker.log("t", partition)).log_start} == starts
