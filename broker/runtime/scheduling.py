"""Who gets the processor first: short time slices for threads that others wait for, and none beside others for work that waits.

A thread that wakes up gets the processor at once only if its slice would end before the slice of the running thread. With equal
slices, 3 ms by default, an event loop waits for every process that computes on its core. From 6.12 on, Linux lets a thread have
shorter slices (sched_setattr(2), `sched_runtime` of SCHED_OTHER): the thread gets no more processor time, but gets it sooner. On
other systems nothing changes.

A process of the policy SCHED_IDLE gives its core up at once when any other thread wakes up on it; a nice one first ends its slice.
But beside processes that compute without a pause it gets next to nothing, and an ordinary user cannot take that policy back. So
whoever waits for such a process asks whether it starves (`Turns`).
"""

from __future__ import annotations

import os
import struct
import sys

TURN_NS = 500_000
"""Half a millisecond: a slice of one millisecond gained nothing, and a slice of a tenth gained no more than this."""

STARVING_SHARE = 0.05
"""Share of a processor below which a process starves: nice value 10 gives a tenth beside one that computes without a pause."""

_SYSTEM_CALLS = {"x86_64": 314, "aarch64": 274}
"""Number of the system call sched_setattr, by machine."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period"""
_RESET_ON_FORK = 1
"""Threads and processes that this thread starts have slices of the usual length."""


def take_short_turns() -> bool:
    """Give the calling thread short slices. False: the system has none, or the process was started with another scheduling
    policy."""
    number = _SYSTEM_CALLS.get(os.uname().machine)
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    import ctypes

    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, TURN_NS, 0, 0)
    syscall = ctypes.CDLL(None).syscall
    return bool(syscall(ctypes.c_long(number), 0, attributes, 0) == 0)


def give_way() -> bool:
    """Let every other thread have the processor first. False: the system refuses that."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):
        return False
    return True


class Turns:
    """The processor time that a process gets."""

    def __init__(self, pid: int, now_s: float) -> None:
        self._pid = pid
        self._began_s = now_s
        self._before = self._times()

    def starves(self, now_s: float) -> bool:
        """True if the process has had almost no processor time since the start, although it wanted some."""
        (ran_before, waited_before), (ran, waited) = self._before, self._times()
        enough_s = (now_s - self._began_s) * STARVING_SHARE
        return ran - ran_before < enough_s < waited - waited_before

    def _times(self) -> tuple[float, float]:
        """Seconds for which it ran, and for which it waited for its turn."""
        try:
            with open(f"/proc/{self._pid}/schedstat", encoding="ascii") as file:
                ran_ns, waited_ns, _ = file.read().split()
        except OSError:
            return 0.0, 0.0  # the system does not tell, or the process has ended
        return int(ran_ns) / 1e9, int(waited_ns) / 1e9
