"""Random lives of brokers on random media: crashes, faults, stopped processes, retries, deletes, folds; and a checker that
always runs.

Runs: for each seed a medium, settings, fault rates, and some incarnations with random work; then one without faults. Compared:
invariants 1 to 5 of the design. Every acked record is there, once, at its offset and in order. Offsets have no gap and never go
back. An idempotent producer that retries its unacked batches adds nothing twice. A broker that was replaced acks nothing. A
failure names its seed: `HEADGATE_SEEDS=17-17 pytest tests/unit/engine/test_random.py` runs that one alone. (The order of threads
is not controlled, so a seed is a likely replay, not a certain one.)
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from random import Random

import pytest

from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, RetryError
from headgate.broker.testing.faults import Fault
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Incarnation, Machine, fold_by, settings

SEEDS = 100
SEEDS_SLOW = 5_000
CALLS_MAX = 200
"""Most calls of the store that a broker makes until it serves. Without faults, a start makes fewer."""
PARTS = 4
MEDIA = ("inline", "memory", "aligned", "put", "put")
IN_FLIGHT_MAX = 5
HOUR_MS = 3_600_000


def seeds(part: int, count: int) -> list[int]:
    first, _, last = os.environ.get("HEADGATE_SEEDS", f"0-{count - 1}").partition("-")
    return [seed for seed in range(int(first), int(last or first) + 1) if seed % PARTS == part]


class Producer:
    """An idempotent producer of one partition. It retries its unacked batches, in order."""

    def __init__(self, producer_id: int, partition: int, values: itertools.count[int]) -> None:
        self.producer_id = producer_id
        self.partition = partition
        self._values = values
        self._sequence = 0
        self.untold: deque[tuple[int, list[bytes]]] = deque()
        """(sequence, values) of unacked batches, in order."""
        self.told: list[tuple[int, list[bytes], int]] = []
        """(sequence, values, offset) of the last batches that were acked."""

    def _send(self, machine: Machine, broker: Incarnation, batch: tuple[int, list[bytes]]) -> None:
        sequence, values = batch
        producer = (self.producer_id, 0, sequence)
        done = machine.send(broker, values, "t", self.partition, producer=producer)

        def durable(future: asyncio.Future[int]) -> None:
            if future.cancelled() or future.exception() is not None:
                return
            if self.untold and self.untold[0] is batch:
                self.untold.popleft()
                self.told = [*self.told[-4:], (sequence, values, future.result())]

        done.add_done_callback(durable)

    def send(self, machine: Machine, broker: Incarnation, count: int, size: int) -> None:
        if len(self.untold) < IN_FLIGHT_MAX:
            batch = (self._sequence, [b"p%d-%d-" % (self.producer_id, next(self._values)) + bytes(size) for _ in range(count)])
            try:
                self._send(machine, broker, batch)
            except RetryError:
                return
            self._sequence += count
            self.untold.append(batch)

    def send_again(self, machine: Machine, broker: Incarnation) -> None:
        """Stand for a new connection: send all batches in flight again."""
        for batch in list(self.untold):
            self._send(machine, broker, batch)

    async def check_duplicates(self, machine: Machine, broker: Incarnation) -> None:
        """Retry an acked batch: the broker knows it, and gives the same answer as the first time."""
        for sequence, values, offset in self.told:
            again = await machine.send(broker, values, "t", self.partition, producer=(self.producer_id, 0, sequence))
            assert again == offset, f"a duplicate was answered with another offset. sequence=`{sequence}`"


class Life:
    """One seed."""

    def __init__(self, machine: Machine, clock: ManualClock, random: Random) -> None:
        self.machine = machine
        self.clock = clock
        self.random = random
        self.partitions = random.choice((1, 2))
        self.values = itertools.count()
        self.producers = [Producer(10 + number, number % self.partitions, self.values) for number in range(2)]
        self.broker: Incarnation | None = None
        self.ends: dict[int, int] = {}

    async def run(self) -> None:
        random = self.random
        for _ in range(random.randint(2, 4)):
            await self._start(random.choice((0.0, 0.02, 0.1)))
            for _ in range(random.randint(3, 25)):
                try:
                    await self._step()
                except (HeadgateError, TimeoutError):
                    if self._ended():
                        break
            await self._stop()
        await self._start(0.0)
        broker = self.broker
        assert broker is not None
        await self._settle(broker)
        await self.machine.check(broker)
        for log in broker.engine.all_logs():
            log.tail.clear()
        await self.machine.check(broker)
        for producer in self.producers:
            assert not producer.untold
            await producer.check_duplicates(self.machine, broker)
        await self.machine.stop(broker)
        assert all(incarnation.sealed for incarnation in broker.engine.manifest.incarnations.values())

    def _ended(self) -> bool:
        return self.broker is None or self.broker.store.dead or bool(self.broker.failures)

    async def _start(self, rate: float) -> None:
        """Start brokers until one starts: each may die of a fault, or before any call of its store."""
        random = self.random
        limits = settings(
            wal_chunk_bytes=random.choice((4_096, 20_000, 1 << 20)),
            wal_checkpoint_chunks=random.choice((1, 3, 50)),
            wal_checkpoint_interval_ms=random.choice((1, 20, 3_600_000)),
            tail_bytes=random.choice((20_000, 1 << 20)),
            wal_flush_bytes=random.choice((1_000, 1 << 20)),
            wal_inflight_puts_max=random.choice((1, 3)),
        )
        for attempt in itertools.count():
            faulty = rate if attempt < 4 else 0.0
            # A broker tries its start again for ever. One that takes too long is killed.
            kill = None if not faulty else random.randint(1, 40) if random.random() < 0.3 else CALLS_MAX
            try:
                self.broker = await self.machine.start(
                    limits,
                    kill_at_call=kill,
                    random=Random(random.random()),
                    rates=dict.fromkeys((fault for fault in Fault if fault is not Fault.LOST_RACE), faulty),
                )
                if kill == CALLS_MAX:
                    self.broker.store.kill_at_call = None
                break
            except HeadgateError:
                assert faulty, "a start without faults failed"
        broker = self.broker
        assert broker is not None
        if self._ended():
            return  # it died while it opened its partitions
        if "t" not in broker.engine.logs:
            try:
                await broker.engine.create_topic("t", self.partitions, {})
            except HeadgateError:
                return
        for partition in range(self.partitions):
            log = broker.log("t", partition)
            assert log.high_watermark >= self.ends.get(partition, 0), "offsets went back"
        for producer in self.producers:
            try:
                producer.send_again(self.machine, broker)
            except RetryError:
                return

    async def _step(self) -> None:
        broker, random, machine = self.broker, self.random, self.machine
        assert broker is not None
        engine = broker.engine
        match random.choices(
            ("plain", "idempotent", "wait", "turn", "delete", "topic", "sweep", "time", "zombie", "land", "read"),
            (8, 12, 4, 8, 1, 1, 1, 1, 0.5, 1, 3),
        )[0]:
            case "plain":
                values = [b"%d-" % next(self.values) + bytes(random.choice((0, 100, 3_000))) for _ in range(random.randint(1, 4))]
                machine.send(broker, values, "t", random.randrange(self.partitions))
            case "idempotent":
                producer = random.choice(self.producers)
                producer.send(machine, broker, random.randint(1, 3), random.choice((0, 100, 3_000)))
            case "wait":
                await engine.durable(200)
            case "turn":
                await asyncio.sleep(random.choice((0, 0, 0.001, 0.003)))
            case "delete":
                log = broker.log("t", random.randrange(self.partitions))
                await engine.delete_records(log, random.randint(log.log_start, log.high_watermark))
            case "topic":
                await self._topic(engine_topics=list(engine.manifest.topics))
            case "sweep":
                broker.sweeper.wake()
            case "time":
                self.clock.advance(random.choice((1, 1_000, 2 * HOUR_MS)))
            case "zombie":
                await self._replace(broker)
            case "land":
                await broker.faults.land()
            case "read":
                await self._read(broker)

    async def _topic(self, engine_topics: list[str]) -> None:
        broker, random = self.broker, self.random
        assert broker is not None
        others = [name for name in engine_topics if name != "t"]
        if others and random.random() < 0.4:
            self.machine.unchecked.add(others[0])
            await broker.engine.delete_topic(broker.engine.topic(others[0]))
        elif others and random.random() < 0.5:
            await broker.engine.create_partitions(broker.engine.topic(others[0]), random.randint(2, 4))
        else:
            name = f"other-{next(self.values)}"
            await broker.engine.create_topic(name, 1, {})
            self.machine.send(broker, [b"o%d" % next(self.values)], name)

    async def _replace(self, zombie: Incarnation) -> None:
        """Start another broker while this one lives and continues for a while, unaware of it."""
        self._note_ends(zombie)
        await self._start(0.0)
        late = []
        for _ in range(self.random.randint(0, 3)):
            try:
                late.append(self.machine.send(zombie, [b"z%d" % next(self.values)], "t"))
            except (RetryError, InvalidError):
                break
        if late:
            await asyncio.wait(late, timeout=1)
        for one in late:
            assert one.done()
            assert one.exception() is not None, "a broker that was replaced has acked"
        zombie.store.kill()

    def _note_ends(self, broker: Incarnation) -> None:
        for partition, log in enumerate(broker.engine.logs.get("t", [])):
            if log is not None:
                self.ends[partition] = max(self.ends.get(partition, 0), log.high_watermark)

    async def _read(self, broker: Incarnation) -> None:
        """Read from a random offset: the consumer gets exactly the acked records."""
        partition = self.random.randrange(self.partitions)
        log = broker.log("t", partition)
        if log.log_start < log.high_watermark:
            offset = self.random.randint(log.log_start, log.high_watermark - 1)
            slices = await broker.engine.read(log, offset, self.random.choice((1, 5_000)))
            assert slices or log.log_start > offset

    async def _settle(self, broker: Incarnation) -> None:
        await broker.engine.durable(60_000)
        for producer in self.producers:
            producer.send_again(self.machine, broker)
        await broker.engine.durable(60_000)
        await asyncio.sleep(0)

    async def _stop(self) -> None:
        broker, self.broker = self.broker, None
        assert broker is not None
        self._note_ends(broker)
        if self.random.random() < 0.25 and not broker.failures and not broker.store.dead:
            try:
                await broker.engine.close()
                await self.machine.forget(broker)
            except HeadgateError:
                await self.machine.crash(broker)
        else:
            await self.machine.crash(broker)
        if self.random.random() < 0.5:
            # A request that timed out may still take effect long after its sender has died.
            await broker.faults.land()


async def run(make_machine: MakeMachine, clock: ManualClock, part: int, count: int) -> None:
    for seed in seeds(part, count):
        random = Random(seed)
        medium = random.choice(MEDIA)
        machine = make_machine(medium)
        try:
            await Life(machine, clock, random).run()
        except BaseException as error:
            raise AssertionError(f"seed=`{seed}` medium=`{medium}`: {error!r}") from error
        finally:
            await machine.close()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, 3)
    monkeypatch.setattr("headgate.broker.engine.base.catalog.COMMIT_TRIES", 4)
    monkeypatch.setattr("headgate.broker.engine.write.path.STALL_GRACE_S", 0.05)


@pytest.mark.parametrize("part", range(PARTS))
async def test_random_lives(make_machine: MakeMachine, clock: ManualClock, part: int) -> None:
    await run(make_machine, clock, part, SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
async def test_many_random_lives(make_machine: MakeMachine, clock: ManualClock, part: int) -> None:
    await run(make_machine, clock, part, SEEDS_SLOW)


async def test_the_checker_can_fail(make_machine: MakeMachine) -> None:
    """The checker finds each: a missing acked record, a duplicate, a gap."""
    machine = make_machine("memory")
    broker = await machine.begin()
    for number in range(3):
        await machine.send(broker, [b"%d" % number])
    await machine.check(broker, exact=True)
    machine.acked["t", 0][3] = b"lost"
    with pytest.raises(AssertionError, match="acked records are not there"):
        await machine.check(broker)
    del machine.acked["t", 0][3]
    machine.sent["t", 0].reverse()
    with pytest.raises(AssertionError, match="changed their order"):
        await machine.check(broker)
    machine.sent["t", 0].reverse()
    await machine.send(broker, [b"2"])
    with pytest.raises(AssertionError, match="twice"):
        await machine.check(broker)
