"""Fixtures of all tests: brokers as real processes, and a report about the clients that this machine lacks.

Tests that need kafkajs carry the mark `kafkajs`, those that mount a file system `needs_mount`. If the machine cannot run them,
they are deselected, and the header and the last lines of the report say so: they never count as passed or skipped.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import headgate.broker.testing.messages  # noqa: F401  (both directions of all messages)
from tests.support import quick_java
from tests.support.broker_process import ROOT, BrokerProcess
from tests.support.chromium import executable as chromium_executable
from tests.support.examples import EXAMPLES
from tests.support.maven import missing as kafka_server_missing
from tests.support.npm import install, missing
from tests.support.s3_foreign import SERVERS
from tests.support.s3_foreign import missing as s3_server_missing
from tests.support.s3_server import s3_server
from tests.support.shares import Shares, place_of
from tests.support.spark import spark

__all__ = ["s3_server", "spark"]  # fixtures, found by their names

# A busy machine is no defect: no test of properties has a time limit for one example, or for making it.
settings.register_profile("busy", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

BrokerFactory = Callable[..., BrokerProcess]

_REPORT = pytest.StashKey[list[str]]()
_ARCHIVING = pytest.StashKey["subprocess.Popen[bytes]"]()

_kafkajs_missing: str | None = missing()
_no_mount: str | None = None


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # In the background of a shell. Dagster would make SIGTERM like it, and commands that tests start would inherit both.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    archive = quick_java.use()
    if archive is not None and not archive.exists() and getattr(config.option, "numprocesses", None):
        # Beside the first tests; the JVMs that start meanwhile are slower.
        config.stash[_ARCHIVING] = subprocess.Popen(
            [sys.executable, "-m", "tests.support.quick_java"], cwd=ROOT, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    # They log each attempt to reach a killed broker: a failure would stand below thousands of lines.
    for client in ("aiokafka", "kafka"):
        logging.getLogger(client).setLevel(logging.CRITICAL)
    config.addinivalue_line("markers", "kafkajs: needs node and npm; deselected, visibly, where they are missing")
    config.addinivalue_line("markers", "kafka_server: needs Java and Maven; deselected, visibly, where they are missing")
    config.addinivalue_line("markers", "needs_mount: mounts a small tmpfs; deselected, visibly, where that is not allowed")
    config.addinivalue_line("markers", "chromium: needs chromium; deselected, visibly, where it is missing")
    config.addinivalue_line("markers", "s3_foreign(name): needs this S3 server; deselected, visibly, where it is missing")
    config.addinivalue_line("markers", "slow: the long form of a test; runs with `make soak` or `-m slow`")


def pytest_unconfigure(config: pytest.Config) -> None:
    if (archiving := config.stash.get(_ARCHIVING, None)) is not None:
        with suppress(ProcessLookupError):
            os.killpg(archiving.pid, signal.SIGKILL)
        archiving.wait()


def _mount_refused() -> str | None:
    """The reason why a tmpfs cannot be mounted here, or None."""
    with tempfile.TemporaryDirectory() as place:
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "headgate-test", place], capture_output=True, check=False)
        if mount.returncode != 0:
            return "mounting a tmpfs is not allowed here (it needs root)"
        subprocess.run(["umount", place], check=True)
    return None


def pytest_report_header(config: pytest.Config) -> str:
    return "kafkajs: node and npm are here" if _kafkajs_missing is None else f"kafkajs: TESTS DO NOT RUN, {_kafkajs_missing}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    return Shares(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    global _kafkajs_missing, _no_mount
    # The longest shares begin first, so that no worker is left alone with one.
    items.sort(key=lambda item: place_of(item.nodeid.partition("::")[0]))
    needing = [item for item in items if item.get_closest_marker("kafkajs")]
    if needing and _kafkajs_missing is None:
        try:
            install()
        except RuntimeError as error:
            # On CI a missing client is a failure; on a machine without a network it is a line in the report.
            if os.environ.get("CI"):
                raise
            _kafkajs_missing = str(error)
    dropped = needing if _kafkajs_missing is not None else []
    mounting = [item for item in items if item.get_closest_marker("needs_mount")]
    if mounting and (_no_mount := _mount_refused()) is not None:
        dropped = dropped + mounting
    if kafka_server_missing() is not None:
        dropped = dropped + [item for item in items if item.get_closest_marker("kafka_server")]
    for item in items:
        if (server := item.get_closest_marker("s3_foreign")) is not None and s3_server_missing(server.args[0]) is not None:
            dropped = [*dropped, item]
    if (browsing := [item for item in items if item.get_closest_marker("chromium")]) and chromium_executable() is None:
        dropped = dropped + browsing
    if not config.option.markexpr:
        dropped = dropped + [item for item in items if item.get_closest_marker("slow") and item not in dropped]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        gone = set(dropped)
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuse a fixture that runs on another event loop than its test: after a failed test, its end would wait for tasks that never
    run again."""
    marker = request.node.get_closest_marker("asyncio")
    if marker is not None and (inspect.isasyncgenfunction(fixturedef.func) or inspect.iscoroutinefunction(fixturedef.func)):
        ours, tests = (getattr(fixturedef.func, "_loop_scope", None) or "function"), marker.kwargs.get("loop_scope", "function")
        assert ours == tests, f"the fixture and its test run on different event loops. fixture=`{ours}` test=`{tests}`"
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(_REPORT, []):
        terminalreporter.write_line(line)
    chromium_missing = None if chromium_executable() else "there is no chromium"
    for what, reason in (
        ("kafkajs", _kafkajs_missing),
        ("full and read-only disks", _no_mount),
        ("a real Kafka", kafka_server_missing()),
        ("Dagster's page", chromium_missing),
        *((f"S3 on {name}", s3_server_missing(name)) for name in SERVERS),
    ):
        if reason is not None:
            terminalreporter.write_line(f"{what}: TESTS DID NOT RUN, {reason}", yellow=True)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line with measurements at the end of the test run; no test depends on it."""
    lines = request.config.stash.setdefault(_REPORT, [])
    return lines.append


@pytest.fixture(scope="session", autouse=True)
def _kafkajs_helper() -> Iterator[None]:
    """End the Node process with the session, if a test started one."""
    yield
    if clients := sys.modules.get("tests.support.clients.all"):
        clients.KAFKAJS.close()


@pytest.fixture(autouse=True)
def _clients_end() -> Iterator[None]:
    """End the clients that a failed test left running in threads: they would disturb the tests that come after it."""
    yield
    if writers := sys.modules.get("tests.support.writers"):
        writers.Running.end_all()


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Make broker processes (not started yet). At the end all are killed and their output is searched for crashes."""
    made: list[BrokerProcess] = []

    def make(store: str | Path | None = None, **options: object) -> BrokerProcess:
        number = len(made)
        broker = BrokerProcess(store or tmp_path / f"store-{number}", tmp_path / f"broker-{number}.log", **options)  # type: ignore[arg-type]
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.kill()
    for broker in made:
        broker.check_output()
