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


class Shares(LoadFileScheduling):
    """Gives each share to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid.partition("::")[0])


@cache
def share_of(file: str) -> str:
    """The share of a file. `file`: its path below the project's directory."""
    path = ROOT / file
    return SPARK if path.name != "conftest.py" and _USES_SPARK.search(path.read_text(encoding="utf-8")) else file
