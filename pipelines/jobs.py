"""The Spark jobs of one flood: in a thread of their own, and in a group that can be watched and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.calls import apart
from headgate.pipelines.executors import Executors
from headgate.pipelines.murmur2 import has_jvm
from headgate.pipelines.plan import spark_errors
from headgate.pipelines.session import activate, while_ending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jobs:
    """The jobs of one run of a flood.

    Args:
        spark: None: no job is started.
        name: of their group in Spark.
        title: of them on Spark's page.
        say: receives what the user should know about Spark's cluster, also from another thread.
    """

    def __init__(self, spark: SparkSession | None, name: str, title: str, say: Callable[[str], None]) -> None:
        self.name = name
        self._spark: Any = spark
        self._title = title
        self._say = say
        self._is_given_up = False

    def apart(self, work: Callable[[], None]) -> None:
        """Let Spark work in a thread of its own: an interrupt of the caller ends the work within seconds. Raises HeadgateError."""

        def here() -> None:
            with spark_errors("the flood failed."):
                activate(self._spark)
                work()

        apart(here, self.give_up)

    def cancel(self) -> None:
        """Cancel the jobs under way, from any thread. Without effect on a session of Spark Connect."""
        if has_jvm(self._spark):
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
        if not has_jvm(self._spark):
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
