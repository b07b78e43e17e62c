"""Random lives of gates: opened, filled, released and forgotten among live records, crashes, folds and retention.

Runs: for each seed a medium and some incarnations of a broker. Live batches are appended all the time. Gates are opened at the
end and in front, filled wholly or in part, or released. Some are opened again under the same id with other rows; some are left
when the broker dies, in the middle of a step or between two. Chunks are folded; records are deleted. Meanwhile readers read the
log from its beginning. Compared: invariants 2, 6 and 7. Every reader gets the final log, each record once and in order: it never
passes a window that is filled later. A filled gate has all its rows and a released one none. Offsets never go back, no two
records have one. A reader at the end gets live records whatever gates are open. A file that a gate names is never swept.
`HEADGATE_SEEDS=17-17 pytest tests/unit/engine/test_gates_random.py` runs one seed alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from random import Random

import pytest

from headgate.broker.cluster.gates import Gate
from headgate.broker.control.leader_gates import LeaderGates
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.windows import NOBODY
from headgate.broker.log.batch import parse_header, split
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import HeadgateError, InvalidError
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.gate_world import files_for, value_of
from tests.unit.engine.test_random import seeds
from tests.unit.engine.world import Incarnation, Machine, settings

SEEDS = 32
PARTS = 4
ROOM = 300
PARTITIONS = 2


def records_of(slices: Iterable[memoryview]) -> Iterator[Record]:
    return (record for one in slices for batch in split(one) for record in iter_records(batch))


class Reader:
    """Reads a partition from its beginning; the broker has no state about it."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.offset = -1
        self.shown: list[tuple[int, bytes | None]] = []

    async def read(self, broker: Incarnation, max_bytes: int) -> None:
        log = broker.log("t", self.partition)
        if self.offset < log.log_start:
            self.offset, self.shown = log.log_start, []  # records were deleted, or older history came: the reader restarts
        batches = await broker.engine.read(log, self.offset, max_bytes, NOBODY)
        self.shown += [(record.offset, record.value) for record in records_of(batches) if record.offset >= self.offset]
        if batches:
            self.offset = parse_header(split(batches[-1])[-1]).next_offset


