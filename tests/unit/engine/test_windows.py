"""Windows on the leader of a partition: holds, readers at the end, and a manifest that is replaced as a whole.

Runs: engines alone. One applies edits one by one; the other applies all at once, as a broker does that rejoins. Compared:
offsets, windows, extents and epochs of both, and their answers to readers. A mismatch means that a broker which rejoined serves
a gate differently from one which stayed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from headgate.broker.cluster.edits.brokers import Committed, SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.gates import FillGate, OpenGate, ReleaseGate
from headgate.broker.cluster.edits.topics import SetLogStart
from headgate.broker.cluster.manifest_format import decode_snapshot, encode_snapshot
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.windows import READERS_MAX, Readers, ReaderWindow, Windows
from headgate.broker.engine.read import view
from headgate.broker.log.batch import CONTROL, crc_matches, parse_header
from tests.unit.engine.conftest import MakeMachine, machine_on
from tests.unit.engine.gate_world import files_for, value_of
from tests.unit.engine.world import Incarnation, Machine, read_values

HOUR_MS = 3_600_000


machine = machine_on("memory")


async def test_a_hold_ends_with_its_leader(machine: Machine) -> None:
    """Readers wait at a hold until the next leader begins; the same leader's later edits change nothing."""
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("t", 1, {})
    await machine.send(broker, [b"a"])
    held = engine.hold(topic.id, "g", {0: 10}, term=7)
    assert engine.hold(topic.id, "g", {0: 10}, term=7) == held and held[0].base_offset == 1
    await machine.send(broker, [b"b"])
    log = broker.log()
    assert (log.high_watermark, await engine.read(log, 1, 1 << 20)) == (12, [])
    woken: list[int] = []
    log.waiters.add(lambda: woken.append(1))
    engine.leads.applied([SetLeader(engine.incarnation_id, 7)])
    assert await engine.read(log, 1, 1 << 20) == [] and not woken
    engine.leads.applied([SetLeader(engine.incarnation_id, 8)])
    assert woken and await read_values(broker) == [b"a", b"b"]
    assert engine.hold(topic.id, "g", {0: 10}, term=8)[0].base_offset == 12, "another window: the first one was passed by"
    broker = await machine.restart(broker)
    assert await read_values(broker) == [b"a", b"b"]


async def test_the_log_ends_behind_a_gate_whatever_was_held_before_it(machine: Machine) -> None:
    """Otherwise a reader that got the end offset meanwhile would stand before the gate, and would count as a reader that is
    still on its way through the log."""
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("t", 1, {})
    await machine.send(broker, [b"a"])
    engine.hold(topic.id, "lost", {0: 10}, engine.manifest.term_epoch)
    await broker.leader.gates.open("t", "g", "now", [5], HOUR_MS)
    log = broker.log()
    assert log.high_watermark == 1, "readers wait for what may come into what is held"
    engine.drop_holds(topic.id, "lost")
    assert log.high_watermark == log.next_offset == 16


async def test_who_is_let_past(machine: Machine) -> None:
    broker = await machine.begin()
    engine = broker.engine
    await machine.send(broker, [b"a"])
    log = broker.log()
    now_s = engine.clock.monotonic()
    log.readers.at_end(1, 1, now_s)
    log.readers.at_end(2, 1, now_s - 11)
    log.readers.asked_end(3, 1)
    log.readers.asked_end(4, 0)
    log.readers.at_end(5, 1, now_s)
    log.readers.asked_start(5)
    await broker.leader.gates.open("t", "g", "now", [10], HOUR_MS)
    assert log.windows.rows[0].past == {1: 1, 3: 1}
    await machine.send(broker, [b"b"])
    for reader, wanted in ((1, 1), (2, 0), (3, 1), (4, 0), (5, 0)):
        assert len(await engine.read(log, 1, 1 << 20, reader)) == wanted, reader
    assert len(await engine.read(log, 0, 1 << 20, 1)) == 1, "it goes back"
    assert await engine.read(log, 1, 1 << 20, 1) == [], "and is a reader like any other"


