"""Floods on Spark: partitions of a flood as backfills, with their gates opened ahead, in order. Imported when a flood runs."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from headgate.pipelines.ahead import Ahead
from headgate.pipelines.backfill import floods
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.columns.memory import Machine, Need, need_of, size_of
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan
from headgate.pipelines.follower import Follower
from headgate.pipelines.progress import Progress
from headgate.pipelines.session import LazySession, cancel_all, heap_bytes, memory_bytes, warm
from headgate.pipelines.session import session as start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["cancel_all", "loader", "need", "start"]


def start(master: str, driver_memory: str, conf: Mapping[str, str]) -> SparkSession:
    """The session of this process. Raises FatalError when Spark does not start."""
    usual = {
        # Spark creates a directory for tables at its start, although a flood has none.
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "headgate-spark-warehouse"),
        # Spark's page, on any free port, for the time of the run.
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    spark = start_session(master, app_name="headgate-flood", driver_memory=driver_memory or None, conf={**usual, **conf})
    warm(spark)
    return spark


def need(master: str, driver_memory: str, conf: Mapping[str, str], source_bytes: int) -> Need:
    """The memory that the tasks of a flood need in a session with these settings. Raises InvalidError for a setting that cannot
    be."""
    heap = size_of(driver_memory or conf.get("spark.driver.memory", "")) or heap_bytes()
    return need_of(master, conf, Machine(os.cpu_count() or 1, memory_bytes(), heap), source_bytes)


@contextmanager
def loader(
    session: LazySession,
    flood: Flood,
    spans: Sequence[TimeSpan],
    cluster: str,
    partitions: int,
    most_s: float,
    follow: Follower,
    listen: Callable[[TimeSpan, Progress], None],
) -> Iterator[Callable[[TimeSpan], Certificate]]:
    """Open the gates of a flood's partitions ahead if there are several. Yields a function that loads one of them into the topic.
    The partitions are loaded in the order of `spans`: Spark writes one while the one before is committed and read back.

    All gates are renewed until the end of this context, for at most `most_s` seconds. An error releases those that this run
    opened and did not fill. A partition that is there already adds nothing. Raises HeadgateError.

    Args:
        follow: is told what happens before the first partition is loaded.
        listen: receives the progress of each partition, also from other threads.
    """
    jobs = {span: job_of(flood, span, cluster, partitions) for span in spans}
    with floods(session, cluster, f"headgate-{uuid.uuid4().hex}", follow.say, most_s) as add:
        runs = {span: add(job) for span, job in jobs.items()}

        def open_ahead(span: TimeSpan) -> bool:
            return runs[span].open_ahead()

        if len(spans) > 1:
            gates_ahead(flood, spans, open_ahead, follow)
        with Ahead([(run, partial(listen, span)) for span, run in runs.items()]) as ahead:

            def load(span: TimeSpan) -> Certificate:
                return ahead.run(spans.index(span))

            yield load


def gates_ahead(flood: Flood, spans: Sequence[TimeSpan], open_ahead: Callable[[TimeSpan], bool], follow: Follower) -> None:
    """Open the gates of several partitions before the first one is filled, so that no live record stands between two of them.

    Readers from the beginning wait at the first unfilled gate.

    Args:
        open_ahead: opens the gate of one partition. Returns False when it opened none.
    """
    opened = 0
    # In front of everything, each gate stands before the one that was opened last.
    for number, span in enumerate(reversed(spans) if flood.place == "front" else spans, 1):
        text = f"counting {span.key} ({number} of {len(spans)}), for its gate"
        follow.at("counting", lambda seconds, text=text: f"{text}: {seconds:.0f} s so far")  # type: ignore[misc]
        opened += open_ahead(span)
    if opened:
        follow.say(f"gates open: {opened}; readers from the beginning wait for them, nobody else does")
