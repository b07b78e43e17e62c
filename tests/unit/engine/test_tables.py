"""Topics as Iceberg tables, kept by the leader (`control/leader_tables.py`) and read by PyIceberg.

Runs: folds, DeleteRecords, retention and the deletion of a topic; a new leader; a race with another leader; sweeps. Compared: the
rows that PyIceberg reads from a directory with the records that consumers read. A mismatch means that table and topic differ.
"""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.table import StaticTable

from headgate.broker.control import leader_tables
from headgate.broker.engine.base import keys
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import Reason, RetryError
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.gate_world import files_for
from tests.unit.engine.test_offline import AT_ONCE, HOUR_MS, filled, folded, seen, seen_past
from tests.unit.engine.world import Incarnation


async def read_table(broker: Incarnation, topic: str = "t") -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of the newest version, by offset, and the table's properties."""
    loaded = await broker.engine.tables.load(broker.engine.topic(topic))
    if not loaded.version:
        return [], json.loads(loaded.data)["properties"]
    path = broker.engine.store.url + "/" + keys.table_metadata(broker.engine.topic(topic).id, loaded.version)
    table = StaticTable.from_metadata(path)
    return table.scan().to_arrow().sort_by("offset").to_pylist(), dict(table.metadata.properties)


async def ranges(broker: Incarnation) -> list[list[int]]:
    """The offsets that the table states."""
    _, properties = await read_table(broker)
    found: list[list[int]] = json.loads(properties["headgate.offsets"])["0"]
    return found


