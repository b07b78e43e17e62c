"""`headgate flood run FILE --partition ...`: a flood of a file, from its plan to the release of its brokers.

The steps are those of Dagster's asset (`headgate.pipelines.floods.steps`). This module shows them, and makes sure that the run
leaves nothing behind: brokers and gates are released at any end of the process but SIGKILL, after which they end by themselves.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.broker.cli import output
from headgate.broker.cli.flood import Ending, open_loggers, quiet, with_log
from headgate.broker.cli.flood_report import Report, ended, succeeded
from headgate.broker.cli.floods import read
from headgate.broker.cli.options import owner_name
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.cluster import ClusterCalls
from headgate.pipelines.fleets.settings import FleetSettings
from headgate.pipelines.floods import steps
from headgate.pipelines.floods.asked import keys_of, one_of
from headgate.pipelines.floods.ending import failed, interrupted, leave
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.run import Run
from headgate.pipelines.floods.spark import SparkCalls
from headgate.pipelines.follower import Follower
from headgate.pipelines.session import end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND = "headgate flood run"
CLEAR = "\r\x1b[K"
"""Takes a terminal's cursor to the begin of its line, and clears the line."""
MOVE_S = 0.5
"""Pause between two states of the progress on a terminal, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for. `certificates`: the directory that gets the certificate of each partition; None: none."""

    file: Path
    flood: str | None
    partitions: Sequence[str]
    cluster: str
    master: str
    conf: Mapping[str, str]
    certificates: Path | None


@dataclass(frozen=True)
class Cluster(ClusterCalls):
    """The cluster of a command."""

    address: str


@dataclass
class CommandSpark(SparkCalls):
    """Spark in the process of a command: signals wait while it starts."""

    master: str
    conf: dict[str, str]
    ending: Ending
    driver_memory: str = ""
    started: list[SparkSession] = field(default_factory=list)

    def session(self) -> SparkSession:
        open_loggers()
        with self.ending.held():
            found = super().session()
        self.started = [found]
        return found

    def end(self) -> None:
        """End Spark if it was started."""
        for part in self.started:
            end(part)


def run_file(asked: Asked, as_json: bool) -> int:
    """Run a flood of a file and report its end. Returns the exit code, one of `flood_report.CODES`."""
    flood: Flood | None = None
    try:
        flood, keys = _chosen(asked)
        fleet = FleetSettings.from_environment(os.environ)
        output.check_reachable(asked.cluster)
    except output.SomeFailedError as error:
        report = ended(flood, error.errors[0], "; ".join(output.error_line(message, COMMAND) for message in error.errors))
    except HeadgateError as error:
        report = ended(flood, error, output.error_line(error, COMMAND))
    else:
        report = _run(asked, flood, keys, fleet)
    return _show(report, as_json)


def _chosen(asked: Asked) -> tuple[Flood, list[str]]:
    """The flood and its partitions. Raises SomeFailedError for a file with mistakes; InvalidError for a name or a partition that it
    does not have."""
    flood = one_of(read(asked.file), asked.flood)
    if not asked.partitions:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "say which partitions are to be loaded: --partition KEY or FIRST..LAST (`headgate flood list` shows what is there). "
            f"flood=`{flood.name}`",
        )
    if (place := asked.certificates) is not None:
        with suppress(OSError):  # the next line says what is wrong
            place.mkdir(parents=True, exist_ok=True)
        if not (place.is_dir() and os.access(place, os.W_OK)):
            raise InvalidError(
                Reason.INVALID_REQUEST, f"expected a directory that can be written to. option=`--certificate` value=`{place}`"
            )
    return flood, keys_of(flood, asked.partitions, datetime.now(UTC))


class FailedRunError(Exception):
    """A run failed: `quiet` keeps Spark's log of a block that an error leaves."""

    def __init__(self, report: Report) -> None:
        self.report = report


