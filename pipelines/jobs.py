"""The Spark jobs of one flood: in a thread of their own, and in a group that can be watched and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.calls import apart
from headgate.pipelines.executors import Executors
from headgate.pipelines.session import LazySession, activate, has_jvm, while_ending
from headgate.pipelines.spark_errors import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.pipelines.columns.processes import Processes


class Jobs:
    """The jobs of one run of a flood.

    Args:
        session: None: no job is started.
        name: of their group in Spark.
        title: of them on Spark's page.
        say: receives what the user should know about Spark's cluster, also from another thread.
    """

    def __init__(self, session: LazySession | None, name: str, title: str, say: Callable[[str], None]) -> None:
        self.name = name
        self._session = session
        self.processes: Processes | None = None
        """What does the tasks without Spark."""
        self._title = title
        self._say = say
        self._is_given_up = False

    def apart(self, work: Callable[[], None]) -> None:
        """Let Spark work in a thread of its own: an interrupt of the caller ends the work within seconds. Raises HeadgateError."""

        def here() -> None:
            with spark_errors("the flood failed."):
                if self._spark is not None:
                    activate(self._spark)
                work()

        apart(here, self.give_up)

    @property
    def _spark(self) -> Any:
        return None if self._session is None else self._session.started

    def spark(self) -> SparkSession:
        """The session, for the calling thread; started if no job needed it before. Raises FatalError when Spark does not start."""
        assert self._session is not None, "a run that only asks has no jobs"
        self.check_wanted()
        found = self._session.get()
        activate(found)
        return found

    def cancel(self) -> None:
        """Cancel the jobs under way, from any thread. Without effect on a session of Spark Connect."""
        if self.processes is not None:
            self.processes.cancel()
        if self._spark is not None and has_jvm(self._spark):
            with while_ending():
                self._spark.sparkContext.cancelJobGroup(self.name)

    def give_up(self) -> None:
        """Cancel the jobs under way, from any thread; what `check_wanted` guards does not begin any more."""
        self._is_given_up = True
        self.cancel()

    def check_wanted(self) -> None:
        """Raise RetryError when the run was given up: a thread that still works for it changes nothing in the cluster."""
        if self._is_given_up:
            raise RetryError(Reason.INTERNAL, f"the flood was cancelled. job=`{self.name}`")

    @contextmanager
    def group(self) -> Iterator[None]:
        """Put the Spark jobs inside into the group. Ctrl-C cancels them. Raises RetryError when they have no
        executor for too long."""
        if self._spark is None or not has_jvm(self._spark):
            yield
            return
        context = self._spark.sparkContext
        context.setJobGroup(self.name, self._title, interruptOnCancel=True)
        try:
            with Executors(self._spark, self._say, self.cancel):
                yield
        except (KeyboardInterrupt, SystemExit):
            self.cancel()
            raise
        finally:
            with while_ending():
                for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                    context.setLocalProperty(name, None)
