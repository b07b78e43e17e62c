"""Spark's errors as ours: which input is wrong, or whether a retry may help."""

from __future__ import annotations

import re

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.session import is_gone

_INVALID = f"{InvalidError.__module__}.{InvalidError.__name__}: "
"""Start of a Python worker's message when a task refused its rows."""
_FAILS_AGAIN = re.compile(
    r"SQLSTATE: (22|42|P0)\w{3}\b|\.CANNOT_READ_FILE_FOOTER\]|\.PARQUET_COLUMN_DATA_TYPE_MISMATCH\]|is not a Parquet file"
)
"""Spark's messages for errors that a retry does not cure. SQLSTATE classes of ISO 9075: 22, a value cannot be cast, parsed or
divided; 42, an unknown name; and P0, an expression raised an error. A file without a footer has another format, and a file whose
column is of another type than in the others keeps it."""
_LACKING = re.compile(
    r"No FileSystem for scheme|ClassNotFoundException: Class org\.apache\.hadoop\.fs\.|\[DATA_SOURCE_NOT_FOUND\]|_NOT_ENABLED\]"
    r"|java\.sql\.SQLException: No suitable driver"
)
"""Spark's messages when the class that reads the source is in a package that this Spark lacks."""
_WORKER = re.compile(
    r"(?:Cannot run program \"|No module named '(?:headgate|pyspark|pyarrow|numpy)\b|\[PYTHON_VERSION_MISMATCH\])[^\n]*"
)
"""Spark's messages when an executor has no Python that can do a flood's tasks."""
_STOPPED = re.compile(
    r"stopped SparkContext|SparkContext was shut down|SparkContext has been shutdown|Master removed our application"
    r"|Application has been killed"
)
"""Spark's messages when the cluster, and not the user, ended the session: after ten executors that did not start, among others."""
_NANOSECONDS = "[PARQUET_TYPE_ILLEGAL] Illegal Parquet type: INT64 (TIMESTAMP(NANOS"
NO_FILES = "[UNABLE_TO_INFER_SCHEMA]"
"""Spark's condition when a path has no files of the format."""
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception)\b.*$", re.MULTILINE)
"""The last line of a Python traceback: the exception of a user's own function."""


class spark_errors:
    """Translates Spark's errors to ours, on one line: the user's input is wrong, the rows are wrong, or the job failed.

    Args:
        what: the action that failed.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, HeadgateError) or not isinstance(error, Exception):
            return
        from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException, PySparkException

        if is_gone(error):
            why = "Spark's JVM ended. Was it killed for want of memory? How much it takes is set with spark.driver.memory."
            raise RetryError(Reason.INTERNAL, f"{self._what} {why} spark=`{type(error).__name__}`") from error
        if _STOPPED.search(str(error)):
            why = (
                "Spark's session ended: its executors could not start, or its master is gone. The worker's page, or its directory "
                "work/, has the executors' errors: mostly another Java or Python, a missing package, or too little memory."
            )
            raise RetryError(Reason.INTERNAL, f"{self._what} {why} spark=`{first_line(error)}`") from error
        if "java.lang.OutOfMemoryError" in str(error):
            way_out = "Spark needs more memory: --conf spark.driver.memory=8g, with executors elsewhere spark.executor.memory."
            raise RetryError(Reason.INTERNAL, f"{self._what} {way_out} spark=`{first_line(error)}`") from error
        if not isinstance(error, PySparkException) and type(error).__module__.split(".")[0] != "py4j":
            return
        line = first_line(error)
        if line.startswith(_INVALID):
            raise InvalidError(Reason.INVALID_RECORD, f"{self._what} {line.removeprefix(_INVALID)}") from error
        if (python := _WORKER.search(str(error))) is not None:
            way_out = (
                "An executor's Python cannot do the tasks: it needs Headgate with the extra pipelines, and the driver's Python "
                "version. spark.pyspark.python (--conf) is its path on the executors' machines; default: that of the driver's."
            )
            raise InvalidError(Reason.UNSUPPORTED, f"{self._what} {way_out} spark=`{python.group()[:300]}`") from error
        if _LACKING.search(str(error)):
            way_out = "Spark lacks a package for it: name it in spark.jars.packages, for S3 org.apache.hadoop:hadoop-aws:VERSION"
            raise InvalidError(Reason.UNSUPPORTED, f"{self._what} {way_out} spark=`{line}`") from error
        if _NANOSECONDS in str(error):
            way_out = (
                "Spark takes no times in nanoseconds: with spark.sql.legacy.parquet.nanosAsLong=true (--conf) it reads them as "
                "numbers, and timestamp_micros(COLUMN div 1000) makes times of these."
            )
            raise InvalidError(Reason.UNSUPPORTED, f"{self._what} {way_out} spark=`{line}`") from error
        if NO_FILES in str(error):
            raise InvalidError(Reason.INVALID_REQUEST, f"{self._what} There are no files of this format. spark=`{line}`") from error
        if isinstance(error, AnalysisException | ParseException | IllegalArgumentException) or _FAILS_AGAIN.search(str(error)):
            raise InvalidError(Reason.INVALID_REQUEST, f"{self._what} spark=`{line}`") from error
        raise RetryError(Reason.INTERNAL, f"{self._what} spark=`{line}`") from error


def first_line(error: Exception) -> str:
    """Spark's message in one line; the original includes a plan and a stack trace."""
    from pyspark.errors import PySparkException, PythonException

    text = str(error)
    lines = [line.strip(" :\t") for line in text.splitlines() if line.strip(" :\t")]
    # py4j first names the call, then the exception.
    lines = [line for line in lines if not line.startswith("An error occurred while calling")] or lines
    # The last exception that a Python worker named is the cause.
    named = [
        line for line in lines if line.startswith(("headgate.", "pyarrow.", "OSError", "FileNotFoundError", "PermissionError"))
    ]
    if named:
        return named[-1][:500]
    if isinstance(error, PythonException) and (raised := _RAISED.findall(text)):
        return str(raised[-1])[:500]
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    found = next((line for line in lines if not condition or condition in line), lines[0] if lines else type(error).__name__)
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if "[FAILED_READ_FILE.NO_HINT]" in found and causes:
        # The message names the file, and only the innermost cause names the error.
        found = f"{found} {causes[-1]}"
    return found[:500]
