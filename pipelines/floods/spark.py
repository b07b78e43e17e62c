"""Spark for the floods of a process, as Dagster's resource and the command line use it. Nothing is imported or started before its
first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from headgate.pipelines.calls import apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.pipelines.certificate import Certificate
    from headgate.pipelines.columns.memory import Need
    from headgate.pipelines.floods.model import Flood
    from headgate.pipelines.floods.spans import TimeSpan
    from headgate.pipelines.follower import Follower
    from headgate.pipelines.progress import Progress
    from headgate.pipelines.session import LazySession

    Backfiller: TypeAlias = Callable[[TimeSpan], Certificate]


class SparkCalls:
    """Spark. The first flood of the process that needs it starts a session, which later floods reuse.

    Args:
        master: any Spark master.
        driver_memory: heap of the driver's JVM, such as ``4g``; empty: Spark's own.
        conf: more Spark settings.
    """

    master: str
    driver_memory: str
    conf: dict[str, str]

    def session(self) -> SparkSession:
        """The session of this process, started if there is none. Raises FatalError when Spark does not start."""
        started: SparkSession = apart(lambda: self._spark().start(self.master, self.driver_memory, self.conf))
        return started

    def cancel(self) -> None:
        """Cancel all jobs of the session, from any thread. Without effect when there is none."""
        self._spark().cancel_all()

    @staticmethod
    def _spark() -> Any:
        """The module of floods on Spark, imported when it is first needed."""
        from headgate.pipelines.floods import loading

        return loading

    def need(self, source_bytes: int) -> Need:
        """The memory that the tasks of a flood need.

        Args:
            source_bytes: of its rows.

        Raises InvalidError for a setting that cannot be.
        """
        found: Need = self._spark().need(self.master, self.driver_memory, self.conf, source_bytes)
        return found

    def _lazy(self, follow: Follower, links: Callable[[Mapping[str, str]], None]) -> LazySession:
        """The session of this process, started when a flood needs it."""
        from headgate.pipelines.session import LazySession, is_started

        def start() -> SparkSession:
            with nullcontext() if is_started() else follow.meanwhile("starting Spark"):
                started = self.session()
            page = getattr(started.sparkContext, "uiWebUrl", None) if hasattr(started, "_jsparkSession") else None
            links({"Spark's page (while it runs)": str(page)} if page else {})
            return started

        return LazySession(start, self.master, self.conf)

    def analyse(self, flood: Flood, span: TimeSpan) -> None:
        """Judge the expressions of a flood that only Spark can judge, on one partition's source. Raises InvalidError."""
        from headgate.pipelines.floods.analysis import analyse

        analyse(self.session(), flood, span)

    @contextmanager
    def flood(
        self,
        flood: Flood,
        spans: Sequence[TimeSpan],
        cluster: str,
        partitions: int,
        most_s: float,
        follow: Follower,
        links: Callable[[Mapping[str, str]], None],
        listen: Callable[[TimeSpan, Progress], None],
    ) -> Iterator[Backfiller]:
        """Provide Spark, if it is needed, for a flood's partitions and, for several partitions, open their gates ahead, in order.

        Yields a function that loads one partition and returns its certificate, to be called in the order of `spans`. A partition
        that is in the topic already adds nothing. Both raise HeadgateError for errors of the source, the topic, or Spark.

        Args:
            most_s: longest time that gates are renewed, in seconds.
            follow: is told what happens before the first partition is loaded.
            links: receives the addresses of pages about this work, by name.
            listen: receives the progress of each partition, also from other threads.
        """
        session = self._lazy(follow, links)
        if not session.is_usual:
            session.get()  # it is needed: one that does not start is told before gates open
        with self._spark().loader(session, flood, spans, cluster, partitions, most_s, follow, listen) as load:
            yield load
