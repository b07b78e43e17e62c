"""One seed: a cluster, its clients and its faults for some virtual seconds; then peace, and the final comparison."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import logging
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TextIO

from headgate.broker.cluster.edits.brokers import SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.gates import FillGate
from headgate.broker.cluster.edits.incarnations import SealIncarnation
from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.edits.topics import SetLogStart
from headgate.broker.cluster.manifest_format import decode_edits
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.engine.base import keys
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import CorruptError, InvalidError, RetryError
from headgate.broker.testing.simulation.clients import World, add_member, records_of
from headgate.broker.testing.simulation.faults import QUIET_S, Nemesis
from headgate.broker.testing.simulation.fleet import EXTRA_MAX, Fleet
from headgate.broker.testing.simulation.ledger import Ledger, Partition, Violation
from headgate.broker.testing.simulation.loop import PROCESS, VirtualLoop
from headgate.broker.testing.simulation.network import Network
from headgate.broker.testing.simulation.operators import AT_ONCE, Historian, Operator, Planner
from headgate.broker.testing.simulation.scene import Scene
from headgate.broker.testing.simulation.store import Medium, Weather
from headgate.broker.testing.simulation.trace import Trace
from headgate.broker.testing.simulation.transactors import Payments
from headgate.broker.testing.simulation.wal import SteppedWal

SETTLE_S = 120.0
"""Virtual time after all faults in which the cluster must ack everything and be readable, seconds."""
EVERYTHING = 1 << 30
JUMPING_RATE = 0.08
"""Share of the seeds in which only clocks jump. In other seeds, a jump seldom meets the events that make it matter."""
FOLDING_RATE = 0.25
"""Share of the seeds in which records become Parquet files as soon as they are listed."""
HISTORY_RATE = 0.25
"""Share of the seeds in which a job loads history."""
ADOPTING_RATE = 0.5
"""Share of its gates that it fills with adopted files."""
LANES_RATE = 0.5
"""Share of the seeds with history or folds in which there is a lane."""
TRANSACTIONS_RATE = 0.25
"""Share of the seeds with transactional producers."""
RETENTION_MS = 3_600_000
"""Retention time of topics in some runs, longer than a run: every removal by age is too early."""
EXPIRATION_MS = 7_200_000
"""Age at which brokers drop a silent producer's state: longer than a run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one seed. `digest`: hash of its trace."""

    seed: int
    digest: str
    failure: str | None
    events: int
    handles: int
    acked: int
    virtual_s: float
    faults: int


def simulate(seed: int, *, long: bool = False, out: TextIO | None = None, patches: Mapping[str, object] | None = None) -> Outcome:
    """Run one seed.

    Args:
        long: more partitions, records and faults. The events differ from those of the short run of the same seed.
        out: gets the events as they happen.
        patches: bugs planted on purpose: by dotted path, the object that replaces the original while the seed runs.
    """
    gc.disable()
    random = Random(seed)
    failure: str | None = None
    with replaced(_environment(random, patches or {})):
        # Drawn apart: the other seeds keep their lives.
        scenario = Scenario(random, out, long, transactions=Random(~seed).random() < TRANSACTIONS_RATE)
        _listen(scenario.trace, out is not None)
        SteppedWal.random = scenario.random
        try:
            scenario.run()
        except AssertionError as error:
            failure = str(error) or repr(error)
        scenario.loop.close()
        if failure is None and scenario.loop.failures:
            failure = f"an unexpected error: {scenario.loop.failures[0]}"
    return Outcome(
        seed=seed,
        digest=scenario.trace.digest(),
        failure=failure,
        events=len(scenario.trace),
        handles=scenario.loop.handles,
        acked=sum(len(records) for records in scenario.ledger.acked.values()),
        virtual_s=scenario.loop.time() - 1000,
        faults=scenario.nemesis.made,
    )


def _check_state(broker: Any) -> None:
    """Raise a Violation that quotes the broken assertion if the broker's manifest or one of its logs contradicts itself."""
    try:
        broker.engine.manifest.check_invariants()
        for log in broker.engine.all_logs():
            log.check_invariants()
    except AssertionError as error:
        broken = traceback.extract_tb(error.__traceback__)[-1].line
        raise Violation("state is sound", f"{broker.name}: {broken}") from error


