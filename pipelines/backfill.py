"""A flood: history that Spark reads from any source enters a topic by reference, wholly or not at all. `run(Backfill(...),
spark)`.

The driver first counts the rows of each partition, which sizes the gate; from then on live records continue behind its window.
Then Spark's executors write each partition, sorted by event time, to Parquet files in the topic's own store, invisible to
readers, and the driver commits their list in one step. No record passes a broker.

The gate's id is the flood's id: the same flood again finds the gate filled, adds nothing, and says so. The gate keeps a digest
of the flood's definition, so another flood under the same id is refused without reading its source. Of two runs at once, one
fills the gate. A run that fails releases its gate; the gate of a dead run expires. A flood whose gate was released can be tried
again: its next gate has the same id, and the released one is listed as `<flood id>~1`, which cannot be a flood's id.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.broker.client import DEFAULT_CLUSTER
from headgate.broker.client.gate_admin import FileRef, Gate, GateState, Place
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.certificate import Certificate, PartitionCertificate, partitions_of
from headgate.pipelines.columns.stand_ins import has_no_rows
from headgate.pipelines.connection import Connection
from headgate.pipelines.held_gates import HeldGate, HeldGates
from headgate.pipelines.identity import Identity, identity, parts_of
from headgate.pipelines.jobs import Jobs
from headgate.pipelines.late import Loaded, missing
from headgate.pipelines.part import Part
from headgate.pipelines.plan import ARROW, Counts, EmptySourceError, Job, Rows, records, spark_errors
from headgate.pipelines.progress import Listener, Phase, Progress
from headgate.pipelines.reports import Reports
from headgate.pipelines.room import ROOM, ROOM_OFFSETS
from headgate.pipelines.rows import rows_of
from headgate.pipelines.topic_rules import TopicRules, check_rules, rules_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headgate.pipelines.work import Work

TTL_MS = 600_000
"""Time to live of a gate, in ms: the longest wait of readers after the driver died. The driver renews it three times in that
time."""
CALL_MS = 120_000
FILE_BYTES = 64 << 20
FILE_BYTES_MIN = 64 << 10
FILE_BYTES_MAX = 1 << 30

_FLOOD_ID = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The definition of a flood. Expressions are column names or Spark SQL.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        topic: topic of the records.
        source: a path for `format`, a SQL query with format ``query``, or a DataFrame.
        format, options: as of ``spark.read``: parquet, csv, json, orc, jdbc ...; for `iceberg` see `iceberg_table.py`.
        key: decides the partition as Kafka's Java client does. Rows without a key are spread by their content.
        value: default: the row as a JSON object, as Spark's ``to_json`` writes it: without null fields, times in milliseconds.
        event_time: a timestamp or date; the record's time and order in a partition. None: the run's time, the source's order.
        headers: a map, or an array of structs of a name and a value.
        order_by: order of rows with equal event times; their content decides last, so every run gives the same order.
        where, part: the rows that are loaded.
        flood_id: letters, digits, ``.``, ``_``, ``-``. Default: a digest of `topic`, `place` and everything from `source` to
            `part`; all spellings of one path are one, and passwords, tokens and keys do not count (`identity.py`).
        place: `Place.NOW`: behind existing records, before records from now on. `Place.FRONT`: before everything, within the
            topic's `history.room`. `Place.END`: behind everything, at the moment of the commit.
        partitions: number of partitions with which a missing topic is created.
        file_bytes: target size of a Parquet file.
        ttl_ms: time that the gate outlives a dead driver.
        late_behind: what of a partition is in the topic. The flood is refused unless its rows are exactly the missing ones.
        verify: read everything back as a client does and compare; the certificate then has both sides.
    """

    topic: str
    source: str | DataFrame
    cluster: str = DEFAULT_CLUSTER
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    value: str | None = None
    event_time: str | None = None
    headers: str | None = None
    order_by: tuple[str, ...] = ()
    where: str | None = None
    part: Part | None = None
    flood_id: str | None = None
    place: Place = Place.NOW
    partitions: int | None = None
    file_bytes: int = FILE_BYTES
    ttl_ms: int = TTL_MS
    late_behind: Loaded | None = None
    verify: bool = False

    def id(self) -> str:
        """The flood's id. Raises InvalidError for an illegal id, and for a DataFrame without one."""
        if self.flood_id is not None:
            if _FLOOD_ID.fullmatch(self.flood_id) is None:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"flood id is 1 to 80 letters, digits, `.`, `_` and `-`. flood_id=`{self.flood_id[:100]}`",
                )
            return self.flood_id
        if not isinstance(self.source, str):
            raise InvalidError(
                Reason.INVALID_REQUEST, "a flood from a DataFrame needs a flood_id: the same flood again must have the same"
            )
        return self.identity().id

    def check(self) -> None:
        """Raises InvalidError when a value cannot be."""
        if not FILE_BYTES_MIN <= self.file_bytes <= FILE_BYTES_MAX:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"files are of {FILE_BYTES_MIN} to {FILE_BYTES_MAX} bytes. file_bytes=`{self.file_bytes}`",
            )
        if self.place not in list(Place):
            raise InvalidError(Reason.INVALID_REQUEST, f"place is {', '.join(Place)}. place=`{self.place}`")
        if self.partitions is not None and self.partitions < 1:
            raise InvalidError(Reason.INVALID_PARTITIONS, f"a topic has at least one partition. partitions=`{self.partitions}`")

    def rows(self, spark: SparkSession, now_ms: int) -> Rows:
        """The source's rows as records. Raises InvalidError when the expressions do not fit the source.

        Args:
            now_ms: the records' time when the flood has no event time, in ms since 1970.
        """
        made = partial(
            records,
            key=self.key,
            value=self.value,
            event_time=self.event_time,
            headers=self.headers,
            order_by=self.order_by,
            where=self.where,
            part=self.part,
            now_ms=now_ms,
            options=self.options,
        )
        return rows_of(spark, self.source, self.format, self.options, made)

    def rows_if_any(self, spark: SparkSession) -> Rows | None:
        """The source's rows as records, with the present time if the flood has no event time; None for a path that is there without
        a file with content, of which Spark cannot tell the columns. Raises as `rows`."""
        try:
            return self.rows(spark, time.time_ns() // 1_000_000)
        except EmptySourceError:
            return None
        except InvalidError:
            if isinstance(self.source, str) and has_no_rows(spark, self.source, self.format, self.options):
                return None
            raise

    def identity(self) -> Identity:
        """The parts of the definition that decide the flood's records and their place."""
        return identity(
            self.topic, self.source, self.format, self.options, key=self.key, value=self.value, event_time=self.event_time,
            headers=self.headers, order_by=list(self.order_by),
            where=self.where if self.part is None else self.part.text(self.event_time, self.where), place=str(self.place),
        )  # fmt: skip

    def definition(self) -> str:
        """A digest of each part of the definition, which the gate keeps."""
        return self.identity().definition()

    def differs_from(self, gate: Gate) -> list[str]:
        """The names of the parts in which this flood differs from the flood that opened the gate."""
        return self.identity().differs_from(parts_of(gate.definition))

    def check_definition(self, gate: Gate) -> None:
        """Raises InvalidError(GATE_CONFLICT) when another flood opened the gate of this flood's id."""
        if not (differing := self.differs_from(gate)):
            return
        if not gate.definition:
            differing = ["not a flood's gate"]
        way_out = "choose another one (--flood-id)"
        if gate.state is GateState.OPEN:
            way_out += ", or wait for that flood's end, or release its gate"
        raise InvalidError(
            Reason.GATE_CONFLICT,
            f"the flood's id was used for another flood: {way_out}. "
            f"flood_id=`{gate.id}` topic=`{gate.topic}` state=`{gate.state}` differs=`{', '.join(differing)}`",
        )


def run(backfill: Backfill, spark: SparkSession, *, progress: Listener | None = None) -> Certificate:
    """Run a flood to its end.

    Args:
        spark: any session; `headgate.pipelines.session.session()` makes one with suitable settings.
        progress: receives each phase, and twice a second the progress of Spark's tasks, then from another thread.

    Raises:
        InvalidError: the flood cannot run as defined: no such topic, column or source; null event times; another flood under
            the same id. RetryError: the cluster, the store or Spark failed; the same flood may be run again.
    """
    phase = Phase.COUNTING

    def listen(seen: Progress) -> None:
        nonlocal phase
        phase = seen.phase
        if progress is not None:
            progress(seen)

    def say(text: str) -> None:
        listen(Progress(phase=phase, message=text))

    backfill.check()
    with floods(spark, backfill.cluster, f"headgate-{backfill.id()}-{uuid.uuid4().hex[:8]}", say) as add:
        return add(backfill).run(listen if progress is not None else None)


def committed(backfill: Backfill, *, progress: Listener | None = None) -> Certificate | None:
    """The certificate of a flood that is in its topic already, without Spark and without a look at the source. None when the flood
    is to be run. Arguments and errors are those of `run`."""
    backfill.check()
    with floods(None, backfill.cluster, f"headgate-{backfill.id()}", lambda text: None) as add:
        return add(backfill).committed(progress)


@contextmanager
def floods(
    spark: SparkSession | None, cluster: str, owner: str, say: Callable[[str], None], most_s: float = math.inf
) -> Iterator[Callable[[Backfill], FloodRun]]:
    """Run floods that belong together. Yields a function that makes the run of one of them.

    The open gates of all of them are renewed until the end of this context. An error releases those that are not filled.

    Args:
        spark: None: no flood is run, only `committed` is asked.
        owner: name of the runs in their gates.
        say: receives what goes wrong with gates, or delays Spark, and does not end the run, also from another thread.
        most_s: longest time of renewals, in seconds.
    """
    with (
        Connection(cluster, timeout_ms=CALL_MS) as connection,
        Reports(connection) as reports,
        HeldGates(connection, owner, say, most_s) as gates,
    ):

        def add(backfill: Backfill) -> FloodRun:
            backfill.check()
            return FloodRun(backfill, spark, connection, gates, reports)

        yield add


class FloodRun:
    """One run of one flood, made by `floods`."""

    def __init__(
        self, backfill: Backfill, spark: SparkSession | None, connection: Connection, gates: HeldGates, reports: Reports
    ) -> None:
        self._backfill = backfill
        self._flood_id = backfill.id()
        self._ids = (self._flood_id, *(backfill.identity().former_ids() if backfill.flood_id is None else ()))
        """Ids under which the flood may be in the topic: its own, and, until its gate was looked for, those of earlier releases."""
        self._definition = backfill.definition()
        self._spark: Any = spark
        self._connection = connection
        self._gates = gates
        self._reports = reports
        self._listener: Listener | None = None
        name = f"headgate-{self._flood_id}-{uuid.uuid4().hex[:8]}"
        self.jobs = Jobs(spark, name, f"flood {self._flood_id} to {backfill.topic}", gates.say)
        """This run's Spark jobs."""
        self._seconds: dict[str, float] = {}
        self._source: tuple[Work, Counts] | None = None
        """The work on the source's rows and their number; None until they are counted, and when the flood was committed before."""
        self._rules = TopicRules()
        self._snapshot = ""
        """The snapshot of an Iceberg table that the source is."""
        self._held: HeldGate | None = None
        """The gate of the files; None at the end of a topic, where the commit opens it."""
        self._written: list[Any] | None = None
        """The output of each partition; None until it is written."""

    def committed(self, progress: Listener | None = None) -> Certificate | None:
        """The certificate of a flood that was committed before, without Spark; None when there is work to do. Arguments and errors
        are those of the module's `run`."""
        self._listener = progress
        _, is_there = self._partitions()
        gate = self._gate() if is_there else None
        if gate is not None and gate.state is GateState.FILLED:
            return self._verified(self._filled_before())
        self._check_rules()
        return None

    def open_ahead(self) -> bool:
        """Count the source and open the gate, before `run` fills it. Returns False when no gate was opened: the flood was
        committed before, the source has no rows, or another run opened the gate. Raises as `run` does."""
        self.jobs.apart(self._count)
        if self._source is None or self._source[1].total == 0:
            return False
        return self._open(self._source[1]).gate.owner == self._gates.owner

    def write(self, progress: Listener | None = None) -> None:
        """Do everything that needs Spark: count the source, open the gate, write the files. `run` then only commits and verifies.
        Arguments and errors are those of the module's `run`."""
        self._listener = progress
        self.jobs.apart(self._write)

    def run(self, progress: Listener | None = None) -> Certificate:
        """Run the flood to its end, from where `open_ahead` or `write` left it. Arguments and errors are those of the module's
        `run`."""
        self._listener = progress
        with spark_errors("the flood failed."):
            if self._written is None and self._held is None:
                self.jobs.apart(self._write)
            return self._run()

    def _run(self) -> Certificate:
        if self._source is None:
            return self._verified(self._filled_before())
        counts = self._source[1]
        if counts.total == 0:
            why = "the source has no rows" if self._backfill.late_behind is None else "the topic lacks no row of the source"
            self._tell(Progress(phase=Phase.DONE, message=f"{why}: nothing was added"))
            return self._certificate(partitions=tuple(map(PartitionCertificate.without_rows, range(len(counts.rows)))))
        return self._verified(self._commit(counts))

    def _count(self) -> None:
        """Count the source's rows, unless the flood was committed before; create the topic if it is missing."""
        partitions, is_there = self._partitions()
        seen = self._gate() if is_there else None
        if seen is not None and seen.state is GateState.FILLED:
            return
        self._check_rules()
        with self._phase(Phase.COUNTING):
            with self.jobs.group():  # Spark reads whole files of JSON to know their columns
                work, counts = self._counted(partitions)
            self._tell(Progress(phase=Phase.COUNTING, rows_done=counts.total, rows_total=counts.total, message=work.way))
        self._check_rules(counts.keyless)
        if not is_there:
            # The topic is created only now, so that an unreadable source leaves no empty topic.
            self._create(partitions)
        self._source = work, counts

    def _counted(self, partitions: int) -> tuple[Work, Counts]:
        from headgate.pipelines.work import counted

        rows = self._backfill.rows_if_any(self._spark)
        self._snapshot = "" if rows is None else rows.snapshot
        work, counts = counted(self._spark, rows, partitions)
        if (behind := self._backfill.late_behind) is not None:
            whole = replace(self._backfill, part=behind.part).rows_if_any(self._spark)
            counts = missing(behind, 0 if whole is None else whole.frame.count(), counts, self._flood_id)
        return work, counts

    # -- the topic and its gate

    def _partitions(self) -> tuple[int, bool]:
        """The number of partitions that the topic has or will have, and whether the topic exists."""
        topic, wanted = self._backfill.topic, self._backfill.partitions
        try:
            described = self._connection.call(self._connection.admin.describe_topic(topic))
        except InvalidError as error:
            if error.reason is not Reason.UNKNOWN_TOPIC:
                raise
            if wanted is None:
                way_out = "the flood creates it if its number of partitions is given (--partitions N)"
                raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist: {way_out}. topic=`{topic}`") from error
            return wanted, False
        found, self._rules = len(described.partitions), rules_of(described.config)
        if wanted is not None and wanted != found:
            raise InvalidError(
                Reason.INVALID_PARTITIONS,
                f"topic has another number of partitions. topic=`{topic}` partitions=`{found}` wanted=`{wanted}`",
            )
        return found, True

    def _check_rules(self, keyless: int = 0) -> None:
        check_rules(self._backfill.topic, self._rules, self._backfill.key, self._backfill.event_time, keyless)

    def _create(self, partitions: int) -> None:
        self.jobs.check_wanted()
        try:
            self._connection.call(self._connection.admin.create_topic(self._backfill.topic, partitions, {ROOM: str(ROOM_OFFSETS)}))
        except InvalidError as error:
            if error.reason is not Reason.TOPIC_EXISTS:
                raise
            # Another client created the topic meanwhile, perhaps with another number of partitions.
            self._partitions()

    def _gate(self) -> Gate | None:
        """This flood's gate; None without one, and for a released one."""
        for name in self._ids:
            try:
                gate = self._connection.call(self._connection.gates.describe(self._backfill.topic, name))
            except InvalidError as error:
                if error.reason is not Reason.UNKNOWN_GATE:
                    raise
                continue
            if gate.state is not GateState.RELEASED:
                self._backfill.check_definition(gate)
                self._flood_id, self._ids, self._definition = gate.id, (gate.id,), gate.definition
                return gate
        self._ids = (self._flood_id,)
        return None

    def _open(self, counts: Counts) -> HeldGate:
        one = self._backfill
        self.jobs.check_wanted()
        try:
            return self._gates.open(
                one.topic,
                self._flood_id,
                counts.rows,
                place=one.place,
                ttl_ms=one.ttl_ms,
                definition=self._definition,
                lost=self.jobs.cancel,  # this job's files can no longer be committed
            )
        except InvalidError as error:
            if error.reason is not Reason.GATE_CONFLICT:
                raise
            self._gate()
            raise InvalidError(
                Reason.GATE_CONFLICT,
                "another run of this flood, with other rows, holds its gate: wait for its end, release the gate, or choose another "
                "id. "
                f"gate=`{self._flood_id}` error=`{error.message}`",
            ) from error

    def _filled_before(self) -> Certificate:
        gate, files = self._connection.call(self._connection.gates.describe_files(self._backfill.topic, self._flood_id))
        said = f"the flood was committed before: {gate.rows:,} records, 0 added"
        self._tell(Progress(phase=Phase.DONE, rows_done=0, rows_total=gate.rows, message=said))
        return self._of_gate(gate, files, None, added=False)

    # -- the rows

    def _write(self) -> None:
        """Count, open the gate, and let Spark write the files, as far as this is not done. Readers cannot see the files yet."""
        if self._source is None:
            self._count()
        if self._source is None or self._source[1].total == 0:
            return
        work, counts = self._source
        if self._backfill.place == Place.END:
            layout = self._connection.call(self._connection.gates.layout(self._backfill.topic))
            self._written = self._files(layout.store_url, layout.prefix, {}, work, counts)
            return
        with self._phase(Phase.OPENING, counts.total):
            # A gate that was opened ahead is only found again, unless it was lost meanwhile.
            self._held = self._open(counts)
        gate = self._held.gate
        if gate.state is GateState.FILLED:
            return
        bases = {window.partition: window.base_offset for window in gate.windows}
        try:
            self._written = self._files(gate.store_url, gate.prefix, bases, work, counts)
        except HeadgateError:
            if self._held.lost is None:
                raise

    def _files(self, store_url: str, prefix: str, bases: dict[int, int], work: Work, counts: Counts) -> list[Any]:
        """Let Spark write the files. Returns the output of each partition."""
        from headgate.pipelines.watch import Watch

        name = f"{self._flood_id}-{uuid.uuid4().hex[:8]}"
        watch = Watch(self._spark, self.jobs.name, counts.total, self._tell, by_tasks=work.engine == ARROW)
        with self._phase(Phase.SHUFFLING, counts.total), self.jobs.group(), watch:
            written = work.write(Job(store_url, prefix, name, self._backfill.file_bytes, bases))
        self._check(written, counts)
        return written

    def _commit(self, counts: Counts) -> Certificate:
        """Commit the written files: fill the gate with them, or append them all in one step."""
        topic, gates = self._backfill.topic, self._connection.gates
        gate = None if self._held is None else self._held.gate
        if gate is not None and gate.state is GateState.FILLED:
            self._gates.drop(topic, gate.id)
            return self._filled_before()
        if self._written is None:
            assert self._held is not None and self._held.lost is not None, "rows without files, although the gate is there"
            return self._refused(counts, self._held.lost, gate)
        files = [file for one in self._written for file in one.files]
        with self._phase(Phase.COMMITTING, counts.total):
            definition, owner = self._definition, self._gates.owner
            try:
                filled = self._connection.call(
                    gates.publish(topic, files, gate_id=self._flood_id, definition=definition, owner=owner)
                    if gate is None
                    else gates.fill(topic, gate.id, files)
                )
            except InvalidError as error:
                return self._refused(counts, error, gate)
        self._gates.drop(topic, self._flood_id)
        added = counts.total
        self._tell(Progress(phase=Phase.DONE, rows_done=added, rows_total=added, message=f"{added:,} records were added"))
        return self._of_gate(filled, files, self._written, added=True, keyless=counts.keyless)

    def _check(self, written: Sequence[Any], counts: Counts) -> None:
        """Raise RetryError unless the written rows equal the counted rows, each partition written by one task."""
        found = {one.partition: one.tally.rows for one in written}
        assert len(found) == len(written), "two tasks wrote one partition"
        wanted = {partition: rows for partition, rows in enumerate(counts.rows) if rows}
        if found != wanted:
            differing = sorted(set(found.items()) ^ set(wanted.items()))[0][0]
            raise RetryError(
                Reason.INVALID_RECORD,
                "source gave other rows when it was read the second time: it must not change while the flood runs, and keys must "
                "be the same whenever they are computed, which now() and random numbers are not. "
                f"partition=`{differing}` first=`{wanted.get(differing, 0)}` second=`{found.get(differing, 0)}`",
            )

    # -- ends

    def _refused(self, counts: Counts, error: InvalidError, gate: Gate | None = None) -> Certificate:
        """Handle a refused commit, of `gate` or of a gate of its own. Returns the certificate when another run of this flood was
        first.

        Raises RetryError when the gate was lost meanwhile, else the error itself.
        """
        now = self._gate()
        if now is not None and now.state is GateState.FILLED and now.rows == counts.total:
            return self._filled_before()
        if gate is not None and (now is None or now.owner != gate.owner):
            raise RetryError(
                Reason.GATE_CONFLICT,
                f"the flood's gate was lost while the job ran: run the flood again. gate=`{gate.id}` error=`{error.message}`",
            ) from error
        raise error

    def _of_gate(
        self, gate: Gate, files: Sequence[FileRef], written: Sequence[Any] | None, *, added: bool, keyless: int = 0
    ) -> Certificate:
        sources = None if written is None else {one.partition: one.tally for one in written}
        return self._certificate(
            added_rows=gate.rows if added else 0,
            already_filled=not added,
            files=gate.files,
            size_bytes=gate.size_bytes,
            digest=gate.digest,
            keyless_rows=keyless,
            partitions=partitions_of(gate, files, sources),
        )

    def _certificate(self, **known: Any) -> Certificate:
        one = self._backfill
        return Certificate(
            cluster=one.cluster,
            topic=one.topic,
            flood_id=self._flood_id,
            engine=self._source[0].engine if self._source is not None else "",
            engine_reason=self._source[0].why if self._source is not None else "",
            snapshot=self._snapshot,
            gate_id=self._flood_id,
            place=str(one.place),
            seconds={name: round(seconds, 3) for name, seconds in self._seconds.items()},
            **known,
        )

    def _verified(self, certificate: Certificate) -> Certificate:
        if not self._backfill.verify:
            return certificate
        from headgate.pipelines.verify import verify

        began = time.monotonic()
        done = verify(self._backfill.cluster, self._backfill.topic, certificate=certificate, progress=self._listener)
        done.seconds[str(Phase.VERIFYING)] = round(time.monotonic() - began, 3)
        return done

    # -- progress

    @contextmanager
    def _phase(self, phase: Phase, rows_total: int = 0) -> Iterator[None]:
        self._tell(Progress(phase=phase, rows_total=rows_total))
        began = time.monotonic()
        try:
            yield
        finally:
            name = str(Phase.WRITING if phase is Phase.SHUFFLING else phase)
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began

    def _tell(self, progress: Progress) -> None:
        self._reports.tell(self._backfill.topic, self._flood_id, progress)
        if self._listener is not None:
            self._listener(progress)