async def test_who_is_at_the_end_reads_what_was_on_its_way_to_the_store(machine: Machine) -> None:
    """A window opens behind records that were not readable yet: a later read of them does not count as going back."""
    broker = await machine.begin()
    engine = broker.engine
    await machine.send(broker, [b"a", b"b", b"c"])
    log = broker.log()
    log.readers.at_end(1, 1, engine.clock.monotonic())
    log.readers.asked_end(2, 3)
    await broker.leader.gates.open("t", "g", "now", [10], HOUR_MS)
    await machine.send(broker, [b"d"])
    for reader, offset in ((1, 1), (1, 2), (1, 3), (1, 13), (2, 3)):
        assert await engine.read(log, offset, 1 << 20, reader), (reader, offset)
    await engine.read(log, 0, 1 << 20, 1)
    assert await engine.read(log, 3, 1 << 20, 1) == [], "it went back"


async def test_a_hole_at_the_end_is_left_at_once(machine: Machine) -> None:
    """A released window lets every reader pass in one step. An open window lets those that were at the end of a topic with live
    records; a hold that only this broker knows lets none."""
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("t", 1, {})
    await machine.send(broker, [b"a"])
    log = broker.log()
    gates = broker.leader.gates
    log.readers.asked_end(1, 1)

    async def given(offset: int, reader: int = 0) -> list[tuple[int, int, int]]:
        batches = await engine.read(log, offset, 1 << 20, reader)
        return [(one.base_offset, one.next_offset, one.attributes & CONTROL) for one in map(parse_header, batches)]

    await gates.open("t", "g", "now", [1 << 40], HOUR_MS)
    end = log.high_watermark
    assert end == 1 + (1 << 40)
    assert (await given(1), await given(1, 1)) == ([], [(end - 1, end, CONTROL)])
    await gates.release("t", "g")
    assert await given(1) == await given(end - 1) == await given(1, 1) == [(end - 1, end, CONTROL)]
    assert await given(end) == []
    assert crc_matches((await engine.read(log, 1, 1 << 20))[0])
    filled = await gates.open("t", "h", "now", [10], HOUR_MS)
    assert await given(1) == [(end - 1, end, CONTROL)], "the next one is waited for"
    await gates.fill("t", "h", await files_for(engine, filled, missing=4))
    assert await given(1) == [(end, end + 6, 0)], "records are behind it"
    assert await given(end + 6) == await given(end + 9) == [(end + 9, end + 10, CONTROL)]
    engine.hold(topic.id, "nobody", {0: 5}, term=1)
    assert await given(end + 6) == [(end + 9, end + 10, CONTROL)]
    engine.drop_holds(topic.id, "nobody")
    assert log.high_watermark == end + 10
    assert await given(end + 6) == [(end + 9, end + 10, CONTROL)], "the next lead may begin there"
    await machine.send(broker, [b"b"])
    assert await given(end + 6) == [(end + 15, end + 16, 0)]
    assert await read_values(broker) == [b"a", *(value_of("h", 0, row) for row in range(6)), b"b"]


async def test_readers_at_the_end_of_a_live_topic_never_get_the_history(machine: Machine) -> None:
    broker = await machine.begin()
    engine = broker.engine
    await machine.send(broker, [b"a"])
    log, gates = broker.log(), broker.leader.gates
    for reader in (1, 2, 3, 4):
        log.readers.at_end(reader, 1, engine.clock.monotonic())
    made = [await gates.open("t", name, "now", [10], HOUR_MS) for name in ("g", "h")]
    assert all(one.live for one in made)

    async def ends(offset: int, reader: int) -> list[int]:
        return [parse_header(batch).next_offset for batch in await engine.read(log, offset, 1 << 20, reader)]

    assert await ends(1, 1) == [21], "behind both, without a live record"
    assert not view.is_waiting(log, 1, 1) and view.is_waiting(log, 1, 0)
    log.readers.at_end(1, 21, engine.clock.monotonic())
    for one in made:
        await gates.fill("t", one.id, await files_for(engine, one))
    assert await ends(1, 2) == [21], "it did not ask while the gates were open"
    assert await ends(1, 1) == await ends(1, 0) == [11], "it was behind them, and went back"
    assert await ends(5, 3) == [11] and await ends(1, 3) == [11], "it sought a record of the history"
    view.seek(log, 4, 1)
    assert await ends(1, 4) == [11], "it looked for the time of the history"


