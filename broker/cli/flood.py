"""`headgate flood run|verify`: history into a topic by reference, and the proof of its completeness.

The work is done by `headgate.pipelines.backfill` and `headgate.pipelines.verify`. This module shows it: bars on a terminal,
otherwise one line per step, and at the end the certificate. Spark's own output, which is long, is shown only if the flood fails.
"""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from headgate.broker.cli import output
from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason, in_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.pipelines.backfill import Backfill
    from headgate.pipelines.certificate import Certificate, Tally
    from headgate.pipelines.progress import Progress

LINE_INTERVAL_S = 5.0
"""Pause between two lines about one phase, without a terminal."""


def run_flood(backfill: Backfill, master: str, conf: Mapping[str, str], certificate_path: Path | None, as_json: bool) -> int:
    """Run a flood and show its certificate. Returns the exit code: 0 only if all records are there."""
    from headgate.pipelines import backfill as flood
    from headgate.pipelines.session import LazySession, end, session, warm

    backfill.id()
    if certificate_path is not None:
        _check_writable(certificate_path)
    with Ending() as ending, quiet() as log, _shown(f"flood to {backfill.topic}") as listener:
        try:
            # A flood that is in its topic, and a topic that is not there, need no Spark.
            found = flood.committed(backfill, progress=lambda seen: listener(seen, ""))
            if found is None:

                def start() -> SparkSession:
                    listener(None, f"starting Spark ({master})")
                    open_loggers()
                    with ending.held():
                        spark = session(master, app_name=f"headgate flood {backfill.topic}", conf=conf)
                    warm(spark)
                    listener(None, "counting")
                    return spark

                lazy = LazySession(start, master, conf)
                try:
                    found = flood.run(backfill, lazy, progress=lambda seen: listener(seen, ""))
                finally:
                    if lazy.started is not None:
                        end(lazy.started)
            certificate = found
        except HeadgateError as error:
            raise with_log(error, log) from error
    kept = ""
    if certificate_path is not None and certificate.already_filled:
        alone, certificate = certificate, _with_earlier(certificate, certificate_path)
        if certificate != alone:
            kept = (
                ", with what the one before it proved"
                if alone.in_topic is None
                else ", with the source's side of the one before it"
            )
    return _show(certificate, certificate_path, as_json, kept)


def verify_flood(
    cluster: str, topic: str, flood_id: str | None, certificate_path: Path | None, write_path: Path | None, as_json: bool
) -> int:
    """Read a flood back from its topic and show the certificate. Returns the exit code: 0 only if all records are there."""
    from headgate.pipelines.certificate import Certificate
    from headgate.pipelines.verify import verify

    if write_path is not None:
        _check_writable(write_path)
    certificate = None
    if certificate_path is not None:
        try:
            certificate = Certificate.from_json(certificate_path.read_bytes())
        except OSError as error:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"certificate cannot be read: {in_words(error)}. path=`{certificate_path}`",
            ) from error
    with _shown(f"verify {topic}") as listener:
        done = verify(cluster, topic, certificate=certificate, flood_id=flood_id, progress=lambda seen: listener(seen, ""))
    return _show(done, write_path, as_json)


def _check_writable(path: Path) -> None:
    """Check before the work that the certificate can be written. Raises InvalidError."""
    directory = path.resolve().parent
    if not directory.is_dir() or not os.access(directory, os.W_OK) or path.is_dir():
        raise InvalidError(Reason.INVALID_REQUEST, f"certificate cannot be written there. path=`{path}`")


def _with_earlier(certificate: Certificate, path: Path) -> Certificate:
    """A certificate of records that existed already, with the facts about the same gate from the file that it replaces."""
    from headgate.pipelines.certificate import Certificate

    try:
        return certificate.with_proof_of(Certificate.from_json(path.read_bytes()))
    except (OSError, InvalidError):
        return certificate  # the file does not exist, or is no certificate


