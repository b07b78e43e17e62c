"""The verifier as a user runs it: against a correct broker, against one with a store that goes back in time, and against none.

The test kills the second broker, replaces its store by an older copy, and restarts it. So all acknowledgements from in between
are lost, readers saw records that are gone, offsets get other records, and a group's position goes back. Compared: the page with
all of these violations. A mismatch means that the judge of the chaos tests is blind.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BrokerFactory
from tests.support.broker_process import ROOT
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
        with verifier.stopped():  # or what it wrote meanwhile would bring the log to its former end at once
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

    again = verify("judge", str(tmp_path / "history"))
    assert again.returncode == 1
    assert again.stdout.startswith("WRONG: the endpoint broke its promises: ")
    assert f"offset {lost['offset']}, producer {lost['producer']} sequence {lost['sequence']}" in again.stdout


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headgate.broker.verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--bootstrap", "127.0.0.1:1"), "the endpoint does not answer"),
        (("--rate", "5"), "--bootstrap"),
        (("--bootstrap", "127.0.0.1:1", "--acks", "0"), "'all', '1'"),
        (("--bootstrap", "127.0.0.1:1", "--topics", "101"), "from 1 to 100"),
        (("--bootstrap", "127.0.0.1:1", "--duration", "8d"), "up to 604800s"),
        (("--bootstrap", "127.0.0.1:1", "--client-config", "no.such.property=1"), "no.such.property"),
        (("judge", "/nonexistent"), "there is no history"),
    ],
)
def test_what_cannot_run_is_one_line_and_code_2(arguments: tuple[str, ...], said: str) -> None:
    ended = verify(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("verify: ") and said in line


def test_an_interrupted_history_cannot_be_judged(make_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = make_broker()
    broker.start()
    with Verifier(broker.bootstrap, tmp_path / "history", "--partitions", "1") as verifier:
        verifier.acknowledges()
    ended = verify("judge", str(tmp_path / "history"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "the run did not end" in ended.stderr
