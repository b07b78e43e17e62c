"""One bit of one object changes while no broker runs, or while one serves.

Runs: an engine over a directory with every kind of object that an engine writes; bits of an object are flipped one at a time, at
its beginning, in its middle and near its end, and the object is restored after each. Compared: the outcome with a table, and every
record that is read with the record that was acked. A mismatch means that damage goes unnoticed, or stops more than it must. The
lease, group records and Parquet files have tests of their own: `control/test_lease.py`, `groups/test_coordinator.py` and
`engine/test_history.py`.
"""

from __future__ import annotations

import re

import pytest

from headgate.broker.log.batch import split
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.errors import CorruptError, FatalError, HeadgateError
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.test_fold import fill, forget_memory
from tests.unit.engine.world import Incarnation, Machine, fold_by

KINDS = {
    # The key, and the allowed outcomes of a start over a damaged object.
    "chunk": (r"wal/\w+/\d{20}", {"right", "partition"}),
    "index": (r"wal/\w+/\d{20}\.index", {"right"}),
    "edit": (r"cluster/.*/edit/\d{20}", {"refused"}),
    "snapshot": (r"cluster/.*/snapshot/\d{20}", {"right"}),
    "producers": (r"wal/\w+/producers-segment-.+", {"right", "partition"}),
    "fence": (r"wal/\w+/fence", {"right"}),
    "cluster id": (r"cluster/id", {"right", "refused"}),
}
PLACES = (0.0, 0.4, 0.98)
"""Of the flipped bits, as parts of an object."""


@pytest.fixture(autouse=True)
def no_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, 1000)


async def written(machine: Machine) -> Incarnation:
    """Two incarnations, so that there is a fence, too."""
    broker = await machine.begin(3)
    await fill(machine, broker, 2)
    broker = await machine.restart(broker)
    await fill(machine, broker, 2, start=1000)
    return broker


async def keys_like(broker: Incarnation, pattern: str) -> list[str]:
    found = []
    for prefix in ("wal/", "cluster/"):
        found += [row.key for row in await broker.faults.list(prefix) if re.fullmatch(pattern, row.key)]
    return found


def flipped(data: bytes, place: float) -> bytes:
    at = min(int(len(data) * place), len(data) - 1)
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


async def outcome(machine: Machine, broker: Incarnation) -> str:
    """Read everything. "right": all records. "partition": some partitions answer with an error, and the rest is right."""
    errors = 0
    for (topic, partition), acked in machine.acked.items():
        try:
            log = broker.log(topic, partition)
            offset = log.log_start
            assert log.high_watermark >= len(acked)
            while offset < log.high_watermark:
                batches = [one for part in await broker.engine.read(log, offset, 1 << 20) for one in split(part)]
                records = [record for batch in batches for record in iter_records(batch) if record.offset >= offset]
                assert records[0].offset == offset, "records are missing"
                for record in records:
                    assert acked[record.offset] == record.value, "another record than was acked"
                offset = records[-1].offset + 1
        except HeadgateError:
            errors += 1
    assert not broker.failures, "the broker goes on"
    return "partition" if errors else "right"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_over_a_flipped_bit(make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pattern, allowed = KINDS[kind]
    if kind == "snapshot":
        monkeypatch.setattr("headgate.broker.store.journal.SNAPSHOT_EDITS_MAX", 5)
    machine = make_machine("local")
    broker = await written(machine)
    await machine.stop(broker)
    store = broker.faults
    key = (await keys_like(broker, pattern))[-1]
    seen = set()
    for place in PLACES:
        data = await store.get(key)
        await store.put(key, flipped(data, place))
        try:
            broker = await machine.start()
        except (CorruptError, FatalError) as error:
            assert len(error.message) > 20
            seen.add("refused")
        else:
            seen.add(await outcome(machine, broker))
        await store.put(key, data)
        for running in list(machine._running):
            await machine.crash(running)
    assert seen <= allowed, seen
    broker = await machine.start()
    assert await outcome(machine, broker) == "right"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("cluster id", "fence", "snapshot")])
async def test_a_bit_that_flips_while_a_broker_serves(make_machine: MakeMachine, kind: str) -> None:
    """What was read once is in memory; chunks and indexes are read again."""
    pattern, _ = KINDS[kind]
    machine = make_machine("local")
    broker = await written(machine)
    found = await keys_like(broker, pattern)
    for place in PLACES:
        key = found[0]
        data = await broker.faults.get(key)
        await broker.faults.put(key, flipped(data, place))
        forget_memory(broker)
        broker.engine._reader._cache.clear()
        assert await outcome(machine, broker) in ({"right", "partition"} if kind == "chunk" else {"right"})
        await broker.faults.put(key, data)
    await machine.send(broker, [b"more"], "t")
    forget_memory(broker)
    await machine.check(broker, exact=True)