async def agree(broker: Incarnation, start: int = 0, end: int = 1 << 40) -> None:
    """The table has exactly the records that consumers read, at the offsets that it states: all of [start, end)."""
    await broker.leader.tables.write_due()
    rows, _ = await read_table(broker)
    records = await seen(broker) if broker.log().windows.first_waiting() is None else await seen_past(broker, 1080, 1180)
    stated = await ranges(broker) if rows else []
    inside = [one for one in records if any(low <= one[0].offset < high for low, high in stated)]
    assert {record.offset for record, _ in records if start <= record.offset < end} <= {record.offset for record, _ in inside}
    expected = [
        {
            "partition": 0,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestamp_type": int(kind != 0),
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for record, kind in inside
    ]
    found = [{**row, "timestamp": round(row["timestamp"].timestamp() * 1000), "headers": row["headers"] or None} for row in rows]
    assert found == expected


async def test_the_table_follows_the_topic(make_machine: MakeMachine, clock: ManualClock) -> None:
    machine = make_machine("local")
    broker = await machine.begin(1, {**AT_ONCE, "retention.ms": str(5 * HOUR_MS)})
    assert (await read_table(broker))[0] == []
    await filled(broker, 6)
    assert await folded(broker)
    await agree(broker)
    # Objects with other names are no versions: notes, copies of tools, metadata of other writers.
    prefix = keys.metadata_prefix(broker.engine.topic("t").id)
    for name in ("readme", "version-hint.text", "2.metadata.json", "v9.metadata.json", f"{9:020d}.metadata.json.bak", f"{9:020d}"):
        await broker.store.put(f"{prefix}{name}", b"9")
    await agree(broker)
    _, properties = await read_table(broker)
    assert properties["headgate.topic"] == "t" and json.loads(properties["headgate.offsets"]) == {"0": [[0, 240]]}
    clock.advance(2 * HOUR_MS)
    await filled(broker, 6, start=6)
    assert await folded(broker)
    await agree(broker)
    written = broker.leader.tables.versions_written
    await broker.leader.tables.write_due()
    assert broker.leader.tables.versions_written == written, "nothing changed"
    # Retention removes the first file. The same objects are swept, the table's own stay.
    clock.advance(4 * HOUR_MS)
    await broker.sweeper.run_once()
    await broker.leader.gates.files.sweep(1)
    await agree(broker)
    assert (await read_table(broker))[0][0]["offset"] == 240
    # The next leader goes on where this one stood, also if it missed a change.
    await filled(broker, 6, start=12)
    assert await folded(broker)
    broker = await machine.restart(broker)
    await agree(broker)
    await broker.engine.delete_topic(broker.engine.topic("t"))
    await broker.leader.gates.files.sweep(-(10**13))
    assert await broker.store.list("topics/") == []


async def test_floods_and_publishes_are_in_the_table(make_machine: MakeMachine) -> None:
    machine = make_machine("local")
    broker = await machine.begin(1, {**AT_ONCE, "history.room": "1000"})
    await filled(broker, 2)
    gate = await broker.leader.gates.open("t", "history", "now", [100], 60_000)
    await filled(broker, 2, start=2)
    assert await folded(broker)
    await agree(broker, end=1080)
    assert await ranges(broker) == [[1000, 1080], [1180, 1260]], "the table has no part of an open gate"
    await broker.leader.gates.fill("t", "history", await files_for(broker.engine, gate, missing=30, per_file=25))
    front = await broker.leader.gates.open("t", "old", "front", [300], 60_000)
    await broker.leader.gates.fill("t", "old", await files_for(broker.engine, front))
    assert await folded(broker)
    await agree(broker)
    assert await ranges(broker) == [[700, 1150], [1180, 1260]]
    assert not any(gate.extents for gate in broker.leader.gates.list_all("t"))
    # What is deleted in the middle of a file leaves the table at once, and the rest of that file comes back after its next fold.
    await broker.engine.delete_records(broker.log(), 820)
    await agree(broker, start=1000)
    assert await ranges(broker) == [[1000, 1150], [1180, 1260]]
    assert await folded(broker) == 0, "the start of the log has moved a moment ago"
    assert await folded(broker) == 1
    await agree(broker)
    assert await ranges(broker) == [[820, 1150], [1180, 1260]]
    broker = await machine.restart(broker)
    await agree(broker)


async def test_a_cut_in_front_of_older_history_is_not_in_the_table(make_machine: MakeMachine) -> None:
    machine = make_machine("local")
    broker = await machine.begin(1, {**AT_ONCE, "history.room": "1000"})
    await filled(broker, 4)
    assert await folded(broker)
    await broker.engine.delete_records(broker.log(), 1055)
    gate = await broker.leader.gates.open("t", "old", "front", [100], 60_000)
    await broker.leader.gates.fill("t", "old", await files_for(broker.engine, gate))
    for _ in range(3):
        await folded(broker)
    await agree(broker)
    assert await ranges(broker) == [[900, 1000], [1055, 1160]]


async def test_a_leader_that_was_replaced_loses_the_race(make_machine: MakeMachine) -> None:
    machine = make_machine("local")
    broker = await machine.start()
    topic = await broker.engine.create_topic("t", 1, AT_ONCE)
    assert topic is not None
    await filled(broker, 3)
    assert await folded(broker)
    await agree(broker)
    await filled(broker, 3, start=3)
    assert await folded(broker)
    # Another leader has written the next version; it has no file, so it differs from the manifest.
    metadata = json.loads((await broker.engine.tables.load(broker.engine.topic("t"))).data)
    metadata["properties"]["headgate.files"] = "0-0"
    other = keys.table_metadata(broker.engine.topic("t").id, 2)
    assert await broker.store.put_if_absent(other, json.dumps(metadata).encode())
    await broker.leader.tables.write_due()
    await agree(broker)
    assert (await broker.engine.tables.load(broker.engine.topic("t"))).version == 3
    assert json.loads(await broker.store.get(other)) == metadata


async def test_objects_that_no_snapshot_needs_are_swept(make_machine: MakeMachine, clock: ManualClock, monkeypatch: Any) -> None:
    monkeypatch.setattr(leader_tables, "GRACE_MS", -10 * 365 * 24 * HOUR_MS)
    monkeypatch.setattr("headgate.broker.wire.iceberg.table.SNAPSHOTS_KEPT", 2)
    machine = make_machine("local")
    broker = await machine.begin(1, AT_ONCE)
    for number in range(5):
        await filled(broker, 1, start=number)
        assert await folded(broker)
        await agree(broker)
    before = len(await broker.store.list("topics/"))
    await broker.leader.tables.sweep()
    await agree(broker)
    assert len(await broker.store.list("topics/")) < before


async def test_a_table_that_is_behind_keeps_its_files(make_machine: MakeMachine, clock: ManualClock, monkeypatch: Any) -> None:
    """Folds replace files, and the store takes no new version of the table meanwhile."""
    monkeypatch.setattr(leader_tables, "PAUSE_S", 1000.0)
    machine = make_machine("local")
    broker = await machine.begin(1, AT_ONCE)

    await filled(broker, 3)
    assert await folded(broker)
    await agree(broker)
    before = await read_table(broker)
    broker.store.refused["put"] = RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer")
    manifest_now = broker.engine.manifest
    for step in range(1, 40):  # until small files are merged
        del broker.store.refused["put"]
        await filled(broker, 1, start=3 * step)
        await folded(broker)
        broker.store.refused["put"] = RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer")
        await broker.leader.tables.write_due()
        if manifest_now.superseded:
            break
    assert manifest_now.superseded
    clock.advance(HOUR_MS)
    await broker.leader.gates.files.sweep(-(10**13))
    assert await read_table(broker) == before, "its files are still there"
    assert list(broker.leader.tables.failing) == [broker.engine.topic("t").id]
    broker.store.refused.clear()
    await agree(broker)
    gone = set(manifest_now.superseded)
    await broker.leader.gates.files.sweep(-(10**13))
    assert not gone & {one.key for one in await broker.store.list("topics/")}
    await agree(broker)
    assert not broker.leader.tables.failing
