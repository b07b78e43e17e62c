"""A JAVA_HOME with which Spark's JVMs start in half of the time: less compilation, and classes from an archive.

A JVM with one query costs 18 seconds of a processor; with this Java 8. Only Spark's JVMs get other options, and tests of a machine
without Java set JAVA_HOME themselves. `python -m tests.support.quick_java` makes the archive; without it, or with one of other
jars, a JVM loads its classes from the jars.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from tests.support.broker_process import ROOT

ARCHIVE = "HEADGATE_TESTS_ARCHIVE"
"""Environment variable: the archive's path, in all processes of the tests."""
_JAVA = """#!/bin/sh
case " $* " in
*-XX:ArchiveClassesAtExit* | *" org.apache.spark.launcher.Main "*) ;;
*" org.apache.spark.deploy.SparkSubmit "*)
  [ -f '{archive}' ] && set -- -XX:SharedArchiveFile='{archive}' -Xlog:cds=off -Xlog:cds+dynamic=off "$@" ;;
esac
case " $* " in
*" org.apache.spark."*) set -- -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "$@" ;;
esac
exec '{java}' "$@"
"""


def use() -> Path | None:
    """Let all processes of the tests start Spark with this Java. Returns the archive's path. None: there is no Java."""
    if ARCHIVE in os.environ:
        return Path(os.environ[ARCHIVE])
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None or "'" in f"{ROOT}{java}":
        return None
    java = str(Path(java).resolve())
    known = f"{java} {Path(java).stat().st_mtime_ns} {sys.prefix} {version('pyspark')}"
    place = ROOT / ".pytest_cache" / f"java-{sha256(known.encode()).hexdigest()[:12]}"
    archive, target = place / "spark.jsa", place / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "w") as file:
        file.write(_JAVA.format(archive=archive, java=java))
    os.chmod(name, 0o755)
    os.replace(name, target)  # another run of the tests does the same
    os.environ |= {"JAVA_HOME": str(place), ARCHIVE: str(archive)}
    return archive


def main() -> int:
    """Make the archive. Returns 0."""
    archive = use()
    if archive is not None and not archive.exists():
        for left in archive.parent.glob("tmp*"):  # by a run that ended meanwhile
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as place:
            # The JVM shares the output: reading it to its end waits for both.
            subprocess.run([sys.executable, "-m", "tests.support.quick_java", place], cwd=ROOT, capture_output=True, check=True)
            os.replace(f"{place}/spark.jsa", archive)
    return 0


def work(place: str) -> int:
    """A job like those of the tests, whose JVM writes its classes into the archive at its end. Returns 0."""
    from headgate.pipelines.session import end, session

    options = f"-XX:ArchiveClassesAtExit={place}/spark.jsa -Xlog:cds=off -Xlog:cds+dynamic=off"
    spark = session("local[1]", conf={"spark.driver.extraJavaOptions": options})
    rows = spark.range(100).selectExpr("cast(id % 7 as string) AS user", "timestamp_millis(id) AS at", "id * 1.5 AS amount")
    rows.write.parquet(f"{place}/rows")
    read = spark.read.parquet(f"{place}/rows").where("user > '1'")
    read.groupBy("user").count().orderBy("user").collect()
    read.repartitionByRange(2, "at").sortWithinPartitions("at").mapInArrow(lambda batches: batches, rows.schema).toArrow()
    end(spark)
    return 0


if __name__ == "__main__":
    sys.exit(work(sys.argv[1]) if sys.argv[1:] else main())
