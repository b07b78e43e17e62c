"""Short turns on the processor, for threads that others wait for.

A thread that wakes up gets the processor at once only where its turn would end before that of the thread that has it. Turns of one
length, 3 ms by default, make an event loop wait for whoever computes beside it. From 6.12 on Linux lets a thread have shorter ones
(sched_setattr(2), `sched_runtime` of SCHED_OTHER): no more of the processor, but sooner. Elsewhere nothing changes.
"""

from __future__ import annotations

import os
import struct
import sys

TURN_NS = 500_000
"""Half a millisecond: with a whole one nothing was gained, with a tenth no more than with this."""

_SYSTEM_CALLS = {"x86_64": 314, "aarch64": 274}
"""By machine: the number of sched_setattr."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period"""
_RESET_ON_FORK = 1
"""Threads and processes that this thread begins have turns of the usual length."""


def take_short_turns() -> bool:
    """Give the calling thread short turns. False where this system has none, or who started it chose how it is scheduled."""
    number = _SYSTEM_CALLS.get(os.uname().machine)
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    import ctypes

    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, TURN_NS, 0, 0)
    syscall = ctypes.CDLL(None).syscall
    return bool(syscall(ctypes.c_long(number), 0, attributes, 0) == 0)
