"""A Spark session with settings for Headgate: `session()`.

Any session works with `headgate.pipelines.backfill` and the data source. This one finds a Java, uses this Python for the
workers, stays on the loopback interface on a single machine, and enables fast transfer between Java and Python.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.children import keeping
from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.extras import install_command
from headgate.pipelines.launch import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
MEMORY_BYTES = 1 << 30
"""Freed memory that a Python worker keeps for its next task."""
TASK_TRIES = 3
TASKS = "headgate.pipelines.columns.writing"
"""The module that a flood's tasks import, with all that it needs."""
SOCKET_DIRECTORY_CHARS_MAX = 56
"""Systems allow 104 characters for the path of a socket at least, and PySpark's names of sockets have 42."""
PYTHON = "PYSPARK_PYTHON"
"""Environment variable from which PySpark takes the Python of the tasks, by its path on the executors' machines."""
WARM_WORKERS_MAX = 8
"""Python workers that start before there is work. A flood with more tasks at a time starts the others."""

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Dates without a zone, and the meaning of a record's timestamp, must not depend on the machine of the job.
    "spark.sql.session.timeZone": "UTC",
    # Times in nanoseconds, which pandas writes, are numbers then; Spark itself refuses the whole file.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # Spark passes filters to the data source only with this setting.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A fifth faster than 10,000 rows; no batch may grow beyond the writer's memory.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    **{f"spark.executorEnv.{name}": value for name, value in keeping(MEMORY_BYTES).items()},
    # Interval after which the progress display sees the rows of a running task.
    "spark.executor.heartbeatInterval": "4s",
}