class _Listener(logging.Handler):
    """Puts the brokers' log lines into the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info))
        self._trace.note(PROCESS.get() or "world", f"LOG {record.levelname.lower()}", record.getMessage(), text)


def _listen(trace: Trace, aloud: bool) -> None:
    logger = logging.getLogger("headgate")
    logger.propagate = False
    logger.handlers[:] = [_Listener(trace)] if aloud else []
    logger.setLevel(logging.INFO if aloud else logging.CRITICAL + 1)


def _environment(random: Random, patches: Mapping[str, object]) -> dict[str, object]:
    """Replacements for the machine's randomness and threads, and limits that are low enough to be reached in a run."""
    source = Random(random.random())
    return {
        "os.urandom": source.randbytes,
        "headgate.broker.control.load.memory_bytes": lambda: 0,
        "headgate.broker.engine.write.make.AppendWal": SteppedWal,
        "headgate.broker.cluster.capacity.DOWN_AFTER_MS": 2_000,
        "headgate.broker.cluster.term.TROUBLE_S": 3.0,
        "headgate.broker.engine.upkeep.chunk_fold.FANOUT": random.choice((2, 3, 8)),
        "headgate.broker.store.journal.SNAPSHOT_BYTES_MIN": random.choice((2_000, 8_000, 64_000)),
        "headgate.broker.cluster.topic_segments.CHAIN_SEGMENTS_MAX": random.choice((2, 64)),
        **patches,
    }


@contextlib.contextmanager
def replaced(values: Mapping[str, object]) -> Iterator[None]:
    """Set attributes of modules and classes by dotted path, and restore them."""
    before: list[tuple[Any, str, object]] = []
    try:
        for path, value in values.items():
            owner, name = _owner(path)
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _owner(path: str) -> tuple[Any, str]:
    owner_path, _, name = path.rpartition(".")
    try:
        return importlib.import_module(owner_path), name
    except ModuleNotFoundError:
        module, _, owner = owner_path.rpartition(".")
        return getattr(importlib.import_module(module), owner), name


def _settings(random: Random, *, jumps: bool, folds: bool) -> Settings:
    """The settings of a seed's brokers."""
    return dataclasses.replace(
        Settings(),
        wal_fsync="interval",
        wal_chunk_bytes=random.choice((3_000, 20_000, 1 << 20)),
        wal_checkpoint_chunks=random.choice((1, 3, 20)),
        wal_checkpoint_interval_ms=random.choice((20, 500, 30_000)),
        wal_flush_interval_ms=random.choice((5, 40, 250)),
        wal_flush_bytes=random.choice((1_000, 1 << 20)),
        wal_inflight_puts_max=random.choice((1, 2, 4)),
        tail_bytes=random.choice((20_000, 1 << 20)),
        cluster_lease_ttl_ms=random.choice((1_000, 3_000)),
        cluster_member_timeout_ms=random.choice((1_500, 2_000)),
        retention_check_interval_ms=500 if jumps else random.choice((500, 2_000, 60_000)),
        offline_check_interval_ms=100 if folds else 30_000,
        history_lane_bytes=1,
        gate_file_grace_ms=1_000 if folds else Settings().gate_file_grace_ms,
        producer_id_expiration_ms=EXPIRATION_MS,
        offsets_topic_num_partitions=1,
        transaction_topic_num_partitions=2,
    )


