"""What the kernel says of a thread that was given short turns, and of a process that gives way."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time

import pytest

from headgate.broker.runtime.scheduling import TURN_NS, Turns, take_short_turns
from tests.support.waiting import until

GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}

short_turns = pytest.mark.skipif(
    sys.platform != "linux"
    or os.uname().machine not in GET_ATTRIBUTES
    or tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 12),
    reason="turns of different lengths came with Linux 6.12",
)


def seen() -> tuple[int, int, int]:
    """(policy, nice, length of a turn in ns) of this thread."""
    answer = ctypes.create_string_buffer(48)
    number = ctypes.c_long(GET_ATTRIBUTES[os.uname().machine])
    assert ctypes.CDLL(None).syscall(number, 0, answer, len(answer), 0) == 0
    _, policy, _, nice, _, turn_ns, _, _ = struct.unpack("=IIQiIQQQ", answer.raw)
    return policy, nice, turn_ns


def in_a_thread(more_nice: int = 0, policy: int = os.SCHED_OTHER) -> tuple[bool, list[tuple[int, int, int]]]:
    """The result of `take_short_turns`, and the observed values: before, after, and in a thread that was started afterwards."""
    taken: list[bool] = []
    found: list[tuple[int, int, int]] = []

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + more_nice)
        os.sched_setscheduler(0, policy, os.sched_param(0))
        found.append(seen())
        taken.append(take_short_turns())
        found.append(seen())
        child = threading.Thread(target=lambda: found.append(seen()))
        child.start()
        child.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return taken[0], found


@short_turns
@pytest.mark.parametrize("more_nice", [0, 3])
def test_only_the_thread_that_asks_has_short_turns_and_stays_as_nice_as_it_was(more_nice: int) -> None:
    taken, (before, after, child) = in_a_thread(more_nice)
    assert taken
    assert before[2] != TURN_NS
    assert after == (os.SCHED_OTHER, before[1], TURN_NS)
    assert child == before


@short_turns
def test_another_policy_is_left_alone() -> None:
    taken, (before, after, _) = in_a_thread(policy=os.SCHED_BATCH)
    assert not taken
    assert after == before


BUSY = """
import os, sys
from headgate.broker.runtime.scheduling import give_way
os.sched_setaffinity(0, [int(sys.argv[1])])
if sys.argv[2:]:
    assert give_way()
print(flush=True)
while True:
    pass
"""


def test_a_process_that_gives_way_to_a_busy_one_starves() -> None:
    core = str(min(os.sched_getaffinity(0)))
    with subprocess.Popen([sys.executable, "-c", BUSY, core, "gives way"], stdout=subprocess.PIPE) as gives_way:
        assert gives_way.stdout is not None
        gives_way.stdout.readline()
        with subprocess.Popen([sys.executable, "-c", BUSY, core], stdout=subprocess.PIPE) as busy:
            assert busy.stdout is not None
            busy.stdout.readline()
            turns = Turns(gives_way.pid, time.monotonic())
            time.sleep(0.2)
            until(lambda: turns.starves(time.monotonic()), "it starves", pause_s=0.1)
            busy.kill()
        gives_way.kill()


def test_a_process_that_waits_for_something_else_does_not_starve() -> None:
    with subprocess.Popen(["sleep", "100"]) as sleeps:
        time.sleep(0.2)
        turns = Turns(sleeps.pid, time.monotonic())
        time.sleep(0.2)
        assert not turns.starves(time.monotonic())
        sleeps.kill()
    assert not turns.starves(time.monotonic()), "the system tells nothing of a process that has ended"
