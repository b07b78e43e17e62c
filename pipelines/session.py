"""A Spark session that is set up for Headgate: `session()`.

Any session will do for `pipelines.backfill` and the data source; this one finds a Java, uses this Python for the workers, stays on
the loopback interface where it runs on one machine, and turns on what makes the way between Java and Python fast.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from broker.runtime.errors import FatalError, Reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
TASK_TRIES = 3

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Dates without a zone, and what a record's timestamp means, must not depend on where the job runs.
    "spark.sql.session.timeZone": "UTC",
    # Filters reach the data source only with this.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A fifth faster than 10000 rows; no batch may grow beyond what a writer can hold.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # How soon the rows of a running task are seen by whoever shows progress.
    "spark.executor.heartbeatInterval": "4s",
}


def session(
    master: str = "local[*]",
    *,
    app_name: str = "headgate",
    driver_memory: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The Spark session of this process; a new one unless there is one already. Takes some seconds.

    Args:
        master: any Spark master: ``local[*]``, ``spark://host:7077``, ``yarn``, ``k8s://...``. On a local one a task that fails is
            tried three times unless the master says how often (``local[*, 1]``): Spark itself would give up at once.
        driver_memory: heap of the driver's JVM, as ``4g``; with a local master that is all there is. Default: Spark's, or with a
            local master a quarter of the machine's memory, between 1 and 4 GiB.
        conf: Spark settings that win over the defaults here.

    Raises:
        FatalError: pyspark is not installed, there is no Java, or Spark does not start with this master.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise FatalError(Reason.UNSUPPORTED, "pyspark is not installed: pip install 'headgate[pipelines]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    from pipelines.java import java_home

    home = java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    # Without it the workers run the first `python3` of PATH, which need not have what is installed here.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**DEFAULTS, **local_settings(master), **(conf or {})}
    if driver_memory is not None:
        settings["spark.driver.memory"] = driver_memory
    if settings.get("spark.driver.host") == LOOPBACK:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.master(patient(master)).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise FatalError(Reason.UNSUPPORTED, f"spark does not start: {_first_line(error)} master=`{master}`") from error
    except Exception as error:
        # py4j hands over whatever the JVM threw, in a class of its own.
        if type(error).__module__.split(".")[0] != "py4j":
            raise
        raise FatalError(Reason.UNSUPPORTED, f"spark does not start: {_first_line(error)} master=`{master}`") from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def while_ending() -> AbstractContextManager[None]:
    """For what ends a job or a session: that is over, too, where Spark's JVM has ended, or does so now."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    return suppress(Py4JError, ConnectionError)


def is_gone(error: Exception) -> bool:
    """Whether a call to Spark failed because its JVM has ended: the call under way gets no answer, later ones no connection."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        str(error)  # of what the JVM threw it is the JVM that knows the words
    except (Py4JError, ConnectionError):
        return True
    refused = isinstance(error, ConnectionRefusedError | ConnectionResetError)
    return refused or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError))


def activate(spark: SparkSession) -> None:
    """Make this the session of the calling thread: a thread has none of its own, and Spark looks for data sources in that one."""
    from pyspark.sql import SparkSession

    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is not None:
        sessions: Any = SparkSession
        sessions._get_j_spark_session_class(spark._jvm).setActiveSession(java_session)


def patient(master: str) -> str:
    """The same master; a local one tries tasks again."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found.group(1) or 1}, {TASK_TRIES}]" if found else master


def local_settings(master: str) -> dict[str, str]:
    """What depends on where the job runs: on this machine alone it needs no other interface than the loopback."""
    settings = {}
    if master.startswith("local"):
        settings["spark.driver.memory"] = f"{min(max(_memory_bytes() // 4, 1 << 30), 4 << 30) >> 20}m"
        # Hadoop reads S3 as s3a:// and leaves s3://, which everybody else says, to those who have a reader of their own.
        settings["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if master.startswith(("local", "spark://127.", "spark://localhost")):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = LOOPBACK
    return settings


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 4 << 30


def _first_line(error: Exception) -> str:
    lines = [line.strip(" :\t") for line in str(error).splitlines() if line.strip(" :\t")]
    # py4j says "An error occurred while calling ..." first, and then what was thrown.
    told = next((line for line in lines if "Exception" in line or "Error" in line), lines[0] if lines else type(error).__name__)
    return told[:300]