class Life:
    """One seed."""

    def __init__(self, machine: Machine, clock: ManualClock, random: Random) -> None:
        self.machine, self.clock, self.random = machine, clock, random
        self.values = itertools.count()
        self.names = itertools.count()
        self.readers = [Reader(partition) for partition in range(PARTITIONS)]
        self.live: dict[int, dict[int, bytes]] = {partition: {} for partition in range(PARTITIONS)}
        self.rows: dict[str, list[int]] = {}
        self.missing: dict[str, int] = {}
        self.ends = [0] * PARTITIONS
        self.starts = [ROOM] * PARTITIONS
        self.broker: Incarnation
        self.gates: LeaderGates

    async def run(self) -> None:
        for _ in range(self.random.randint(2, 4)):
            await self._start(self.random.choice((None, None, self.random.randint(20, 200))))
            for _ in range(self.random.randint(10, 40)):
                try:
                    await self._step()
                except InvalidError:
                    raise
                except HeadgateError:
                    if not self.broker.store.dead:
                        raise
                    break
            for partition, log in enumerate(self._logs()):
                if not self.broker.store.dead:
                    self.ends[partition] = max(self.ends[partition], log.high_watermark)
            await self.machine.crash(self.broker)
        await self._start(None)
        await self._finish()

    def _logs(self) -> list[PartitionLog]:
        return [log for log in self.broker.engine.logs.get("t", []) if log is not None]  # type: ignore[misc]

    async def _start(self, kill_at_call: int | None) -> None:
        limits = settings(
            wal_chunk_bytes=self.random.choice((4_096, 20_000)),
            wal_checkpoint_chunks=self.random.choice((1, 3, 50)),
            tail_bytes=self.random.choice((20_000, 1 << 20)),
            wal_flush_bytes=self.random.choice((1_000, 1 << 20)),
        )
        while True:
            try:
                self.broker = await self.machine.start(limits, kill_at_call=kill_at_call)
                if "t" not in self.broker.engine.manifest.topics:
                    await self.broker.engine.create_topic("t", PARTITIONS, {"history.room": str(ROOM)})
                break
            except HeadgateError:
                assert kill_at_call is not None
                kill_at_call = None
        self.gates = self.broker.leader.gates
        for partition in range(PARTITIONS):
            if self.broker.store.dead:
                return
            log = self.broker.log("t", partition)
            assert log.high_watermark >= self.ends[partition], "offsets went back"
            log.check_invariants()

    def _of_state(self, *states: str) -> list[Gate]:
        return [gate for gate in self.gates.list_all("t") if gate.state in states and "~" not in gate.id]

    async def _step(self) -> None:
        random, engine = self.random, self.broker.engine
        partition = random.randrange(PARTITIONS)
        match random.choices(
            ("append", "durable", "read", "open", "held", "fill", "again", "release", "delete", "sweep", "files", "tail"),
            (10, 6, 8, 3, 0.5, 3, 1, 1, 0.5, 1, 0.5, 2),
        )[0]:
            case "append":
                self._append(partition)
            case "durable":
                await engine.durable(5_000)
            case "read":
                for reader in self.readers:
                    await reader.read(self.broker, random.choice((1, 500, 1 << 20)))
            case "open":
                await self._open()
            case "held":
                # A leader that dies before it opens the gate leaves a gap that no manifest names.
                topic = engine.topic("t")
                engine.hold(topic.id, f"lost-{next(self.names)}", {partition: random.randint(1, 50)}, engine.manifest.term_epoch)
                if random.random() < 0.5:
                    for log in engine.all_logs():
                        log.drop_holds()
            case "fill":
                await self._fill()
            case "again":
                await self._again()
            case "release":
                if waiting := self._of_state("open"):
                    await self.gates.release("t", random.choice(waiting).id)
            case "delete":
                log = self.broker.log("t", partition)
                first = log.windows.first_waiting()
                limit = log.high_watermark if first is None else min(first.base_offset, log.high_watermark)
                await engine.delete_records(log, random.randint(log.log_start, limit))
            case "sweep":
                self.broker.sweeper.wake()
            case "files":
                await self.gates.files.sweep(random.choice((0, 10_000)))
            case "tail":
                await self._read_end(partition)

    def _append(self, partition: int) -> None:
        values = [b"%d-" % next(self.values) + bytes(self.random.choice((0, 300))) for _ in range(self.random.randint(1, 3))]
        done = self.machine.send(self.broker, values, "t", partition)
        live = self.live[partition]

        def acked(future: object) -> None:
            if not done.cancelled() and done.exception() is None:
                live.update((done.result() + at, value) for at, value in enumerate(values))

        done.add_done_callback(acked)

    async def _open(self) -> None:
        random = self.random
        name = f"g{next(self.names)}"
        given_up = [gate.id for gate in self._of_state("released")]
        if given_up and random.random() < 0.3:
            name = random.choice(given_up)
            self.missing.pop(name, None)
        rows = [random.choice((0, random.randint(1, 60))) for _ in range(PARTITIONS)]
        place = random.choice(("now", "now", "front"))
        self.rows[name] = rows
        if place == "front":
            with suppress(InvalidError):  # no history room is left
                await self.gates.open("t", name, "front", rows, 60_000)
            return
        gate = await self.gates.open("t", name, "now", rows, 60_000)
        assert await self.gates.open("t", name, "now", rows, 60_000) == gate

    async def _fill(self) -> None:
        waiting = self._of_state("open")
        if waiting:
            gate = self.random.choice(waiting)
            missing = self.missing.setdefault(gate.id, self.random.choice((0, 0, 7)))
            files = await files_for(self.broker.engine, gate, missing=missing, per_file=self.random.choice((9, 100)))
            self.random.shuffle(files)
            if self.random.random() < 0.8:  # else the driver dies between the upload and the commit
                await self.gates.fill("t", gate.id, files)

    async def _again(self) -> None:
        """The same fill again adds nothing."""
        done = [gate for gate in self._of_state("filled") if gate.extents and len(gate.extents) == gate.files]
        if done:
            gate = self.random.choice(done)
            assert await self.gates.fill("t", gate.id, list(reversed(gate.extents))) == gate

    async def _read_end(self, partition: int) -> None:
        """A reader at the end gets the records that are written from now on."""
        log = self.broker.log("t", partition)
        for other in self.broker.engine.all_logs():
            other.drop_holds()
        await self.broker.engine.durable(5_000)
        reader = 1 + next(self.names)
        log.readers.at_end(reader, log.high_watermark, self.clock.monotonic())
        log.readers.asked_end(reader, log.high_watermark)
        offset = log.high_watermark
        await self.gates.open("t", f"g{next(self.names)}", "now", [5, 5], 60_000)
        self._append(partition)
        await self.broker.engine.durable(5_000)
        batches = await self.broker.engine.read(log, offset, 1 << 20, reader)
        shown = list(records_of(batches))
        last = max(self.live[partition])
        assert shown and shown[-1].offset >= last and shown[-1].value == self.live[partition][shown[-1].offset]

    async def _finish(self) -> None:
        broker, engine = self.broker, self.broker.engine
        for gate in self._of_state("open"):
            if self.random.random() < 0.5:
                await self.gates.release("t", gate.id)
            else:
                missing = self.missing.setdefault(gate.id, 0)
                await self.gates.fill("t", gate.id, await files_for(engine, gate, missing=missing, attempt="last"))
        await engine.durable(5_000)
        await self.gates.files.sweep(0)
        await self._compare()
        for log in engine.all_logs():
            log.tail.clear()
        await self._compare()
        named = {one.path for gate in self.gates.list_all("t") for one in gate.extents}
        there = {found.key for found in await engine.store.list("topics/", "", 10_000)}
        assert there == named, "exactly the files that are named are there"
        await self.machine.stop(broker)

    async def _compare(self) -> None:
        """Check that every partition has its expected records, and that every reader got them."""
        for partition in range(PARTITIONS):
            log = self.broker.log("t", partition)
            log.check_invariants()
            wanted = dict(self.live[partition])
            for gate in self._of_state("filled"):
                window = gate.windows[partition]
                for row in range(max(0, window.rows - self.missing.get(gate.id, 0))):
                    assert window.base_offset + row not in wanted, "two records have one offset"
                    wanted[window.base_offset + row] = value_of(gate.id, partition, row)
            reader = Reader(partition)
            before = None
            while before != reader.offset:
                before = reader.offset
                await reader.read(self.broker, self.random.choice((1, 1_000, 1 << 20)))
            shown = dict(reader.shown)
            assert [offset for offset, _ in reader.shown] == sorted(shown), "each once, in order"
            cuts = self.broker.engine.manifest.readable.cuts_of(log.topic.id, partition)
            for offset, value in wanted.items():
                if offset >= log.log_start and not any(low <= offset < high for low, high in cuts):
                    assert shown.get(offset) == value, f"not there: {offset} {value!r}"
            for offset, value in shown.items():
                if offset not in wanted:
                    assert value is not None and value in self.machine.sent["t", partition], f"a foreign record: {offset} {value!r}"
            known = self.readers[partition]

            def there(row: tuple[int, bytes | None]) -> bool:
                """Whether the row was not deleted. A reader may get a whole batch if a part of it remains."""
                deleted = row[0] < log.log_start or any(low <= row[0] < high for low, high in cuts)  # noqa: B023
                return not deleted

            if known.offset >= log.log_start and known.shown:
                first = known.shown[0][0]
                wanted_rows = [one for one in reader.shown if first <= one[0] < known.offset and there(one)]
                assert [row for row in known.shown if there(row)] == wanted_rows, "a reader passed something by"
        self.broker.engine.manifest.check_invariants()


@pytest.mark.parametrize("part", range(PARTS))
async def test_random_lives_of_gates(part: int, make_machine: MakeMachine, clock: ManualClock) -> None:
    for seed in seeds(part, SEEDS):
        random = Random(seed)
        medium = random.choice(("inline", "memory", "put"))
        try:
            await Life(make_machine(medium), clock, random).run()
        except BaseException as error:
            error.add_note(f"seed {seed}: HEADGATE_SEEDS={seed}-{seed}")
            raise
