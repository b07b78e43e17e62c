"""The shares of a run of the suite on several workers: a file is one share, and all files with Spark's session are one.

A session costs a JVM, 15 seconds of a processor and 1 GB. With a share for each file, each worker would start one.
"""

from __future__ import annotations

import re
from functools import cache

from xdist.scheduler import LoadFileScheduling

from tests.support.broker_process import ROOT

SPARK = "spark"
_USES_SPARK = re.compile(r"^(?:async )?def \w+\([^)]*\bspark\b[^)]*\)", re.MULTILINE)
"""A test or a fixture that takes the fixture `spark`."""


LONG = (
    "e2e/test_turns.py",
    "compat/test_roundtrip.py",
    "compat/test_groups.py",
    "e2e/test_process.py",
    "e2e/test_kill.py",
    "e2e/test_cluster_load.py",
    "e2e/test_transactions.py",
    "e2e/test_cluster_chaos.py",
    "e2e/test_memory.py",
    "property/test_wire.py",
    "unit/test_package.py",
    "e2e/test_page.py",
    "e2e/test_memory_cap.py",
    "e2e/test_tables.py",
    "e2e/test_lanes.py",
    "e2e/test_hostile_load.py",
    "simulation/test_canaries.py",
)
"""The longest shares besides Spark's, which take from 40 s to minutes on two processors, in about this order."""


class Shares(LoadFileScheduling):
    """Gives each share to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid.partition("::")[0])


@cache
def share_of(file: str) -> str:
    """The share of a file. `file`: its path below the project's directory."""
    path = ROOT / file
    return SPARK if path.name != "conftest.py" and _USES_SPARK.search(path.read_text(encoding="utf-8")) else file


def place_of(file: str) -> tuple[int, int]:
    """The place of a file in the order of a run: Spark's files, the long ones, and at the end the many short ones of units."""
    if share_of(file) == SPARK:
        return 0, 0
    name = file.removeprefix("tests/")
    if name in LONG:
        return 1, LONG.index(name)
    return 2, int(name.startswith("unit/"))