def _show(certificate: Certificate, path: Path | None, as_json: bool, kept: str = "") -> int:
    if path is not None:
        with tempfile.NamedTemporaryFile("w", dir=path.resolve().parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(certificate.to_json() + "\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    if as_json:
        output.print_json(certificate.to_dict())
    else:
        _print(certificate, path, kept)
    for problem in certificate.problems():
        output.fail(problem, "headgate flood")
    return 0 if certificate.complete else output.EXIT_FAILED


def _print(certificate: Certificate, path: Path | None, kept: str) -> None:
    facts: list[tuple[str, str]] = [("topic", certificate.topic)]
    if certificate.flood_id:
        facts.append(("flood", certificate.flood_id))
        facts.append(("records", f"{certificate.rows:,}"))
        if certificate.already_filled:
            facts.append(("added", "0: the flood was committed before"))
        elif certificate.source is not None:
            facts.append(("added", f"{certificate.added_rows:,}"))
    if certificate.keyless_rows:
        facts.append(("without a key", f"{certificate.keyless_rows:,}: spread over the partitions by their content"))
    if certificate.timestamp_min_ms is not None and certificate.timestamp_max_ms is not None:
        facts.append(("time span", f"{_time(certificate.timestamp_min_ms)} to {_time(certificate.timestamp_max_ms)}"))
    if certificate.files:
        facts.append(("files", f"{certificate.files:,} of {output.size(certificate.size_bytes)} in all"))
    for name, side in (("source", certificate.source), ("read from the topic", certificate.in_topic)):
        if side is not None:
            facts.append((name, _side(side)))
    if certificate.gap_rows is not None:
        facts.append(("missing, duplicate", f"{certificate.gap_rows:,}, {certificate.duplicate_rows or 0:,}"))
    if certificate.snapshot:
        facts.append(("table", certificate.snapshot))
    if certificate.adopted_rows:
        facts.append(("adopted", f"{certificate.adopted_rows:,} records lie in the source's own files"))
    if certificate.work:
        facts.append(("work", certificate.work))
    if certificate.seconds:
        facts.append(("time", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in certificate.seconds.items())))
    facts.append(("complete", _verdict(certificate)))
    if path is not None:
        facts.append(("certificate", f"{path}{kept}"))
    output.print_table(("what", "found"), facts)


def _verdict(certificate: Certificate) -> str:
    if not certificate.complete:
        return "NO"
    if certificate.verified:
        return "yes: the topic has what the source has"
    if certificate.in_topic is not None:
        return "yes: no record is missing, none is twice"
    return "yes, as committed; `headgate flood verify` reads it back"


def _side(side: Tally) -> str:
    """The records of one side."""
    if side.data_bytes is None or side.checksum is None:
        return f"{side.rows:,} records; their values were not read"
    return f"{side.rows:,} records, {output.size(side.data_bytes)}, checksum {side.checksum:016x}"


def _time(ms: int) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- progress


@contextmanager
def _shown(title: str) -> Iterator[Callable[[Progress | None, str], None]]:
    """Receives progress: draws bars on a terminal, otherwise prints lines to stderr."""
    if not sys.stderr.isatty():
        yield _Lines(title).tell
        return
    from rich import progress
    from rich.console import Console

    text = progress.TextColumn("{task.description:<22}")
    columns = (progress.SpinnerColumn(), text, progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(seen: Progress | None, text: str) -> None:
            name = str(seen.phase) if seen is not None else text
            if name not in tasks:
                for done in tasks.values():
                    # One phase ends when the next one begins.
                    task = next(task for task in bars.tasks if task.id == done)
                    bars.update(done, completed=task.total if task.total is not None else 1, total=task.total or 1)
                tasks[name] = bars.add_task(name, total=None)
            if seen is not None and seen.rows_total:
                bars.update(tasks[name], completed=seen.rows_done, total=seen.rows_total)
            if seen is not None and seen.message:
                bars.console.print(seen.message)

        yield tell


class _Lines:
    """Progress as lines on stderr: at the begin of a phase, and every few seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last_name = ""
        self._last_s = 0.0

    def tell(self, seen: Progress | None, text: str) -> None:
        name = str(seen.phase) if seen is not None else text
        now = time.monotonic()
        if name == self._last_name and now - self._last_s < LINE_INTERVAL_S and not (seen and seen.message):
            return
        self._last_name, self._last_s = name, now
        line = name
        if seen is not None and seen.message:
            line = seen.message
        elif seen is not None and seen.rows_total:
            line = f"{name}: {seen.rows_done:,} of {seen.rows_total:,} records"
        sys.stderr.write(f"{self._title}: {line}\n")
        sys.stderr.flush()


# -- the process


class Ending:
    """Makes Ctrl-C, SIGTERM and the end of the terminal equal for the flood: its gate is released. A context manager.

    An ignored signal (nohup) stays ignored.
    """

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        self._waiting: list[int] | None = None
        """The signals that came while they were held; None while they are not."""
        for number, before in self._before.items():
            signal.signal(number, before if before is signal.SIG_IGN else self._came)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """During the start of Spark, in any thread, the first signal waits; the second one acts at once. Reason: a JVM that is
        interrupted during its start would stay for ever."""
        came = self._waiting = []
        try:
            yield
        finally:
            self._waiting = None
            if came:
                os.kill(os.getpid(), came[0])

    def _came(self, number: int, frame: FrameType | None) -> None:
        waiting = self._waiting
        if waiting is None or waiting:
            raise KeyboardInterrupt
        waiting.append(number)


@contextmanager
def quiet() -> Iterator[Path]:
    """Redirect Spark's output, of the JVM and of Python's logs, to a file; our own output still goes to stderr. The file is
    removed unless an error occurs.

    py4j stays silent afterwards too. When an object of Python's that stands for one of Java's is collected, py4j calls the JVM,
    and logs a traceback if the JVM is ending: SIGTERM from a service manager reaches both processes at once.
    """
    handle, name = tempfile.mkstemp(prefix="headgate-spark-", suffix=".log")
    sys.stderr.flush()
    own = os.dup(2)
    before = sys.stderr
    os.dup2(handle, 2)
    os.close(handle)
    sys.stderr = os.fdopen(own, "w", buffering=1)
    logs = logging.FileHandler(name)
    logging.getLogger().addHandler(logs)
    failed = True
    try:
        yield Path(name)
        failed = False
    except KeyboardInterrupt:
        failed = False
        raise
    finally:
        logging.getLogger().removeHandler(logs)
        logging.getLogger().addFilter(_is_not_py4j)
        logs.close()
        sys.stderr.flush()
        os.dup2(own, 2)
        sys.stderr.close()
        sys.stderr = before
        if not failed or os.path.getsize(name) == 0:
            os.unlink(name)


def open_loggers() -> None:
    """Make PySpark's loggers of failed queries. They keep the stream that is `sys.stderr` at that moment, and print JSON with a
    stack trace for each error that we report in a line."""
    from pyspark.logger import PySparkLogger

    with redirect_stderr(sys.__stderr__):  # whose descriptor leads to Spark's log
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """A filter of the root logger: py4j's gateway has no logger of its own."""
    return record.module != "java_gateway"


def with_log(error: HeadgateError, log: Path) -> HeadgateError:
    """The error, with the path of Spark's log if Spark failed and said something there: `quiet` removes an empty log."""
    if (isinstance(error, FatalError) or "spark=`" in error.message) and log.stat().st_size:
        return type(error)(error.reason, f"{error.message} log=`{log}`")
    return error
