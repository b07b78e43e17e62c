"""A job without executors. Spark waits for them for ever and tells nobody: here the flood says so, and ends after a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.pipelines.session import has_jvm, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SETTING = "spark.headgate.executorWait"
"""Setting of a Spark session: longest time in which a job has no executor, such as ``30min``."""
WAIT = "10min"
"""Default of the setting: the time in which an autoscaler brings machines. The gate of a dead driver is open as long."""
LOOK_S = 1.0
SAY_S = 15.0
"""Time without an executor after which the flood says so, in seconds, and pause between two such messages."""
_ASKED = ("spark.executor.memory", "spark.executor.memoryOverhead", "spark.executor.cores", "spark.cores.max")


class Waiting:
    """Decides what a job says and does that has no executor. Pure.

    Args:
        master: of the session.
        conf: its settings.
        most_s: longest time without an executor, in seconds.
        now_s: the time at which the job begins, on a monotonic clock.
    """

    def __init__(self, master: str, conf: Mapping[str, str], most_s: float, now_s: float) -> None:
        self._most_s = most_s
        self._since_s = self._said_s = now_s
        asked = " ".join(f"{name.removeprefix('spark.')}=`{conf[name]}`" for name in _ASKED if name in conf)
        self._facts = f"master=`{master}` {asked or 'executor.memory=`1g`'}"
        self.is_over = False

    def look(self, executors: int, now_s: float) -> str | None:
        """Take the number of executors of this moment. Returns what is to be said."""
        if executors:
            self._since_s = self._said_s = now_s
            return None
        waited_s = now_s - self._since_s
        self.is_over = self.is_over or waited_s >= self._most_s
        if now_s - self._said_s < SAY_S:
            return None
        self._said_s = now_s
        return (
            f"no executor for {waited_s:.0f} s: the cluster is busy, or cannot start what the flood asks for. A worker's directory "
            f"work/ has the errors of executors that ended. {self._facts}"
        )

    def error(self) -> RetryError:
        """The error with which the job ends."""
        return RetryError(
            Reason.INTERNAL,
            f"the flood had no executor of Spark's for {self._most_s:.0f} s. Does a worker have as much memory and as many cores "
            "free as an executor asks for? The master's page lists workers and what waits, a worker's directory work/ has the "
            f"errors of executors that ended. {WAIT_SETTING} is the longest wait. {self._facts}",
        )


class Executors:
    """Watches from a thread of its own whether a session has an executor, while the caller waits for a job.

    Leaving the context raises RetryError when there was none for too long. Without effect on a local master and with Spark Connect.

    Args:
        say: receives what the user should know, from the thread.
        cancel: cancels the job, from the thread. Called until the context is left.

    Raises:
        InvalidError: the setting is no time.
    """

    def __init__(self, spark: SparkSession, say: Callable[[str], None], cancel: Callable[[], None]) -> None:
        self._say = say
        self._cancel = cancel
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        context: Any = spark.sparkContext if has_jvm(spark) else None
        if context is None or is_local(context.master):
            return
        self._java: Any = context._jsc.sc()
        conf = dict(context.getConf().getAll())
        self._waiting = Waiting(context.master, conf, self._most_s(conf), time.monotonic())
        self._thread = threading.Thread(target=self._run, name="headgate-executors", daemon=True)

    def _most_s(self, conf: Mapping[str, str]) -> float:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            return float(self._java.conf().getTimeAsSeconds(WAIT_SETTING, WAIT))
        except Py4JJavaError as error:
            raise InvalidError(
                Reason.INVALID_CONFIG,
                f"the longest wait for an executor is a time such as 30min. {WAIT_SETTING}=`{conf[WAIT_SETTING]}`",
            ) from error

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        if isinstance(error, Exception) and self._waiting.is_over:
            raise self._waiting.error() from error

    def _run(self) -> None:
        from py4j.protocol import Py4JError

        # The session may end at any moment; the caller that waits for the job receives that error.
        with suppress(Py4JError, ConnectionError):
            while not self._stop.wait(LOOK_S):
                # All block managers, of which the driver has one.
                said = self._waiting.look(int(self._java.getExecutorMemoryStatus().size()) - 1, time.monotonic())
                if said is not None:
                    self._say(said)
                if self._waiting.is_over:
                    self._cancel()
