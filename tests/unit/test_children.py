"""Processes of this package (`runtime/children.py`)."""

from __future__ import annotations

import gc
import os
import weakref
from unittest.mock import patch

from headgate.broker.runtime import children
from tests.support.waiting import until

PATIENCE_S = 100.0
IDLE = "headgate.broker.engine.read.encoding"


def test_a_killed_process_that_ends_late_leaves_nothing() -> None:
    """A process that gives way to all others ends when it gets the processor, perhaps long after it was killed."""
    process, ours = children.start(IDLE, "nice")
    pid = process.pid
    with patch.object(process, "poll", return_value=None):
        assert children.kill(process, patience_s=0) == "it was killed, and has not ended yet"
    kept = weakref.ref(process)
    ours.close()
    del process

    def gone() -> bool:
        children.collect()
        gc.collect()  # an object that goes before its process warns, and warnings are failures
        return kept() is None and not exists(pid)

    until(gone, "no zombie is left")


def exists(pid: int) -> bool:
    """Also true of a process that ended and for which nobody waited."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