async def test_every_reader_reads_all_floods_of_a_topic_that_only_floods_write_to(machine: Machine) -> None:
    broker = await machine.begin(2)
    engine = broker.engine
    log, gates = broker.log(), broker.leader.gates
    first = await gates.open("t", "g", "now", [10, 10], HOUR_MS)
    await gates.fill("t", "g", await files_for(engine, first))
    log.readers.at_end(1, 10, engine.clock.monotonic())
    second = await gates.open("t", "h", "now", [10, 10], HOUR_MS)
    assert not first.live and not second.live
    assert await engine.read(log, 10, 1 << 20, 1) == []
    await gates.fill("t", "h", await files_for(engine, second))
    assert parse_header((await engine.read(log, 10, 1 << 20, 1))[0]).base_offset == 10
    await machine.send(broker, [b"a"], partition=1)
    assert (await gates.open("t", "i", "now", [10, 10], HOUR_MS)).live, "one live record in any partition"
    assert not (await gates.open("t", "j", "end", [10, 10], HOUR_MS)).live
    assert (await gates.open("t", "k", "now", [10, 10], HOUR_MS)).live


async def test_live_records_do_not_wake_who_waits_at_a_window(machine: Machine) -> None:
    broker = await machine.begin()
    gates = broker.leader.gates
    gate = await gates.open("t", "g", "now", [10], HOUR_MS)
    await machine.send(broker, [b"a"])
    log = broker.log()
    assert view.is_waiting(log, 0, 1) and view.is_waiting(log, 5, 1) and not view.is_waiting(log, 10, 1)
    woken: list[str] = []

    def here() -> None:
        woken.append("at the window")

    def there() -> None:
        woken.append("at the end")

    log.waiters.add(here, at_window=True)
    log.waiters.add(there)
    await machine.send(broker, [b"b"])
    assert woken == ["at the end"]
    await gates.fill("t", "g", await files_for(broker.engine, gate))
    assert sorted(woken) == ["at the end", "at the end", "at the window"] and not view.is_waiting(log, 0, 1)
    log.waiters.remove(here)
    log.waiters.remove(there)
    assert not log.waiters.live and not log.waiters.at_window


async def test_the_end_moves_when_what_is_before_it_is_durable(machine: Machine) -> None:
    broker = await machine.begin()
    engine = broker.engine
    await machine.send(broker, [b"a"])
    done = machine.send(broker, [b"b"])
    log = broker.log()
    assert (log.high_watermark, log.next_offset) == (1, 2)
    gates = broker.leader.gates
    await gates.open("t", "g", "now", [10], HOUR_MS)
    await done
    await engine.durable()
    assert (log.high_watermark, log.next_offset) == (12, 12)


def _state(broker: Incarnation, partition: int) -> tuple[object, ...]:
    log = broker.log("t", partition)
    log.check_invariants()
    return (
        (log.log_start, log.high_watermark, log.next_offset),
        [(one.base_offset, one.end_offset, one.gate_id, one.state) for one in log.windows.rows],
        log.windows.end_of_all,
        [(one.base_offset, one.end_offset) for one in log.sealed.extents],
        log.windows.cuts,
        log.epochs.starts,
        log.size_bytes,
    )


