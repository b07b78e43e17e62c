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
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headgate.broker.client.gate_admin import FileRef, Gate, GateState, Place
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.certificate import Certificate, PartitionCertificate, partitions_of
from headgate.pipelines.connection import Connection
from headgate.pipelines.definition import Backfill
from headgate.pipelines.flood_source import FloodSource
from headgate.pipelines.held_gates import HeldGate, HeldGates
from headgate.pipelines.jobs import Jobs
from headgate.pipelines.progress import Listener, Phase, Progress
from headgate.pipelines.reports import Reports
from headgate.pipelines.room import ROOM, ROOM_OFFSETS
from headgate.pipelines.session import LazySession
from headgate.pipelines.spark_errors import spark_errors
from headgate.pipelines.spark_rows import Counts, Job
from headgate.pipelines.topic_rules import TopicRules, check_rules, rules_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["Backfill", "FloodRun", "committed", "floods", "run"]

CALL_MS = 120_000


def run(backfill: Backfill, spark: SparkSession | LazySession, *, progress: Listener | None = None) -> Certificate:
    """Run a flood to its end.

    Args:
        spark: any session; `headgate.pipelines.session.session()` makes one with suitable settings. A `LazySession` starts only if
            the flood needs Spark.
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
    spark: SparkSession | LazySession | None, cluster: str, owner: str, say: Callable[[str], None], most_s: float = math.inf
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
        session = spark if spark is None or isinstance(spark, LazySession) else LazySession.of(spark)

        runs: list[FloodRun] = []

        def add(backfill: Backfill) -> FloodRun:
            backfill.check()
            runs.append(FloodRun(backfill, session, connection, gates, reports))
            return runs[-1]

        try:
            yield add
        finally:
            for run in runs:
                run.close()


class FloodRun:
    """One run of one flood, made by `floods`."""

    def __init__(
        self, backfill: Backfill, session: LazySession | None, connection: Connection, gates: HeldGates, reports: Reports
    ) -> None:
        self._backfill = backfill
        self._flood_id = backfill.id()
        self._ids = (self._flood_id, *(backfill.identity().former_ids() if backfill.flood_id is None else ()))
        """Ids under which the flood may be in the topic: its own, and, until its gate was looked for, those of earlier releases."""
        self._definition = backfill.definition()
        self._connection = connection
        self._gates = gates
        self._reports = reports
        self._listener: Listener | None = None
        name = f"headgate-{self._flood_id}-{uuid.uuid4().hex[:8]}"
        self.jobs = Jobs(session, name, f"flood {self._flood_id} to {backfill.topic}", gates.say)
        """This run's Spark jobs."""
        self._seconds: dict[str, float] = {}
        self._source = FloodSource(backfill, session, self.jobs, self._tell)
        self._counts: Counts | None = None
        """The number of the source's rows; None until they are counted, and when the flood was committed before."""
        self._rules = TopicRules()
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
        self.jobs.apart(self._count_rows)
        self.close()  # those of many floods would take the memory of many
        if self._counts is None or self._counts.total == 0:
            return False
        return self._open(self._counts).gate.owner == self._gates.owner

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
        counts = self._counts
        if counts is None:
            return self._verified(self._filled_before())
        if counts.total == 0:
            why = "the source has no rows" if self._backfill.late_behind is None else "the topic lacks no row of the source"
            self._tell(Progress(phase=Phase.DONE, message=f"{why}: nothing was added"))
            return self._certificate(partitions=tuple(map(PartitionCertificate.without_rows, range(len(counts.rows)))))
        return self._verified(self._commit(counts))

    def _count_rows(self) -> None:
        """Count the source's rows, unless the flood was committed before; create the topic if it is missing."""
        partitions, is_there = self._partitions()
        seen = self._gate() if is_there else None
        if seen is not None and seen.state is GateState.FILLED:
            return
        self._check_rules()
        with self._phase(Phase.COUNTING):
            counts = self._source.count(partitions, self._flood_id)
            way = self._source.work.way
            self._tell(Progress(phase=Phase.COUNTING, rows_done=counts.total, rows_total=counts.total, message=way))
        self._check_rules(counts.keyless)
        if not is_there:
            # The topic is created only now, so that an unreadable source leaves no empty topic.
            self._create(partitions)
        self._counts = counts

    def close(self) -> None:
        """End what does tasks without Spark."""
        self._source.close()

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
        backfill = self._backfill
        self.jobs.check_wanted()
        try:
            return self._gates.open(
                backfill.topic,
                self._flood_id,
                counts.rows,
                place=backfill.place,
                ttl_ms=backfill.ttl_ms,
                definition=self._definition,
                lost=self.jobs.cancel,  # this job's files can no longer be committed
            )
        except InvalidError as error:
            if error.reason is not Reason.GATE_CONFLICT:
                raise
            self._gate()
            raise RetryError(
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
        if self._counts is None:
            self._count_rows()
        counts = self._counts
        if counts is None or counts.total == 0:
            return
        if self._backfill.place == Place.END:
            layout = self._connection.call(self._connection.gates.layout(self._backfill.topic))
            self._written = self._files(layout.store_url, layout.prefix, {}, counts)
            return
        with self._phase(Phase.OPENING, counts.total):
            # A gate that was opened ahead is only found again, unless it was lost meanwhile.
            self._held = self._open(counts)
        gate = self._held.gate
        if gate.state is GateState.FILLED:
            return
        bases = {window.partition: window.base_offset for window in gate.windows}
        try:
            self._written = self._files(gate.store_url, gate.prefix, bases, counts)
        except HeadgateError:
            if self._held.lost is None:
                raise

    def _files(self, store_url: str, prefix: str, bases: dict[int, int], counts: Counts) -> list[Any]:
        """Write the files. Returns the output of each partition."""
        job = Job(store_url, prefix, f"{self._flood_id}-{uuid.uuid4().hex[:8]}", self._backfill.file_bytes, bases)
        with self._phase(Phase.SHUFFLING, counts.total):
            written = self._source.write(job, counts)
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
        files = [file for task in self._written for file in task.files]
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
        found = {task.partition: task.tally.rows for task in written}
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
        sources = None if written is None else {task.partition: task.tally for task in written}
        return self._certificate(
            added_rows=gate.rows if added else 0,
            already_filled=not added,
            files=gate.files,
            size_bytes=gate.size_bytes,
            digest=gate.digest,
            adopted_rows=sum(file.rows for file in files if file.adopted_bytes),
            keyless_rows=keyless,
            partitions=partitions_of(gate, files, sources),
        )

    def _certificate(self, **known: Any) -> Certificate:
        backfill = self._backfill
        return Certificate(
            cluster=backfill.cluster,
            topic=backfill.topic,
            flood_id=self._flood_id,
            engine=self._source.work.engine if self._counts is not None else "",
            engine_reason=self._source.work.why if self._counts is not None else "",
            snapshot=self._source.snapshot if self._counts is not None else "",
            gate_id=self._flood_id,
            place=str(backfill.place),
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