JAVA_OPTIONS = (
    # Java's second compiler takes as long as a flood on columns, for code that runs a few thousand times. Code that works on rows
    # still reaches it within a second.
    "-XX:Tier4InvocationThreshold=40000",
    "-XX:Tier4MinInvocationThreshold=5000",
    "-XX:Tier4CompileThreshold=100000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Options of the JVM that has the tasks of a local master: eight times Java's own thresholds, ten times for loops."""


def session(
    master: str = "local[*]",
    *,
    app_name: str = "headgate",
    driver_memory: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The Spark session of this process; creates one if none exists. Takes some seconds.

    Args:
        master: any Spark master: ``local[*]``, ``spark://host:7077``, ``yarn``, ``k8s://...``. A local master retries a failed
            task twice, unless the master states the number (``local[*, 1]``); Spark itself would not retry.
        driver_memory: heap of the driver's JVM, such as ``4g``; a local master has no other heap. Default: Spark's, or with a
            local master a quarter of the machine's memory, between 1 and 4 GiB.
        conf: Spark settings that override the defaults here.

    Raises:
        FatalError: pyspark is not installed, there is no Java, or Spark does not start with this master.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        command = install_command("pipelines", Path(sys.prefix))
        raise FatalError(Reason.UNSUPPORTED, f"pyspark is not installed: {command}") from None
    active = SparkSession.getActiveSession() or _of_process()
    if active is not None:
        return active
    from headgate.pipelines.java import java_home

    home = java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    settings = {**DEFAULTS, **local_settings(master), **(conf or {})}
    os.environ[PYTHON] = worker_python(settings, os.environ)
    if is_local(master):
        settings = {**_sockets(), **settings}
    if driver_memory is not None:
        settings["spark.driver.memory"] = driver_memory
    if settings.get("spark.driver.host") == LOOPBACK:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.master(patient(master)).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with launch() as ended:
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            # py4j passes on the JVM's exception in a class of its own.
            if not isinstance(error, PySparkException | OSError) and type(error).__module__.split(".")[0] != "py4j":
                raise
            message = f"spark does not start: {_first_line(error)}{ended()} master=`{master}`"
            raise FatalError(Reason.UNSUPPORTED, message) from error
    spark.sparkContext.setLogLevel("ERROR")
    _end_quietly(spark)
    return spark


class LazySession:
    """The session of some floods, which starts when one of them needs Spark.

    Args:
        start: makes the session. It is called at most once, from the thread of a flood's work.
        master, conf: what `start` makes it with.
    """

    def __init__(self, start: Callable[[], SparkSession], master: str, conf: Mapping[str, str]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self.started: SparkSession | None = None
        self.why = ""
        """Why a flood needs Spark, in a user's terms, if that is known: it may be a mistake in the source."""
        self.master = master
        self.conf = conf
        self.is_usual = is_local(master) and all(name.startswith(_HARMLESS) for name in conf) and not _has_defaults(os.environ)
        """True if tasks would run on this machine, and no setting changes what Spark reads: plain floods do without it."""

    @classmethod
    def of(cls, spark: SparkSession) -> LazySession:
        """A session that has started: all floods use it."""
        made = cls(lambda: spark, "", {})
        made.started = spark
        return made

    def get(self) -> SparkSession:
        """The session, started if that was not needed before. Raises as `session`, with the reason for the start."""
        with self._lock:
            if self.started is None:
                try:
                    self.started = self._start()
                except FatalError as error:
                    if not self.why:
                        raise
                    raise FatalError(error.reason, f"the flood needs Spark ({self.why}), and {error.message}") from error
        return self.started


_HARMLESS = ("spark.app.", "spark.driver.", "spark.eventLog.", "spark.executor.", "spark.headgate.", "spark.local.dir", "spark.ui.",
             "spark.sql.warehouse.dir", "spark.jars", "spark.log")  # fmt: skip
"""Settings that do not change what Spark reads and prints, by their beginnings."""


def _has_defaults(environment: Mapping[str, str]) -> bool:
    """True if the machine has settings for all sessions of Spark."""
    places = [environment.get("SPARK_CONF_DIR", ""), os.path.join(environment.get("SPARK_HOME", ""), "conf")]
    return "PYSPARK_SUBMIT_ARGS" in environment or any(
        os.path.exists(os.path.join(place, "spark-defaults.conf")) for place in places if os.path.isabs(place)
    )


def _of_process() -> SparkSession | None:
    """The session that another thread of this process started, and that still runs. It becomes the session of this thread."""
    sql: Any = sys.modules.get("pyspark.sql")
    found: Any = getattr(sql.SparkSession, "_instantiatedSession", None) if sql is not None else None
    if found is None or getattr(found, "_sc", None) is None or found._sc._jsc is None:
        return None
    activate(found)
    return found  # type: ignore[no-any-return]


def is_started() -> bool:
    """True if this process has a session, which `session` then returns."""
    return _of_process() is not None


def cancel_all() -> None:
    """Cancel all jobs of this process's session, from any thread. Without effect before it has one, and with Spark Connect."""
    found: Any = _of_process()
    if found is not None:
        with while_ending():
            found.sparkContext.cancelAllJobs()


def _end_quietly(spark: SparkSession) -> None:
    """Keep PySpark's server of accumulators from printing a traceback when the JVM ends first: the call that waits for the JVM
    reports that."""
    server: Any = spark.sparkContext._accumulatorServer
    usual = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            usual(request, address)

    server.handle_error = handle_error


def warm(spark: SparkSession) -> None:
    """Start the Python workers of a local session, with the modules that a flood's tasks import, in the background: the driver's
    first look at a source takes as long, and uses one core. Without effect on one core, and on other masters."""
    context: Any = getattr(spark, "_sc", None)
    if context is None or not is_local(context.master) or context.defaultParallelism == 1:
        return
    workers = min(context.defaultParallelism, WARM_WORKERS_MAX)

    def start() -> None:
        # A worker that does not start fails the flood's own job, with a message.
        with suppress(Exception):
            context.parallelize([TASKS] * workers, workers).foreach(import_module)

    threading.Thread(target=start, name="headgate-warm", daemon=True).start()


def end(spark: SparkSession) -> None:
    """Stop the session of a process that ends next. `spark.stop()` also waits, for up to a second, for a server of PySpark's that
    looks once a second whether it is to end."""
    java_context: Any = getattr(getattr(spark, "_sc", None), "_jsc", None)
    with while_ending():
        if java_context is not None:
            java_context.stop()


def while_ending() -> AbstractContextManager[None]:
    """For code that ends a job or a session: the code also counts as done when Spark's JVM has ended, or ends now."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    return suppress(Py4JError, ConnectionError)


def is_gone(error: Exception) -> bool:
    """True when a call to Spark failed because its JVM has ended: the current call gets no answer, later calls no connection."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        str(error)  # only the JVM knows the message of its exception
    except (Py4JError, ConnectionError):
        return True
    refused = isinstance(error, ConnectionRefusedError | ConnectionResetError)
    return refused or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError))


def has_jvm(spark: SparkSession) -> bool:
    """True when this process can call the driver's JVM; False with Spark Connect."""
    return getattr(spark, "_jsparkSession", None) is not None


def activate(spark: SparkSession) -> None:
    """Make this the session of the calling thread: Spark looks for data sources in that session, and a new thread has none."""
    from pyspark.sql import SparkSession

    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is not None:
        sessions: Any = SparkSession
        sessions._get_j_spark_session_class(spark._jvm).setActiveSession(java_session)


def worker_python(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The Python of the tasks. PySpark reads its own setting only when spark-submit starts it, and runs the first `python3` of PATH
    by default, which may lack the installed packages."""
    return settings.get("spark.pyspark.python") or environment.get(PYTHON) or sys.executable


def is_local(master: str) -> bool:
    """True when all tasks of this Spark master run in the driver's JVM. The executors of ``local-cluster[...]`` have JVMs of their
    own."""
    return master == "local" or master.startswith("local[")


def patient(master: str) -> str:
    """The same master; a local one with retries of tasks."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found.group(1) or 1}, {TASK_TRIES}]" if found else master


def local_settings(master: str) -> dict[str, str]:
    """Settings that depend on the master: a job on this machine alone needs no interface other than the loopback."""
    settings = {}
    if is_local(master):
        settings["spark.driver.memory"] = f"{heap_bytes() >> 20}m"
        # Spark puts these in front of the options of a user.
        settings["spark.driver.defaultJavaOptions"] = " ".join(JAVA_OPTIONS)
        # Hadoop reads S3 as s3a:// and reserves s3://, the usual scheme, for readers of vendors.
        settings["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if is_local(master) or master.startswith(("local-cluster[", "spark://127.", "spark://localhost")):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = LOOPBACK
    return settings


def _sockets() -> dict[str, str]:
    """Settings for Unix sockets between Java and Python, instead of TCP: a task begins in 35 ms instead of 70.

    Their directory is removed at the end of the process, because PySpark leaves its socket behind. On a cluster the path of a
    worker's directory may be too long for a socket.
    """
    if not hasattr(socket, "AF_UNIX"):
        return {}
    directory = tempfile.mkdtemp(prefix="headgate-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if len(directory) > SOCKET_DIRECTORY_CHARS_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": directory}


def heap_bytes() -> int:
    """The heap of a local master that is not told its size."""
    return min(max(memory_bytes() // 4, 1 << 30), 4 << 30)


def memory_bytes() -> int:
    """The memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 4 << 30


def _first_line(error: Exception) -> str:
    lines = [line.strip(" :\t") for line in str(error).splitlines() if line.strip(" :\t")]
    # py4j first prints "An error occurred while calling ...", then the exception.
    told = next((line for line in lines if "Exception" in line or "Error" in line), lines[0] if lines else type(error).__name__)
    return told[:300]