@pytest.mark.parametrize("held", [False, True])
async def test_a_replaced_manifest_is_as_good_as_its_edits(held: bool, make_machine: MakeMachine) -> None:
    """`held`: this leader had reserved the windows itself, and then missed the edits."""
    machine = make_machine("memory")
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("t", 2, {"history.room": "100"})
    for partition in range(2):
        await machine.send(broker, [b"a%d" % partition, b"b%d" % partition], partition=partition)
    await broker.wal.roll()
    await broker.checkpointer.list_all()
    before = encode_snapshot(engine.manifest)
    seen: list[Edit] = []

    def applied(edits: Sequence[Edit]) -> None:
        seen.extend(edit for edit in edits if not isinstance(edit, Committed))
        Engine.applied(engine, edits)

    engine.applied = applied  # type: ignore[method-assign]
    gates = broker.leader.gates
    first = await gates.open("t", "first", "now", [10, 0], HOUR_MS)
    second = await gates.open("t", "second", "now", [5, 5], HOUR_MS)
    await gates.open("t", "third", "now", [3, 3], HOUR_MS)
    front = await gates.open("t", "front", "front", [20, 0], HOUR_MS)
    await gates.fill("t", "first", await files_for(engine, first))
    await gates.fill("t", "front", await files_for(engine, front))
    await gates.release("t", "second")
    await engine.delete_records(broker.log("t", 0), 85)
    wanted = [_state(broker, partition) for partition in range(2)]
    assert {type(edit) for edit in seen} == {OpenGate, FillGate, ReleaseGate, SetLogStart}
    await machine.crash(broker)

    other = make_machine("memory")
    broker = await other.start()
    engine = broker.engine
    catalog = engine._lifecycle.catalog
    assert isinstance(catalog, RoutedCatalog)
    # The topic as this broker knew it before it was away, and then with all edits.
    for manifest, edits in ((decode_snapshot(before), []), (decode_snapshot(before), seen)):
        mine = engine.manifest.incarnations[engine.incarnation_id]
        manifest.incarnations = {mine.id: mine, **manifest.incarnations}
        manifest.chunks[mine.id] = {}
        manifest.segments.open = {
            key: replace(one, incarnation_id=mine.id, base_offsets=[102] * len(one.base_offsets))
            for key, one in manifest.segments.open.items()
        }
        for segment in manifest.segments.open.values():
            manifest.segments.put(segment)
        manifest.apply(edits)
        catalog.manifest = manifest
        engine.leads.sync()
        await engine.leads.openings.settled()
        if held and not edits:
            for gate in (first, second):
                rows = {window.partition: window.rows for window in gate.windows}
                engine.hold(topic.id, gate.id, rows, manifest.term_epoch)
            engine.hold(topic.id, "third", {0: 3, 1: 3}, manifest.term_epoch)
    found = [_state(broker, partition) for partition in range(2)]
    assert [one[:6] for one in found] == [one[:6] for one in wanted]


def test_windows_by_offset() -> None:
    windows = Windows()
    for base, end in ((10, 20), (30, 40), (20, 25)):
        windows.add(ReaderWindow(base, end, f"g{base}", "released"))
    assert [one.base_offset for one in windows.rows] == [10, 20, 30] and windows.end == 40
    assert [windows.next(offset).base_offset for offset in (0, 10, 19, 20, 25, 39)] == [10, 10, 10, 20, 30, 30]  # type: ignore[union-attr]
    assert windows.next(40) is None
    assert windows.without(0, 50) == [(0, 10), (25, 30), (40, 50)]
    assert windows.without(12, 18) == [] and windows.without(26, 35) == [(26, 30)] and windows.without(41, 42) == [(41, 42)]
    windows.drop_below(25, 25)
    assert [one.base_offset for one in windows.rows] == [30]
    with pytest.raises(AssertionError, match="overlap"):
        windows.add(ReaderWindow(39, 41, "", "held"))


def test_readers_are_bounded() -> None:
    readers = Readers()
    for reader in range(READERS_MAX + 10):
        readers.at_end(reader, 5, 0.0)
        readers.asked_end(reader, 5)
    assert len(readers.standing(5, 5, 1.0, is_empty=False)) == READERS_MAX
    assert 0 not in readers.standing(5, 5, 1.0, is_empty=True)