def _run(asked: Asked, flood: Flood, keys: Sequence[str], fleet: FleetSettings) -> Report:
    with Ending() as ending:
        try:
            with quiet() as log, _follower(flood) as follow:
                run = _run_of(flood, Cluster(asked.cluster), keys, follow)
                spark = CommandSpark(asked.master, dict(asked.conf), ending)
                try:
                    return work(run, spark, fleet, follow, asked.certificates, log)
                finally:
                    spark.end()
        except FailedRunError as error:
            return error.report


def work(run: Run, spark: CommandSpark, fleet: FleetSettings, follow: Follower, certificates: Path | None, log: Path) -> Report:
    """Do the four steps. Returns the report of a run that ended or was interrupted. Raises FailedRunError for one that failed."""
    began_s, holds = time.monotonic(), False
    try:
        follow.at("planning")
        steps.judge(run, spark, follow)
        holds = True
        follow.at("reserving brokers")
        raised = steps.raise_brokers(run, lambda: fleet.fleet(run.cluster), follow)
        follow.at("comparing the source with the topic")
        outcome = steps.load(run, spark, follow)
        _keep(run, certificates)
        follow.at("giving brokers back")
        given = steps.give_back(run, lambda: fleet.fleet(run.cluster), follow)
    except KeyboardInterrupt as error:
        left = leave(run, held=holds)
        return ended(run.flood, error, interrupted(follow.doing, left), left.added)
    except HeadgateError as error:
        left = leave(run, held=holds)
        told = with_log(error, log)
        if told.reason in (Reason.NOT_AUTHENTICATED, Reason.NOT_AUTHORIZED):
            told = type(told)(told.reason, output.error_line(told, COMMAND))
        raise FailedRunError(ended(run.flood, error, failed(told, left), left.added)) from error
    except BaseException:
        leave(run, held=holds)
        raise
    return succeeded(run.flood, outcome, given.rows, 0 if raised is None else raised.reserved, time.monotonic() - began_s)


def _run_of(flood: Flood, cluster: Cluster, keys: Sequence[str], follow: Follower) -> Run:
    return Run(
        flood=flood,
        cluster=cluster,
        keys=keys,
        reservation_id=f"{flood.name}.{uuid.uuid4().hex[:12]}",
        owner=f"flood run {flood.name} by {owner_name()}",
        say=follow.say,
        warn=lambda text: follow.say(f"warning: {text}"),
        began=datetime.now(UTC),
        ttl_ms=flood.reservation_ttl_ms,
    )


def _keep(run: Run, directory: Path | None) -> None:
    """Write the certificates of the partitions that the run loaded, one file each."""
    if directory is not None:
        for key, certificate in run.certificates.items():
            (directory / f"{run.flood.name}-{key.replace(':', '.')}.json").write_text(certificate.to_json() + "\n")


@contextmanager
def _follower(flood: Flood) -> Iterator[Follower]:
    """Lines about the work on stderr. On a terminal the newest one about progress stands below the others, and is replaced."""

    def text_of(text: str) -> str:
        return output.escaped(f"{flood.name}: {' '.join(text.split())}")

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    if not sys.stderr.isatty():
        with Follower(lambda text: write(text_of(text) + "\n")) as follow:
            yield follow
        return

    def move(text: str) -> None:
        write(f"{CLEAR}{text_of(text)[: shutil.get_terminal_size().columns - 1]}")

    try:
        with Follower(lambda text: write(f"{CLEAR}{text_of(text)}\n"), MOVE_S, move) as follow:
            yield follow
    finally:
        write(CLEAR)  # also before the sentence of an error


def _show(report: Report, as_json: bool) -> int:
    for text in report.warnings:
        output.fail(f"warning: {text}", COMMAND)
    for text in report.problems:
        output.fail(text, COMMAND)
    if as_json:
        output.print_json(report.to_json())
    if report.code or as_json:
        output.fail(report.text, COMMAND)
    else:
        output.print_line(report.text)
    return report.code
