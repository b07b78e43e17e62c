"""The tests of S3 on servers other than moto: MinIO, the RADOS gateway of Ceph, rclone's server (`tests/support/s3_foreign.py`).

Runs: pytest in a process, with HEADGATE_TEST_S3: the store's contract, plans of sources in a bucket, brokers that are killed while
the server is slow and fails, a cluster that is killed and cut off, gates, and a flood by Spark while the bucket throttles.
Compared: what those tests compare. A mismatch means that the store is right on moto only.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.broker_process import ROOT
from tests.support.s3_foreign import SERVERS

SOURCES = "tests/unit/pipelines/test_sources_s3.py"
FILES = (
    SOURCES,
    "tests/unit/store/test_contract.py",
    "tests/e2e/test_kill.py",
    "tests/e2e/test_cluster_chaos.py",
    "tests/e2e/test_gates_s3.py",
)
KILL_ROUNDS = 10
TIMEOUT_S = 3000


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("server", [pytest.param(name, marks=pytest.mark.s3_foreign(name)) for name in SERVERS])
def test_the_tests_of_s3(server: str) -> None:
    files = (SOURCES,) if server == "rclone" else FILES
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "s3", *files],
        cwd=ROOT,
        env={**os.environ, "HEADGATE_TEST_S3": server, "HEADGATE_KILL_ROUNDS": str(KILL_ROUNDS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
