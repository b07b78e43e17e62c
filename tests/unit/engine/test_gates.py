"""Gates: refused files, the fate of a gate's files, and the resulting log.

Runs: an engine alone over a directory or memory, with the leader's part in gates. Files are corrupted in every way that a job
can. Compared: each corrupt file gives a clear error that names the file and the defect, none of its rows can be read, and the
same gate can still be filled with good files. The sweep removes unreferenced files after their time and not before, and never
referenced ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from headgate.broker.cluster.edits.files import CondemnFiles
from headgate.broker.cluster.edits.gates import OpenGate
from headgate.broker.cluster.edits.topics import CreateTopic
from headgate.broker.cluster.gates import STEP_FILES, Gate, GateWindow, ParquetExtent, digest_of
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_edits, encode_snapshot
from headgate.broker.cluster.objects import Topic
from headgate.broker.engine.partition.extents import SealedExtents
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.windows import NOBODY
from headgate.broker.engine.read.references import References
from headgate.broker.engine.upkeep.retention import expired_offset
from headgate.broker.log.batch import parse_header
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.steps import finish
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.grpc.layout import layout
from headgate.broker.server.kafka import fetch
from headgate.broker.wire.grpc.headgate.v1 import gates_pb2
from headgate.broker.wire.kafka.fetch import FetchRequest, Wanted
from tests.support.errors import raises
from tests.unit.engine.conftest import MakeMachine, machine_on
from tests.unit.engine.gate_world import files_for, put_file, rows_of, value_of
from tests.unit.engine.world import NOW_MS, Incarnation, Machine, read_values, settings

ROWS = 40
HOUR_MS = 3_600_000


machine = machine_on("memory")


@dataclass
class Case:
    """A broker with a topic `t` of two partitions and an open gate `g`."""

    broker: Incarnation
    gate: Gate
    root: Path
    ref: ParquetExtent
    """A good file of partition 0."""

    async def spoil(self, data: bytes) -> ParquetExtent:
        """Write other bytes under the same key; the reference has their size and checksum."""
        await self.broker.engine.store.put(self.ref.path, data)
        length = int.from_bytes(data[-8:-4], "little") + 8
        return replace(self.ref, size_bytes=len(data), footer_crc32c=crc32c.crc32c(data[-length:]))

    async def write(self, rows: pa.Table, **options: Any) -> ParquetExtent:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, **options)
        return await self.spoil(sink.getvalue().to_pybytes())


Spoil = Callable[[Case], Awaitable[ParquetExtent]]


def _rows(case: Case) -> pa.Table:
    return rows_of("g", 0, 0, ROWS)


def _link(parent: int) -> Spoil:
    """The file, or the directory so many levels above it, is a symbolic link."""

    async def spoil(case: Case) -> ParquetExtent:
        file = case.root / case.ref.path
        target = [file, *file.parents][parent]
        os.rename(target, case.root / "elsewhere")
        os.symlink(case.root / "elsewhere", target)
        return case.ref

    return spoil


async def _missing(case: Case) -> ParquetExtent:
    await case.broker.engine.store.delete(case.ref.path)
    return case.ref


def _bytes(change: Callable[[bytes], bytes], *, stated: bool = False) -> Spoil:
    """The file has other bytes; `stated`: the reference has their number."""

    async def spoil(case: Case) -> ParquetExtent:
        data = change(await case.broker.engine.store.get(case.ref.path))
        await case.broker.engine.store.put(case.ref.path, data)
        return replace(case.ref, size_bytes=len(data)) if stated else case.ref

    return spoil


async def _unsorted(case: Case) -> ParquetExtent:
    offsets = list(range(ROWS // 2, ROWS)) + list(range(ROWS // 2))
    return await case.write(_rows(case).append_column("offset", pa.array(offsets, pa.int64())), row_group_size=ROWS // 2)


async def _more_rows(case: Case) -> ParquetExtent:
    bad = await case.write(rows_of("g", 0, 0, ROWS + 5))
    return replace(bad, end_offset=bad.end_offset + 5)


def _path(path: str) -> Spoil:
    async def spoil(case: Case) -> ParquetExtent:
        return replace(case.ref, path=path.format(own=case.ref.path))

    return spoil


def _changed(**changes: int) -> Spoil:
    async def spoil(case: Case) -> ParquetExtent:
        return replace(case.ref, **{name: getattr(case.ref, name) + by for name, by in changes.items()})

    return spoil


def _columns(change: Callable[[pa.Table], pa.Table], **options: Any) -> Spoil:
    async def spoil(case: Case) -> ParquetExtent:
        return await case.write(change(_rows(case)), **options)

    return spoil


BAD: dict[str, tuple[Spoil, str]] = {
    "another topic's prefix": (_path("topics/" + "0" * 32 + "/data/partition=0/x.parquet"), "not under the topic's prefix"),
    "the log itself": (_path("cluster/id"), "not under the topic's prefix"),
    "two dots": (_path("{own}/../../../x.parquet"), "not a key"),
    "an absolute path": (_path("/etc/passwd"), "not a key"),
    "an empty path": (_path(""), "not a key"),
    "a URL that is not allowed": (_path("file:///etc/passwd"), "gate_allowed_prefixes"),
    "two dots behind an allowed root": (_path("file:///var/lib/../../etc/passwd"), "gate_allowed_prefixes"),
    "dots that are encoded": (_path("{own}/%2e%2e/%2e%2e/x.parquet"), "not a key"),
    "another bucket": (_path("s3://another/topics/x.parquet"), "gate_allowed_prefixes"),
    "a host in a URL of a file": (_path("file://host/etc/passwd"), "gate_allowed_prefixes"),
    "another scheme": (_path("http://example.org/x.parquet"), "gate_allowed_prefixes"),
    "a symbolic link": (_link(0), "symbolic link"),
    "a symbolic link on the way": (_link(1), "symbolic link"),
    "missing": (_missing, "no such file"),
    "cut off": (_bytes(lambda data: data[:-20]), "another size"),
    "longer than stated": (_bytes(lambda data: data + b"x"), "another size"),
    "cut off, and stated so": (_bytes(lambda data: data[:-20], stated=True), "cut off"),
    "another checksum": (_changed(footer_crc32c=1), "another checksum"),
    "fewer rows than stated": (_changed(base_offset=0, end_offset=1), "outside the gate's window"),
    "more rows than stated": (_changed(end_offset=-1), "another number of rows"),
    "more rows than the window": (_more_rows, "outside the gate's window"),
    "before the window": (_changed(base_offset=-1, end_offset=-1), "outside the gate's window"),
    "no rows": (_changed(end_offset=-ROWS), "at least one row"),
    "another first time": (_changed(timestamp_min_ms=-1), "times are"),
    "times that make no sense": (_changed(timestamp_min_ms=ROWS), "make no sense"),
    "no value": (_columns(lambda rows: rows.drop_columns(["value"])), "no column `value`"),
    "no timestamp": (_columns(lambda rows: rows.drop_columns(["timestamp"])), "no column `timestamp`"),
    "a value of another type": (
        _columns(lambda rows: rows.set_column(2, "value", pa.array(range(ROWS), pa.int64()))),
        "column `value` is neither",
    ),
    "a key of another type": (
        _columns(lambda rows: rows.set_column(1, "key", pa.array([1.5] * ROWS))),
        "column `key` is neither",
    ),
    "a time that is a text": (
        _columns(lambda rows: rows.set_column(0, "timestamp", pa.array(["1970-01-01"] * ROWS))),
        "column `timestamp`",
    ),
    "headers of another type": (
        _columns(lambda rows: rows.append_column("headers", pa.array(["a=b"] * ROWS))),
        "column `headers`",
    ),
    "a null timestamp": (
        _columns(lambda rows: rows.set_column(0, "timestamp", pa.array([None, *range(ROWS - 1)], pa.timestamp("ms", tz="UTC")))),
        "timestamp is null",
    ),
    "a null timestamp, and no statistics": (
        _columns(
            lambda rows: rows.set_column(0, "timestamp", pa.array([*range(ROWS - 1), None], pa.timestamp("ms", tz="UTC"))),
            write_statistics=False,
            row_group_size=3,
        ),
        "timestamp is null",
    ),
    "other times than stated, and no statistics": (
        _columns(
            lambda rows: rows.set_column(0, "timestamp", pa.array(range(ROWS), pa.timestamp("ms", tz="UTC"))),
            write_statistics=False,
            row_group_size=3,
        ),
        "the file's times are 0..39",
    ),
    "a time out of range, and no statistics": (
        _columns(
            lambda rows: rows.set_column(0, "timestamp", pa.array([1 << 60] * ROWS)).cast(
                pa.schema([pa.field("timestamp", pa.int64(), nullable=False), *(rows.schema.field(at) for at in (1, 2))])
            ),
            write_statistics=False,
        ),
        "out of range",
    ),
    "unsorted": (_unsorted, "not sorted by offset"),
    "offsets of another place": (
        _columns(lambda rows: rows.append_column("offset", pa.array(range(7, ROWS + 7), pa.int64()))),
        "not sorted by offset",
    ),
    "two columns of one name": (_columns(lambda rows: rows.append_column("key", rows.column("key"))), "same name"),
}


async def _open(machine: Machine, root: Path, settings: Settings = settings()) -> Case:  # noqa: B008
    broker = await machine.start(settings)
    engine = broker.engine
    await engine.create_topic("t", 2, {})
    gate = await broker.leader.gates.open("t", "g", "now", [ROWS, ROWS], HOUR_MS)
    return Case(broker, gate, root, await put_file(engine, gate, gate.windows[0], 0, ROWS))


async def test_a_file_without_statistics_is_taken_where_every_row_has_a_time(make_machine: MakeMachine, tmp_path: Path) -> None:
    case = await _open(make_machine("local"), tmp_path / "store")
    plain = await _columns(lambda rows: rows, write_statistics=False, row_group_size=3)(case)
    await case.broker.leader.gates.fill("t", "g", [plain])


@pytest.mark.parametrize("name", BAD)
async def test_bad_files_are_refused(name: str, make_machine: MakeMachine, tmp_path: Path) -> None:
    case = await _open(make_machine("local"), tmp_path / "store")
    broker, gates = case.broker, case.broker.leader.gates
    spoil, expected = BAD[name]
    bad = await spoil(case)
    with pytest.raises(InvalidError, match=expected) as caught:
        await gates.fill("t", "g", [bad])
    assert caught.value.reason is Reason.INVALID_REFERENCE
    if bad.path:
        assert bad.path[:300] in caught.value.message
    log = broker.log()
    assert gates.describe("t", "g").state == "open" and await broker.engine.read(log, 0, 1 << 20) == []
    directory = (tmp_path / "store" / case.ref.path).parent
    if directory.is_symlink():
        directory.unlink()
    files = await files_for(broker.engine, case.gate, attempt="again")
    assert (await gates.fill("t", "g", files)).state == "filled"
    assert await read_values(broker) == [value_of("g", 0, row) for row in range(ROWS)]


async def test_files_together(machine: Machine, tmp_path: Path) -> None:
    """Overlaps, the same file twice, partitions that do not exist; and no file at all, which fills a gate with a gap."""
    case = await _open(machine, tmp_path)
    broker, gates = case.broker, case.broker.leader.gates
    other = await put_file(broker.engine, case.gate, case.gate.windows[0], 5, 10, "b")
    for files, expected in (
        ([case.ref, other], "overlap"),
        ([case.ref, case.ref], "twice"),
        ([replace(case.ref, partition=2)], "no such partition"),
    ):
        with pytest.raises(InvalidError, match=expected):
            await gates.fill("t", "g", files)
    filled = await gates.fill("t", "g", [])
    assert (filled.state, filled.rows) == ("filled", 0) and await gates.fill("t", "g", []) == filled
    with pytest.raises(InvalidError, match="filled with other files"):
        await gates.fill("t", "g", [case.ref])
    assert await read_values(broker) == []
    assert broker.log().high_watermark == ROWS


async def test_opening_again_and_otherwise(machine: Machine, tmp_path: Path) -> None:
    case = await _open(machine, tmp_path)
    broker, gates = case.broker, case.broker.leader.gates
    assert await gates.open("t", "g", "now", [ROWS, ROWS], HOUR_MS) == case.gate
    bad: list[tuple[tuple[Any, ...], Reason]] = [
        (("t", "g", "now", [1, ROWS], HOUR_MS), Reason.GATE_CONFLICT),
        (("t", "g", "front", [ROWS, ROWS], HOUR_MS), Reason.GATE_CONFLICT),
        (("t", "g", "now", [ROWS, ROWS], HOUR_MS, (), "other"), Reason.GATE_CONFLICT),
        (("t", "h", "now", [1, 1], HOUR_MS, (), "d" * 1025), Reason.INVALID_REQUEST),
        (("t", "h", "now", [1, 1], HOUR_MS, (), "", "o" * 101), Reason.INVALID_REQUEST),
        (("t", "h", "now", [1], HOUR_MS), Reason.INVALID_REQUEST),
        (("t", "h", "now", [1, -1], HOUR_MS), Reason.INVALID_REQUEST),
        (("t", "h", "now", [1, 1 << 60], HOUR_MS), Reason.INVALID_REQUEST),
        (("t", "h", "now", [1, 1], 10), Reason.INVALID_REQUEST),
        (("t", "h/i", "now", [1, 1], HOUR_MS), Reason.INVALID_REQUEST),
        (("t", "..", "now", [1, 1], HOUR_MS), Reason.INVALID_REQUEST),
        (("t", "", "now", [1, 1], HOUR_MS), Reason.INVALID_REQUEST),
        (("t", "h", "front", [1, 1], HOUR_MS), Reason.INVALID_REQUEST),
        (("u", "h", "now", [1, 1], HOUR_MS), Reason.UNKNOWN_TOPIC),
    ]
    for arguments, reason in bad:
        with pytest.raises(InvalidError) as caught:
            words = dict(zip(("definition", "owner"), arguments[6:], strict=False))
            await gates.open(*arguments[:6], **words)
        assert caught.value.reason is reason, caught.value
    with raises(InvalidError, Reason.UNKNOWN_GATE):
        await gates.fill("t", "nobody", [])
    log = broker.log()
    assert (log.next_offset, log.high_watermark) == (ROWS, ROWS), "what was refused has kept nothing free"


async def test_a_gate_keeps_its_first_owner_who_alone_can_release_it_as_such(machine: Machine) -> None:
    broker = await machine.begin()
    gates = broker.leader.gates
    gate = await gates.open("t", "g", "now", [ROWS], HOUR_MS, definition="rows of May", owner="one")
    assert await gates.open("t", "g", "now", [ROWS], HOUR_MS, definition="rows of May", owner="other") == gate
    broker = await machine.restart(broker)
    gates = broker.leader.gates
    assert gates.describe("t", "g") == gate and (gate.definition, gate.owner) == ("rows of May", "one")
    with raises(InvalidError, Reason.GATE_CONFLICT):
        await gates.release("t", "g", owner="other")
    assert (await gates.release("t", "g", owner="one")).state == "released"
    again = await gates.open("t", "g", "now", [ROWS], HOUR_MS, definition="rows of June", owner="other")
    with pytest.raises(InvalidError):
        await gates.release("t", "g", owner="one")
    assert gates.describe("t", "g") == again and again.state == "open"


async def test_an_id_that_is_used_again_for_other_partitions(machine: Machine) -> None:
    """The first gate had no rows in the partition in which the second has some. The first gate's empty window there begins at
    the same offset, and belongs to no gate."""
    broker = await machine.begin(2)
    gates = broker.leader.gates
    await gates.open("t", "g", "now", [ROWS, 0], HOUR_MS)
    await gates.release("t", "g")
    gate = await gates.open("t", "g", "now", [0, ROWS], HOUR_MS)
    assert [(one.base_offset, one.end_offset) for one in gate.windows] == [(ROWS, ROWS), (0, ROWS)]
    for _ in range(2):
        states = [[(one.base_offset, one.gate_id, one.state) for one in broker.log("t", number).windows.rows] for number in (0, 1)]
        assert states == [[(0, "g~1", "released")], [(0, "g", "open")]]
        broker = await machine.restart(broker)


@pytest.mark.parametrize("how", ["fill", "publish"])
async def test_who_asks_again_finds_the_work_under_way(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A client asks another broker if one has not answered for seconds. A check of many files takes longer, and would never end
    if each request began it again."""
    case = await _open(machine, tmp_path)
    broker, gates = case.broker, case.broker.leader.gates
    judge = broker.engine.references.check
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def judge_slowly(*arguments: Any, **options: Any) -> None:
        begun.release()
        await go_on.wait()
        await judge(*arguments, **options)

    monkeypatch.setattr(broker.engine.references, "check", judge_slowly)

    def ask() -> asyncio.Task[Gate]:
        if how == "fill":
            return asyncio.create_task(gates.fill("t", "g", [case.ref]))
        return asyncio.create_task(gates.open("t", "p", "end", [], HOUR_MS, [replace(case.ref, base_offset=0, end_offset=ROWS)]))

    impatient = ask()
    await begun.acquire()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    again, other = ask(), ask()
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun.locked(), "files are judged once"
    go_on.set()
    gate = await again
    assert gate.state == "filled" and gate == await other == await ask()


