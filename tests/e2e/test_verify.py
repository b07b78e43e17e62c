"""`headgate verify` as a user runs it: against a correct broker, against one with a store that goes back in time, and against none.

The test kills the second broker, replaces its store by an older copy, and restarts it. So all acknowledgements from in between
are lost, readers saw records that are gone, offsets get other records, and a group's position goes back. Compared: the page with
all of these violations. A mismatch means that the judge of the chaos tests is blind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BrokerFactory
from tests.support import commands
from tests.support.verifier import Verifier


def test_a_right_broker_that_is_killed_is_right(make_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = make_broker()
    broker.start()
    options = (
        "--partitions",
        "3",
        "--topics",
        "2",
        "--rate",
        "400",
        "--groups",
        "2",
        "--group-protocol",
        "both",
        "--settle",
        "60s",
    )
    with Verifier(broker.bootstrap, tmp_path / "history", *options) as verifier:
        verifier.acknowledges()
        broker.kill()
        broker.start()
        verifier.acknowledges()
        code, data = verifier.end()
    assert (code, data["verdict"], data["errors"]) == (0, "right", {}), data["summary"]
    repeated = data["counts"]["duplicated, producer without idempotence"]
    assert data["in_log"] == data["acked"] + data["unknown_written"] + repeated > 0
    assert data["commits"] and data["position_answers"] and data["watermark_answers"]
    assert data["read_live"] >= 4 * data["acked"], "two readers, and a group of each protocol, read everything while it was written"


def test_a_store_that_goes_back_in_time_is_found_out(make_broker: BrokerFactory, tmp_path: Path) -> None:
    store = tmp_path / "store"
    broker = make_broker(store)
    broker.start()
    with Verifier(broker.bootstrap, tmp_path / "history", "--partitions", "2", "--rate", "400", "--settle", "2s") as verifier:
        verifier.acknowledges()
        broker.kill()
        shutil.copytree(store, tmp_path / "older")
        broker.start()
        # The log then needs some seconds to come to its former end again: the verifier asks for the end once a second.
        for _ in range(6):
            verifier.acknowledges()
        broker.kill()
        shutil.rmtree(store)
        (tmp_path / "older").rename(store)
        broker.start()
        verifier.acknowledges()
        code, data = verifier.end()
    assert (code, data["verdict"]) == (1, "wrong")
    assert {"lost", "offset with two values", "high watermark went back"} <= {
        kind for kind, count in data["counts"].items() if count
    }
    assert data["errors"]["lost"] > 0
    lost = next(one for one in data["violations"] if one["kind"] == "lost")
    assert lost["offset"] >= 0 and lost["producer"] >= 0 and lost["sequence"] >= 0 and lost["topic"].startswith("headgate-verify-")

    again = headgate("verify", "judge", str(tmp_path / "history"))
    assert again.returncode == 1
    assert again.stdout.startswith("WRONG: the endpoint broke its promises: ")
    assert f"offset {lost['offset']}, producer {lost['producer']} sequence {lost['sequence']}" in again.stdout


def headgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.run(arguments, os.environ, timeout_s=100)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("verify", "--bootstrap", "127.0.0.1:1"), "the endpoint does not answer"),
        (("verify", "--rate", "5"), "an endpoint is missing"),
        (("verify", "--bootstrap", "127.0.0.1:1", "--acks", "0"), "all or 1"),
        (("verify", "--bootstrap", "127.0.0.1:1", "--client-config", "no.such.property=1"), "no.such.property"),
        (("verify", "judge", "/nonexistent"), "there is no history"),
    ],
)
def test_what_cannot_run_is_one_line_and_code_2(arguments: tuple[str, ...], said: str) -> None:
    ended = headgate(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("headgate verify") and said in line


def test_without_its_client_it_names_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "confluent_kafka.py").write_text("raise ModuleNotFoundError(name='confluent_kafka')")
    ended = subprocess.run(
        [sys.executable, "-m", "headgate.broker.cli.main", "verify", "--bootstrap", "127.0.0.1:1"],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "headgate verify: confluent-kafka is not installed: pip install 'headgate[verify]'\n"


def test_an_interrupted_history_cannot_be_judged(make_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = make_broker()
    broker.start()
    with Verifier(broker.bootstrap, tmp_path / "history", "--partitions", "1") as verifier:
        verifier.acknowledges()
    ended = headgate("verify", "judge", str(tmp_path / "history"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "the run did not end" in ended.stderr