class Scenario:
    """One seed's cluster, clients, faults and checks."""

    def __init__(self, random: Random, out: TextIO | None, long: bool, *, transactions: bool) -> None:
        self.random = random
        self.long = long
        self.ledger = Ledger()
        self.network = Network(lambda: self.loop, random, random.choice((0.001, 0.004, 0.02)))
        self.loop = VirtualLoop(self.network.connect)  # type: ignore[abstract]
        self.trace = Trace(self.loop.time, out)
        self.medium = Medium(self.loop, random, self.trace, self._wrote)
        calm = Weather(latency_s=random.choice((0.001, 0.005, 0.03)))
        self.medium.weather = dataclasses.replace(calm)
        self._error: BaseException | None = None
        self._version = 0
        """The newest version of the manifest's journal."""
        self._read_error: RetryError | None = None
        jumps = random.random() < JUMPING_RATE
        append = jumps or random.random() < 0.4
        # Drawn apart, so that the other draws of a seed stay as they are.
        apart = Random(repr(random.getstate()[1][:4]))
        self.folds = apart.random() < FOLDING_RATE
        self.adopts = lambda: apart.random() < ADOPTING_RATE
        self._lane_random = Random(repr(random.getstate()[1][4:8]))
        settings = _settings(random, jumps=jumps, folds=self.folds)
        self.replicated = not jumps and random.random() < 0.3
        self.retention_ms = RETENTION_MS if jumps else random.choice((RETENTION_MS, 10**12))
        scene = Scene(
            random=random,
            loop=self.loop,
            network=self.network,
            medium=self.medium,
            trace=self.trace,
            calm=calm,
            fail=self.fail,
            append=append,
            jumps=jumps,
            replicated=self.replicated,
            member_timeout_ms=settings.cluster_member_timeout_ms,
        )
        sizes = (1, 1, 2) if jumps else (2, 3, 3, 4) if self.replicated else (1, 2, 3, 3, 3, 4)
        self.fleet = Fleet(scene, settings, random.choice(sizes), self.broker_acks)
        self.world = World(self.loop, self.network, self.fleet.brokers, self.ledger, random, self.trace, self.fail)
        self.world.judges_ends = not self.replicated
        self.nemesis = Nemesis(scene, self.fleet)
        config = {"ack": self.ack, "retention.ms": str(self.retention_ms), **(AT_ONCE if self.folds else {})}
        self.payments = Payments(self.world, config) if transactions else None

    @property
    def ack(self) -> str:
        return "replicated" if self.replicated else "durable"

    def fail(self, error: BaseException) -> None:
        """End the run: a checker has found a violation."""
        if self._error is None:
            self._error = error

    def run(self) -> None:
        random = self.random

        self.fleet.start(self.world)
        operator = Operator(
            self.world,
            random.choice((0.2, 0.5, 3.0)),
            (0.02, 0.1) if self.long else (0.05, 0.3),
            ack=self.ack,
            retention_ms=self.retention_ms,
            folds=self.folds,
        )
        opening = self.world.spawn(operator.create("t", random.randint(1, 4 if self.long else 2), random.randint(1, 2)), "open")
        self._until(opening.done, 60.0, "a new cluster answers")
        self.world.spawn(operator.run(), "operator")
        if random.random() < 0.25:
            self.world.spawn(Planner(self.world, self.fleet.count + random.randint(1, EXTRA_MAX)).run(), "planner")
        historian = None
        has_history = random.random() < HISTORY_RATE
        if (has_history or self.folds) and self._lane_random.random() < LANES_RATE:
            self.world.spawn(self.nemesis.hurt_lane(self._lane_random), "lane")
        if has_history:
            historian = self.world.spawn(Historian(self.world, self._upload, self.adopts).run(), "historian")
        if random.random() < 0.5:
            add_member(self.world)
        if self.payments is not None:
            self.world.spawn(self.payments.start(), "payments")
        self.world.spawn(self._faults(), "nemesis")
        self._until(lambda: self.nemesis.over, 200.0, "the faults come to an end")
        self.nemesis.heal()
        self.fleet.peace = True
        self._for(1.0)
        self.world.writing = False
        self._until(lambda: all(writer.idle for writer in self.world.writers), SETTLE_S, "writers are acked again", self._stuck)
        if self.payments is not None:
            self._until(lambda: self.payments.idle, SETTLE_S, "transactions end", self.payments.stuck)
        if historian is not None:
            self._until(historian.done, SETTLE_S, "gates are answered")
            self._until(self._no_gate_is_open, SETTLE_S, "gates end", checker="a gate is filled whole")
        self._until(lambda: self.fleet.at_rest, SETTLE_S, "only the least number runs", self._fleet_state, "capacity ends")
        if self.fleet.lane is not None:
            self._until(lambda: all(reader.has_all for reader in self.world.readers), SETTLE_S, "readers come to the end")
        self.world.reading = False
        if self.replicated:
            self._for(QUIET_S)  # all brokers are killed now, and only `ack=durable` survives that
        self._check_manifests()
        self._finish()

    async def _faults(self) -> None:
        if self.long:
            await self.nemesis.run(self.random.randint(2, 8), (0.3, 1.0, 3.0, 8.0))
        else:
            await self.nemesis.run(self.random.randint(1, 3), (0.2, 1.0, 3.0))

    def _finish(self) -> None:
        """End all brokers, some of them cleanly; a new broker starts and must have everything."""
        random = self.random
        self.fleet.closing = True
        last = self.fleet.alive()
        in_peace = not any(broker.ending for broker in last)
        told = [broker for broker in last if random.random() < 0.5]
        for lane in self.fleet.lanes_alive():
            lane.kill()
        for broker in last:
            if broker in told:
                broker.stop()
            else:
                broker.kill()
        self._until(lambda: not self.fleet.alive(), SETTLE_S, "brokers end when they are told to")
        # A broker that is killed here may leave the others without a leader, and they may take a living broker for a dead one. A
        # broker that could not go on before has its own reason to fail.
        for broker in told if told == last and in_peace else ():
            if broker.exit_error is not None:
                raise Violation("brokers end well", f"{broker.name} was told to end, as all were: {broker.exit_error!r}")
        fresh = self.fleet.begin(99)
        self._until(lambda: fresh.serving or not fresh.alive, SETTLE_S, "a fresh broker starts")
        if not fresh.alive:
            raise Violation("the cluster goes on", f"a fresh broker does not start: {fresh.exit_error!r}")
        final: dict[Partition, tuple[int, dict[int, bytes]]] = {}
        reading = self.world.spawn(self._read(fresh, final), "final")
        self._until(reading.done, SETTLE_S, "a fresh broker can be read", lambda: repr(self._read_error))
        self.ledger.judge(final)
        if self.payments is not None:
            judging = self.world.spawn(self.payments.judge(), "judge")
            self._until(judging.done, SETTLE_S, "open transactions end", self.payments.stuck)
        _check_state(fresh)

    async def _read(self, fresh: Any, final: dict[Partition, tuple[int, dict[int, bytes]]]) -> None:
        engine = fresh.engine
        for topic in engine.topics():
            if is_internal(topic.name):
                continue  # the answers to group requests judge the internal topic
            for number in range(topic.partitions):
                read = await self._read_partition(engine, topic, number)
                if read is not None:
                    final[topic.id.bytes, number] = read

    async def _read_partition(self, engine: Any, topic: Any, number: int) -> tuple[int, dict[int, bytes]] | None:
        """(log start, records). None if the topic is deleted meanwhile: a client's deletion may take effect late."""
        while topic.id in engine.manifest.topics_by_id:
            try:
                log = engine.partition(topic, number)
                records = await self._read_log(engine, log)
            except RetryError as error:
                self._read_error = error
                await asyncio.sleep(0.1)
                continue
            if log.closed is None:
                return log.log_start, records
            # A segment was merged meanwhile, for the cluster has been quiet for a minute: its partitions are opened again.
            await asyncio.sleep(0.1)
        return None

    async def _read_log(self, engine: Any, log: Any) -> dict[int, bytes]:
        """The records by offset, until the log is closed."""
        records: dict[int, bytes] = {}
        offset = log.log_start
        while offset < log.high_watermark and log.closed is None:
            # (A deletion that a client asked for may take effect late.)
            offset = max(offset, log.log_start)
            try:
                slices = await engine.read(log, offset, EVERYTHING)
            except RetryError as error:
                self._read_error = error
                await asyncio.sleep(0.1)
                continue
            except (InvalidError, CorruptError) as error:
                if log.closed is not None or offset < log.log_start:
                    continue
                raise Violation("acked records are there", f"records cannot be read. offset=`{offset}` {error.message}") from error
            if not slices and self.ledger.windows:
                break  # the log ends with an unfilled window
            if not slices and offset >= log.log_start:
                raise Violation("acked records are there", f"nothing can be read. offset=`{offset}` {log}")
            for slice_ in slices:
                for _, at, value in records_of(bytes(slice_)):
                    if at >= offset:
                        if at != offset and not self.ledger.windows and log.topic.id.bytes not in self.ledger.thinned:
                            raise Violation("one record per offset", f"the final log has a gap. offset=`{offset}` next=`{at}`")
                        if value is not None:
                            records[at] = value
                        offset = at + 1
        return records

    def _check_manifests(self) -> None:
        for broker in (*self.fleet.alive(), *self.fleet.lanes_alive()):
            if broker.serving:
                _check_state(broker)

    def _upload(self, key: str, data: bytes) -> None:
        """Write an object as an external job does, without faults."""
        self.medium.objects.write(key, bytearray(data))
        self.trace("job", "uploads", key)

    def _no_gate_is_open(self) -> bool:
        serving = [broker for broker in self.fleet.alive() if broker.serving and broker.participant.leader is not None]
        manifests = [broker.engine.manifest for broker in serving]
        return bool(manifests) and all(
            gate.state != "open" for manifest in manifests for gates in manifest.gates.by_topic.values() for gate in gates.values()
        )

    def _fleet_state(self) -> str:
        return f"alive=`{', '.join(broker.name for broker in self.fleet.alive())}`"

    def _stuck(self) -> str:
        return "; ".join(
            f"{writer.key[0].hex()[:6]}-{writer.key[1]}: {writer.last_error}" for writer in self.world.writers if not writer.idle
        )

    # -- time

    def _until(self, done: Any, seconds: float, what: str, why: Any = None, checker: str = "the cluster goes on") -> None:
        """Let time pass until the condition is true. Raises Violation if that takes too long."""
        self.loop.run(self.loop.time() + seconds, lambda: self._error is not None or done())
        self._raise()
        if not done():
            raise Violation(checker, f"{what}: not within {seconds:g} s. {'' if why is None else why()}")

    def _for(self, seconds: float) -> None:
        self.loop.run(self.loop.time() + seconds, lambda: self._error is not None)
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            if isinstance(self._error, AssertionError):
                raise self._error
            raise AssertionError(f"a client failed: {self._error!r}") from self._error

    # -- the checkers' view of the store

    def _wrote(self, key: str, data: bytes) -> None:
        """An object was written: note the ended incarnations that the journal names."""
        if not key.startswith(keys.MANIFEST + "/edit/"):
            return
        try:
            self._wrote_edits(int(key.rpartition("/")[2]), decode_edits(data.partition(b"\n")[2]))
        except Exception as error:  # noqa: BLE001  # an error of the checkers ends the run, and is not the store's
            self.fail(error)

    def _wrote_edits(self, version: int, edits: list[Edit]) -> None:
        if version <= self._version:
            # A leader of long ago wrote under the name of an edit that was deleted after a snapshot: no part of the journal.
            return
        self._version = version
        for edit in edits:
            self.trace.note("journal", str(version), edit)
        over = [edit.incarnation_id for edit in edits if isinstance(edit, SealIncarnation)]
        for edit in edits:
            if isinstance(edit, OpenSegment):
                self.fleet.opened(edit)
            elif isinstance(edit, SetLogStart) and edit.by_age:
                self.ledger.remove_by_age(edit.topic_id.bytes, edit.offsets)
            elif isinstance(edit, FillGate):
                self.ledger.filled.add((edit.topic_id.bytes, edit.gate_id))
            elif isinstance(edit, SealSegment):
                self.fleet.sealed(edit)
        if self.nemesis.only_starves:
            self._check_replaced(edits)
        for incarnation_id in over:
            self.ledger.seal(incarnation_id, self.fleet.ends.get(incarnation_id, {}))

    def _check_replaced(self, edits: list[Edit]) -> None:
        replacements = self.nemesis.replacements
        for edit in edits:
            if isinstance(edit, SetLeader):
                replacements.leads(edit.incarnation_id)
            elif isinstance(edit, SealIncarnation):
                broker = self.fleet.incarnation(edit.incarnation_id)
                if broker is not None and broker.alive and not broker.ending:
                    try:
                        replacements.replaced(broker)
                    except Violation as violation:
                        self.fail(violation)

    def broker_acks(self, incarnation_id: str, topic_id: bytes, partition: int, base_offset: int, count: int) -> None:
        try:
            self.ledger.broker_acks(incarnation_id, (topic_id, partition), base_offset, count)
        except Violation as violation:
            self.fail(violation)