async def test_partitions_that_a_topic_gets_while_files_are_judged(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late repetition of the call gets the same answer as the first call, of which the answer was lost."""
    case = await _open(machine, tmp_path)
    broker, gates = case.broker, case.broker.leader.gates
    files = [replace(case.ref, base_offset=0, end_offset=ROWS)]
    judge = broker.engine.references.check

    async def judge_slowly(*arguments: Any, **options: Any) -> None:
        await judge(*arguments, **options)
        topic = broker.engine.topic("t")
        await broker.engine.create_partitions(topic, topic.partitions + 1)

    monkeypatch.setattr(broker.engine.references, "check", judge_slowly)
    gate = await gates.open("t", "p", "end", [], HOUR_MS, files)
    assert [one.rows for one in gate.windows] == [ROWS, 0, 0]
    await broker.engine.create_partitions(broker.engine.topic("t"), 4)
    assert await gates.open("t", "p", "end", [], HOUR_MS, files) == gate
    with raises(InvalidError, Reason.GATE_CONFLICT):
        await gates.open("t", "p", "end", [], HOUR_MS, [replace(files[0], partition=3)])


async def test_what_was_deleted_out_of_a_batch_stays_deleted_behind_a_gate_in_front(machine: Machine) -> None:
    """This holds for live records and for history rows. A reader that comes from an offset below the batch named no offset
    inside it, and would get all of it."""
    broker = await machine.begin(1, {"history.room": "20"})
    engine = broker.engine
    await machine.send(broker, [b"gone", b"kept"])
    await engine.delete_records(broker.log(), 21)
    gates = broker.leader.gates
    wanted = [b"kept"]
    for name in ("late", "early"):
        gate = await gates.open("t", name, "front", [5], HOUR_MS)
        await gates.fill("t", name, await files_for(engine, gate))
        await engine.delete_records(broker.log(), gate.windows[0].base_offset + 2)
        wanted = [*(value_of(name, 0, row) for row in range(2, 5)), *wanted]
    gate = await gates.open("t", "none", "front", [1], HOUR_MS)
    await gates.release("t", "none")
    shown: list[bytes | None] = []
    offset = broker.log().log_start
    while offset < broker.log().high_watermark:
        for batch in await engine.read(broker.log(), offset, 1 << 20):
            shown += [record.value for record in iter_records(batch) if record.offset >= offset]
            offset = parse_header(batch).next_offset
    assert shown == wanted


async def test_published_files_come_at_the_end(machine: Machine, tmp_path: Path) -> None:
    """The gate is opened and filled in one step; the same call again adds nothing."""
    case = await _open(machine, tmp_path)
    broker, gates = case.broker, case.broker.leader.gates
    await gates.release("t", "g")
    await machine.send(broker, [b"live"])
    files = [replace(case.ref, base_offset=0, end_offset=ROWS)]
    gate = await gates.open("t", "p", "end", [], HOUR_MS, files)
    assert gate.state == "filled" and gate.extents[0].base_offset == ROWS + 1
    assert await gates.open("t", "p", "end", [], HOUR_MS, files) == gate
    with raises(InvalidError, Reason.GATE_CONFLICT):
        await gates.open("t", "p", "end", [], HOUR_MS, [replace(files[0], end_offset=ROWS - 1)])
    await machine.send(broker, [b"more"])
    wanted = [b"live", *(value_of("g", 0, row) for row in range(ROWS)), b"more"]
    assert await read_values(broker) == wanted
    broker = await machine.restart(broker)
    assert await read_values(broker) == wanted
    assert broker.log().next_offset == 2 * ROWS + 2


async def test_a_read_locates_its_extent_once(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of history and a read of a chunk each look for their extent once, also on their way through a Kafka fetch."""
    case = await _open(machine, tmp_path)
    broker = case.broker
    await machine.send(broker, [b"live"])
    await broker.leader.gates.fill("t", "g", await files_for(broker.engine, case.gate))
    log, looks = broker.log(), 0
    find = SealedExtents.find

    def counted(extents: SealedExtents, offset: int) -> int:
        nonlocal looks
        looks += 1
        return find(extents, offset)

    log.tail.clear()
    monkeypatch.setattr(SealedExtents, "find", counted)
    for offset in (0, ROWS):
        looks = 0
        assert parse_header((await broker.engine.read(log, offset, 1 << 20))[0]).base_offset == offset
        assert looks == 1, offset
        looks = 0
        request: FetchRequest[PartitionLog] = FetchRequest(12, 0, 1, 1 << 20)
        wanted = Wanted(log, True, 0, -1, offset, 1 << 20)
        _, failed, cold = fetch.collect(broker.engine, request, [(b"t", True, 1, [wanted], True)], 0, 1 << 20, NOBODY)
        assert not failed and cold
        await fetch.collect_cold(broker.engine, broker.engine.turns.begin(), cold, 0, 1 << 20, NOBODY, committed=False)
        assert parse_header(wanted.slices[0]).base_offset == offset
        assert looks == 1, offset


async def test_files_of_others(machine: Machine, tmp_path: Path) -> None:
    """Files under an allowed prefix are read in place, and never deleted."""
    lake = tmp_path / "lake"
    (lake / "a=1").mkdir(parents=True)
    pq.write_table(rows_of("g", 0, 0, ROWS), lake / "a=1" / "part-0.parquet")
    case = await _open(machine, tmp_path, settings(gate_allowed_prefixes=f"file://{lake}"))
    broker, gates = case.broker, case.broker.leader.gates
    data = (lake / "a=1" / "part-0.parquet").read_bytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    ref = replace(
        case.ref,
        path=f"file://{lake}/a=1/part-0.parquet",
        size_bytes=len(data),
        footer_crc32c=crc32c.crc32c(data[-length:]),
    )
    for path, expected in ((f"file://{lake}/../x.parquet", "not a key"), (f"file://{lake}x/y.parquet", "gate_allowed_prefixes")):
        with pytest.raises(InvalidError, match=expected):
            await gates.fill("t", "g", [replace(ref, path=path)])
    os.symlink(lake / "a=1" / "part-0.parquet", lake / "link.parquet")
    with pytest.raises(InvalidError, match="no such file"):
        await gates.fill("t", "g", [replace(ref, path=f"file://{lake}/link.parquet")])
    await gates.fill("t", "g", [ref])
    assert await read_values(broker) == [value_of("g", 0, row) for row in range(ROWS)]
    await broker.engine.delete_records(broker.log(), ROWS)
    await gates.files.sweep(0)
    assert gates.describe("t", "g").extents == [] and (lake / "a=1" / "part-0.parquet").exists()


async def test_who_sweeps_what(machine: Machine, clock: ManualClock, tmp_path: Path) -> None:
    case = await _open(machine, tmp_path)
    broker, engine, gates = case.broker, case.broker.engine, case.broker.leader.gates
    await engine.create_topic("u", 1, {})
    doomed = await gates.open("u", "g", "now", [ROWS], HOUR_MS)
    await gates.fill("u", "g", await files_for(engine, doomed))
    leftover = await put_file(engine, replace(case.gate, id="other"), case.gate.windows[0], 0, ROWS)

    async def there() -> set[str]:
        return {found.key for found in await engine.store.list("topics/")}

    before = await there()
    assert len(before) == 3
    await engine.delete_topic(engine.topic("u"))
    await gates.files.sweep(HOUR_MS)
    assert await there() == before, "nothing is old enough"
    clock.advance(HOUR_MS)
    await gates.files.sweep(HOUR_MS)
    assert await there() == {case.ref.path}, "the gate is open: its files are on their way"
    with pytest.raises(InvalidError, match="no such file"):
        await gates.fill("t", "g", [leftover])
    await gates.fill("t", "g", [case.ref])
    clock.advance(10 * HOUR_MS)
    await gates.files.sweep(0)
    assert await there() == {case.ref.path} and not engine.manifest.condemned
    await engine.delete_records(broker.log(), ROWS)
    await gates.files.sweep(HOUR_MS)
    assert await there() == set() and gates.describe("t", "g").rows == ROWS


async def test_a_condemned_file_fills_nothing(machine: Machine, tmp_path: Path) -> None:
    """A leader that is replaced between condemning and deleting must not remove a file from a gate that was filled since."""
    case = await _open(machine, tmp_path)
    broker, gates = case.broker, case.broker.leader.gates
    await broker.leader.journal.commit_made(lambda _: [CondemnFiles([case.ref.path])])
    with pytest.raises(InvalidError, match="being deleted"):
        await gates.fill("t", "g", [case.ref])
    await gates.files.sweep(HOUR_MS)
    assert not broker.engine.manifest.condemned
    with pytest.raises(InvalidError, match="no such file"):
        await gates.fill("t", "g", [case.ref])


async def test_retention_counts_from_the_commit(machine: Machine, clock: ManualClock, tmp_path: Path) -> None:
    """Retention does not use the records' own times, which are years ago; and it never passes an open gate."""
    broker = await machine.begin(1, {"retention.ms": str(HOUR_MS)})
    engine = broker.engine
    gates = broker.leader.gates
    first = await gates.open("t", "a", "now", [ROWS], 10 * HOUR_MS)
    await machine.send(broker, [b"live"])
    await gates.open("t", "b", "now", [ROWS], 10 * HOUR_MS)
    await machine.send(broker, [b"live"])
    log = broker.log()
    assert expired_offset(log, lambda age_ms: clock.now_ms() - age_ms) == 0
    await gates.fill("t", "a", await files_for(engine, first))
    assert log.size_bytes > gates.describe("t", "a").size_bytes
    assert expired_offset(log, lambda age_ms: NOW_MS + HOUR_MS - 1 - age_ms) == 0
    await broker.wal.roll()
    await broker.checkpointer.list_all()
    assert expired_offset(log, lambda age_ms: NOW_MS + 2 * HOUR_MS - age_ms) == ROWS + 1, "up to the gate that is open"
    await gates.release("t", "b")
    assert expired_offset(log, lambda age_ms: NOW_MS + 2 * HOUR_MS - age_ms) == log.high_watermark


async def test_the_layout_tells_each_empty_offset_once(machine: Machine, tmp_path: Path) -> None:
    """Windows that are open, released, filled in part or not at all, and removed records before a gate in front."""
    broker = await machine.begin(1, {"history.room": "100"})
    engine = broker.engine
    gates = broker.leader.gates

    def holes() -> list[tuple[str, int, int]]:
        (row,) = finish(layout(engine.manifest, "/s", gates_pb2.LayoutRequest(topic="t"))).partitions
        return [(hole.gate_id, hole.base_offset, hole.end_offset) for hole in row.holes]

    async def fill(gate: Gate, *spans: tuple[int, int]) -> None:
        files = [await put_file(engine, gate, gate.windows[0], first, count) for first, count in spans]
        await gates.fill("t", gate.id, files)

    await fill(await gates.open("t", "whole", "front", [50], HOUR_MS), (0, 50))
    await machine.send(broker, [b"live"])
    await gates.open("t", "open", "now", [10], HOUR_MS)
    part = await gates.open("t", "part", "now", [30], HOUR_MS)
    assert holes() == [("open", 101, 111), ("part", 111, 141)]
    await fill(part, (5, 5), (15, 5))
    await fill(await gates.open("t", "none", "now", [7], HOUR_MS))
    await machine.send(broker, [b"live"])
    behind = [("part", 111, 116), ("part", 121, 126), ("part", 131, 141), ("none", 141, 148)]
    assert holes() == [("open", 101, 111), *behind]
    await gates.release("t", "open")
    await engine.delete_records(broker.log(), 105)
    assert holes() == [("open", 105, 111), *behind], "only what may be read"
    await fill(await gates.open("t", "first", "front", [20], HOUR_MS), (0, 20))
    assert holes() == [("", 50, 105), ("open", 105, 111), *behind]
    values = len(await read_values(broker))
    log = broker.log()
    assert values + sum(end - base for _, base, end in holes()) == log.high_watermark - log.log_start


async def test_epochs_around_a_window(machine: Machine, tmp_path: Path) -> None:
    """OffsetForLeaderEpoch never answers below an offset that a reader has read, on this leader and on the next."""
    broker = await machine.begin(1, {"history.room": "100"})
    gates = broker.leader.gates
    await machine.send(broker, [b"a", b"b"])
    front = await gates.open("t", "f", "front", [60], HOUR_MS)
    await gates.fill("t", "f", await files_for(broker.engine, front))
    broker = await machine.restart(broker)
    gates = broker.leader.gates
    gate = await gates.open("t", "g", "now", [ROWS], HOUR_MS)
    await gates.fill("t", "g", await files_for(broker.engine, gate))
    broker = await machine.restart(broker)
    await machine.send(broker, [b"c"])
    log = broker.log()
    assert (log.log_start, log.high_watermark) == (40, 102 + ROWS + 1)
    epoch = gate.windows[0].leader_epoch
    assert broker.engine.epoch_end(log, 0) == (0, 100)
    assert broker.engine.epoch_end(log, epoch) == (epoch, 102 + ROWS)
    assert broker.engine.epoch_end(log, epoch - 1)[1] == 102
    batch = (await broker.engine.read(log, 110, 1 << 20))[0]
    assert int.from_bytes(batch[12:16], "big") == epoch


async def test_times_before_1970_and_after_2200(machine: Machine, tmp_path: Path) -> None:
    case = await _open(machine, tmp_path)
    broker = case.broker
    times = [-315_619_200_000 + row for row in range(ROWS - 1)] + [7_258_118_400_000]
    table = rows_of("g", 0, 0, ROWS).set_column(
        0, "timestamp", pa.array([1000 * one + 1 for one in times], pa.timestamp("us", tz="UTC"))
    )
    ref = replace(await case.write(table), timestamp_min_ms=times[0], timestamp_max_ms=times[-1])
    await broker.leader.gates.fill("t", "g", [ref])
    assert await broker.engine.offset_for_timestamp(broker.log(), times[3]) == (times[3], 3)
    assert await broker.engine.max_timestamp(broker.log()) == (times[-1], ROWS - 1)


def test_gates_are_part_of_the_snapshot() -> None:
    """This version reads its own edits and snapshots; it also reads a snapshot without gates, as older versions wrote it."""
    manifest = Manifest()
    assert decode_snapshot(encode_snapshot(manifest)).gates.by_topic == {}
    topic = Topic(id=uuid.UUID(int=1), name="t", partitions=1, config={"history.room": "10"})
    extent = ParquetExtent(0, 4, 9, 0, "topics/x", 7, 8, -5, 5)
    gate = Gate(
        id="g",
        topic_id=topic.id,
        place="front",
        windows=[GateWindow(0, 4, 10, 0)],
        ttl_ms=1,
        opened_ms=2,
        state="filled",
        extents=[extent],
    )
    edits = decode_edits(encode_edits([CreateTopic(topic), OpenGate(gate)]))
    manifest.apply(edits)
    again = decode_snapshot(encode_snapshot(manifest))
    again.check_invariants()
    assert (
        again.gates.by_topic == manifest.gates.by_topic
        and again.readable.log_start(topic.id, 0) == 4
        and again.gates.window_end(topic.id, 0) == 0
    )


async def test_paths_that_are_urls(tmp_path: Path) -> None:
    references = References(None, f"file://{tmp_path}/lake/", Turns(time.monotonic))  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="not a directory"):
        references.locate(f"file://{tmp_path}/lake/x.parquet")
    await references.close()


