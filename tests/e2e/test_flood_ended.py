"""Floods on the command line that are ended while they work: by a signal to the command in each phase, and by the end of its JVM.

Runs: `headgate flood run` as a user's process group, with a JVM of its own, and a broker. Compared: the exit code, what the command
prints, and the gates. A mismatch means that a cancelled flood keeps a gate, a JVM or a part of its rows, or frightens its user with
a traceback. `tests/unit/assets/test_materialize.py` has Dagster's interrupts, and `test_floods_cancelled.py` clicks of a user.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from headgate.broker.client.gate_admin import GateState
from tests.e2e.test_flood import TIMEOUT_S, broker, cluster, create, gates, source
from tests.support.broker_process import ROOT, BrokerProcess
from tests.support.children import children
from tests.support.flood_sources import Event
from tests.support.signals import python
from tests.support.waiting import until

__all__ = ["broker", "source"]


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("starting Spark", signal.SIGINT),
        pytest.param("counting", signal.SIGINT, marks=pytest.mark.slow),
        ("shuffling", signal.SIGTERM),
        pytest.param("shuffling", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_the_command_line_s_flood_without_a_word(
    broker: BrokerProcess, source: tuple[Path, list[Event]], phase: str, number: signal.Signals
) -> None:
    """This covers the launch of the JVM too: an aborted launch would leave the JVM running, and it shares our standard output.

    It also covers a service manager's SIGTERM, and the SIGHUP of a closed terminal; each of them ends the JVM at once.
    """
    topic = f"interrupted-{phase.split()[0]}-{number.name}"
    with slow_flood(broker, topic, source[0]) as process:
        if phase == "counting":
            read_until(process, "starting Spark")  # a flood counts first without it
        read_until(process, phase)
        if phase == "starting Spark":
            wait_for_java(process)
        os.killpg(process.pid, number)
        said, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert said == "" and "Traceback" not in errors and "headgate flood run:" not in errors, errors
    assert all(gate.state is GateState.RELEASED for gate in gates(broker, topic))


@pytest.mark.parametrize("phase", ["counting", pytest.param("shuffling", marks=pytest.mark.slow)])
def test_a_jvm_that_is_killed_is_told(broker: BrokerProcess, source: tuple[Path, list[Event]], phase: str) -> None:
    """Kill the JVM, as the system does with a process that takes too much memory."""
    topic = f"no-jvm-{phase}"
    with slow_flood(broker, topic, source[0]) as process:
        if phase == "counting":
            read_until(process, "starting Spark")
        read_until(process, phase)
        os.kill(wait_for_java(process), signal.SIGKILL)
        said, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert said == "" and "Spark's JVM ended" in errors and "spark.driver.memory" in errors, errors
    assert all(gate.state is GateState.RELEASED for gate in gates(broker, topic))


def slow_flood(broker: BrokerProcess, topic: str, source: Path) -> subprocess.Popen[str]:
    """A flood on the command line, in a process group of its own, that writes its rows slowly."""
    create(broker, topic)
    slow = "concat(payload, java_method('java.lang.Thread', 'sleep', cast(5 as long)))"
    command = python("-m", "headgate.broker.cli.main", "flood", "run", "--topic", topic, "--source", str(source))
    return subprocess.Popen(
        [*command, "--key", "user", "--event-time", "at", "--value", slow, "--master", "local[2]"],
        cwd=ROOT, env={**os.environ, "HEADGATE_CLUSTER": cluster(broker)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def read_until(process: subprocess.Popen[str], phase: str) -> None:
    """Wait until the command line says that a phase has begun."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if f": {phase}" in line:
            return
    raise AssertionError(f"it ended with {process.wait()}: {said}")


def wait_for_java(process: subprocess.Popen[str]) -> int:
    """Wait until a descendant of this process is Spark's JVM itself, not the JVM of its launcher. Returns its id."""

    def found() -> int | None:
        assert process.poll() is None, process.communicate()[1]
        for pid, command in descendants(process.pid).items():
            if "java" in command and "deploy.SparkSubmit" in command and "launcher.Main" not in command:
                return pid
        return None

    return until(found, "there is a JVM") or 0


def descendants(pid: int) -> dict[int, str]:
    """The command lines of a process's children, and of theirs."""
    found = children(pid)
    for child in [*found]:
        found |= descendants(child)
    return found
