"""Topics as Iceberg tables, kept by the leader (`control/leader_tables.py`) and read by PyIceberg.

Runs: folds, DeleteRecords, retention and the deletion of a topic; a new leader; a race with another leader; sweeps. Compared: the
rows that PyIceberg reads from a directory with the records that consumers read. A mismatch means that table and topic differ.
"""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.table import StaticTable

from headgate.broker.control import leader_tables
from headgate.broker.engine import keys
from headgate.broker.runtime.clock import ManualClock
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.test_offline import AT_ONCE, HOUR_MS, filled, folded, seen
from tests.unit.engine.world import Incarnation


async def read_table(broker: Incarnation, topic: str = "t") -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of the newest version, by offset, and the table's properties."""
    loaded = await broker.engine.tables.load(broker.engine.topic(topic))
    if not loaded.version:
        return [], json.loads(loaded.data)["properties"]
    path = broker.engine.store.url + "/" + keys.table_metadata(broker.engine.topic(topic).id, loaded.version)
    table = StaticTable.from_metadata(path)
    return table.scan().to_arrow().sort_by("offset").to_pylist(), dict(table.metadata.properties)


async def agree(broker: Incarnation) -> None:
    """The table has exactly the records that consumers read."""
    await broker.leader.tables.write_due()
    rows, _ = await read_table(broker)
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
        for record, kind in await seen(broker)
    ]
    found = [{**row, "timestamp": round(row["timestamp"].timestamp() * 1000), "headers": row["headers"] or None} for row in rows]
    assert found == expected


async def test_the_table_follows_the_topic(make_machine: MakeMachine, clock: ManualClock) -> None:
    machine = make_machine("local")
    broker = await machine.start()
    await broker.engine.create_topic("t", 1, {**AT_ONCE, "retention.ms": str(5 * HOUR_MS)})
    assert (await read_table(broker))[0] == []
    await filled(broker, 6)
    assert await folded(broker)
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
    await broker.leader.gates.sweep(1)
    await agree(broker)
    assert (await read_table(broker))[0][0]["offset"] == 240
    # The next leader goes on where this one stood, also if it missed a change.
    await filled(broker, 6, start=12)
    assert await folded(broker)
    await machine.crash(broker)
    broker = await machine.start()
    await agree(broker)
    await broker.engine.delete_topic(broker.engine.topic("t"))
    await broker.leader.gates.sweep(-(10**13))
    assert await broker.store.list("topics/") == []


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
    broker = await machine.start()
    await broker.engine.create_topic("t", 1, AT_ONCE)
    for number in range(5):
        await filled(broker, 1, start=number)
        assert await folded(broker)
        await agree(broker)
    before = len(await broker.store.list("topics/"))
    await broker.leader.tables.sweep()
    await agree(broker)
    assert len(await broker.store.list("topics/")) < before