def test_the_digest_of_files_never_changes() -> None:
    """Gates in stores have digests: the same files must have the same one for ever, in any order, and however many there are."""
    count = 3 * STEP_FILES + 1
    files = [ParquetExtent(one % 7, one, one + 1, -1, f"p/{one}", 10 + one, one, 0, 0) for one in range(count)]
    rows = sorted((one.partition, one.base_offset, one.end_offset, one.path, one.size_bytes, one.footer_crc32c) for one in files)
    whole = hashlib.sha256(repr(rows).encode()).hexdigest()[:32]
    assert finish(digest_of(files)) == finish(digest_of(files[::-1])) == whole
    assert finish(digest_of([])) == hashlib.sha256(b"[]").hexdigest()[:32]


async def test_the_layout_lists_the_files_that_a_reader_wants(machine: Machine) -> None:
    """Files of gates and folded files, by partition, offset and time; of the other files it tells the offsets."""
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("t", 2, {"history.room": "100"})
    gates = broker.leader.gates
    gate = await gates.open("t", "old", "front", [40, 0], HOUR_MS)
    files = [await put_file(engine, gate, gate.windows[0], first, 10) for first in range(0, 40, 10)]
    await gates.fill("t", gate.id, files)
    base = gate.windows[0].base_offset
    for partition in (0, 1):
        folded = [
            ParquetExtent(partition, at, at + 10, 1, f"f{partition}-{at}", 1, 1, at, at + 9, records=5)
            for at in range(100, 200, 10)
        ]
        engine.manifest.files.add(topic.id, partition, folded)

    def asked(**wanted: object) -> dict[int, tuple[list[int], list[int], list[tuple[int, int]]]]:
        request = gates_pb2.LayoutRequest(topic="t", wanted=gates_pb2.RecordRange(**wanted))
        answer = finish(layout(engine.manifest, "/s", request))
        assert answer.files == 24
        return {
            row.partition: (
                [one.base_offset for one in row.files],
                [one.file.base_offset for one in row.folded],
                [(one.base_offset, one.end_offset) for one in row.left_out],
            )
            for row in answer.partitions
        }

    history, live = [base, base + 10, base + 20, base + 30], list(range(100, 200, 10))
    assert asked() == {0: (history, live, []), 1: ([], live, [])}
    assert asked(partitions=[1]) == {1: ([], live, [])}
    assert asked(partitions=[0], first_offset=base + 10, last_offset=base + 20) == {0: (history[1:3], [], [])}
    assert asked(partitions=[0], first_offset=base + 39, last_offset=100) == {0: (history[3:], [100], [])}
    assert asked(partitions=[1], first_timestamp_ms=125, last_timestamp_ms=130) == {1: ([], [120, 130], [(100, 120), (140, 200)])}
    none = gates_pb2.LayoutRequest(topic="t")
    assert all(not row.folded for row in finish(layout(engine.manifest, "/s", none)).partitions), (
        "for clients that do not know them"
    )
