"""The Spark session of `headgate.pipelines.session` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT

RUN = """
import json
import os

from headgate.pipelines.session import end, session

spark = session("local[2]")
context = spark.sparkContext
directory = context.getConf().get("spark.python.unix.domain.socket.dir")
found = {
    "sum": context.parallelize(range(10), 4).map(lambda one: one + 1).sum(),
    "directory": directory,
    "sockets": len(os.listdir(directory)) if directory else 0,
}
print(json.dumps(found))
end(spark)
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tmp", id="a short path"),
        pytest.param("t" * 60, id="a path too long for a socket", marks=pytest.mark.slow),
    ],
)
def test_java_and_python_talk_through_sockets_that_end_with_the_process(name: str) -> None:
    place = Path("/tmp", f"headgate-test-{os.getpid()}", name)
    place.mkdir(parents=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", RUN], cwd=ROOT, env={**os.environ, "TMPDIR": str(place)}, capture_output=True, text=True,
            timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["sum"] == 55
        if name == "tmp":
            assert Path(found["directory"]).parent == place and found["sockets"] > 0
        else:
            assert found["directory"] is None
        assert not list(place.glob("headgate-*")), "the directory of the sockets is removed"
    finally:
        for path in (*place.rglob("*"), place, place.parent):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
