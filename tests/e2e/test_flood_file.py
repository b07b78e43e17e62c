"""`headgate flood run FILE`: a flood of a file against one broker, and its end by a signal in each phase.

Runs: one broker, and the command in forked processes without a Java. Compared: the records that a foreign client reads with the
source, exit codes, the last sentence, reservations and gates. A mismatch means that a retry of cron or Airflow doubles history,
or that an interrupted command keeps brokers or readers waiting. `unit/assets/test_flood_command.py` has the decisions.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from headgate.broker.cli.flood_file import Cluster
from tests.support import commands
from tests.support.broker_process import HOST, PATIENCE_S, ROOT, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.waiting import until

PAGE = ROOT / "pipelines" / "orchestrators.md"
DAYS = ("2026-01-01", "2026-01-02")
ROWS = 30_000
"""Rows of a day."""
PARTITIONS = 2
FLOODS = """floods:
  - name: {name}
    topic: {name}
    topic_partitions: 2
    source: {directory}/%Y-%m-%d.parquet
    key: user
    value: payload
    event_time: at
    partitions: {{by: day, start: 2026-01-01}}
    catch_up: 1s
    brokers: {brokers}
    reservation_ttl: {ttl}
    gate_ttl: {ttl}
    schedule: "0 6 * * *"
    lead_time: 5m
    groups: [billing]
    asset: {{deps: [lake/clicks], automation_condition: upstream, owners: ["team:web"]}}
  - {{name: other, topic: other, source: /nowhere, event_time: at, partitions: {{by: day, start: 2026-01-01}}}}
"""
"""The fields behind `gate_ttl` are Dagster's alone: the command does without them."""
ONE, NEVER = "{min: 1, max: 1}", "{min: 2, max: 2, wait: 1h}"
TTL = {signal.SIGKILL: "10s"}
"""What a killed command leaves ends by its own time; all others release it."""


broker = broker_of_module()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each of two days."""
    place, arrow = tmp_path_factory.mktemp("clicks"), pa
    for day in DAYS:
        first = datetime.fromisoformat(day).replace(tzinfo=UTC)
        times = [first + timedelta(milliseconds=row) for row in range(ROWS)]
        columns: dict[str, Any] = {
            "at": arrow.array(times, pa.timestamp("us", "UTC")),
            "user": [f"user-{row % 97}" for row in range(ROWS)],
            "payload": [f"{day} {row}" for row in range(ROWS)],
        }
        pq.write_table(pa.table(columns), place / f"{day}.parquet")
    return place


class Flood:
    """A flood of its own file, topic and name."""

    def __init__(
        self, broker: BrokerProcess, directory: Path, place: Path, name: str, brokers: str = ONE, ttl: str = "10m"
    ) -> None:
        self.broker, self.name = broker, name
        self.cluster = Cluster(f"{HOST}:{broker.grpc_port}")
        self.environment = {
            **os.environ, "HEADGATE_CLUSTER": self.cluster.address, "JAVA_HOME": "/no/java", "PATH": "/no/programs"
        }  # fmt: skip
        file = place / "floods.yaml"
        file.write_text(FLOODS.format(name=name, directory=directory, brokers=brokers, ttl=ttl))
        self.arguments = ["flood", "run", str(file), "--flood", name, "--partition", f"{DAYS[0]}..{DAYS[-1]}"]

    def run(self, *more: str) -> Any:
        return commands.run([*self.arguments, *more], self.environment, timeout_s=PATIENCE_S)

    def reservations(self) -> list[int]:
        """The brokers of each reservation of this flood."""
        return [one.brokers for one in self.cluster.reservations() if one.id.startswith(f"{self.name}.")]

    def open_gates(self) -> list[str]:
        return [gate.id for gate in self.cluster.gates(self.name).values() if str(gate.state) == "open"]

    def values(self) -> list[str]:
        found = CLIENTS["confluent"].consume(self.broker.bootstrap, self.name, range(PARTITIONS))
        return sorted(row.value.decode() for rows in found.values() for row in rows)


EXPECTED = sorted(f"{day} {row}" for day in DAYS for row in range(ROWS))


def test_a_flood_of_a_file_and_the_same_again(broker: BrokerProcess, directory: Path, tmp_path: Path) -> None:
    flood = Flood(broker, directory, tmp_path, "first")
    done = flood.run("--certificate", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "first: 60,000 records added to topic first, in 2 partitions, read back and complete\n"
    assert "first: brokers that serve: 1" in done.stderr and "starting Spark" not in done.stderr
    assert flood.values() == EXPECTED
    proof = str(tmp_path / f"first-{DAYS[0]}.json")
    checked = ["flood", "verify", "--topic", "first", "--certificate", proof, "--json"]
    found = json.loads(commands.run(checked, flood.environment, timeout_s=PATIENCE_S).stdout)
    assert found["verified"] and found["rows"] == ROWS

    again = flood.run("--json")
    found = json.loads(again.stdout)
    assert (again.returncode, found["state"], found["added_rows"], found["rows"]) == (0, "there", 0, 2 * ROWS), again.stderr
    assert "0 records added" in again.stderr and "starting Spark" not in again.stderr and "reservation" not in again.stderr
    assert flood.reservations() == [] and flood.values() == EXPECTED


def test_two_commands_at_once_add_each_row_once(broker: BrokerProcess, directory: Path, tmp_path: Path) -> None:
    """A retry that begins while the first run still works: they share the gates, and one of them fills each."""
    flood = Flood(broker, directory, tmp_path, "twice")
    with commands.begun(flood.arguments, flood.environment) as one, commands.begun(flood.arguments, flood.environment) as other:
        codes = {command.process.wait(PATIENCE_S) for command in (one, other)}
        assert codes <= {0, 75} and 0 in codes, (one.errors(), other.errors())
    assert flood.run().returncode == 0 and flood.values() == EXPECTED
    assert flood.open_gates() == [] and flood.reservations() == []


def test_what_waits_for_a_gate_asks_by_http(broker: BrokerProcess, directory: Path, tmp_path: Path) -> None:
    """A gate of any age has an answer of its own: `/api/floods` shows the newest ones."""
    flood = Flood(broker, directory, tmp_path, "waited")
    assert flood.run().returncode == 0

    def ask(topic: str, gate: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{broker.http_port}/api/topics/{topic}/gates/{gate}", timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    status, found = ask("waited", f"waited.{DAYS[0]}")
    assert (status, found["state"], found["rows"], found["topic"]) == (200, "filled", ROWS, "waited")
    assert [(ask(*one)[0], ask(*one)[1]["error"]["reason"]) for one in (("waited", "waited.2026-01-09"), ("nosuch", "x"))] == [
        (404, "unknown_gate"), (404, "unknown_topic")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "number"),
    [("planning", signal.SIGINT), ("waiting for brokers", signal.SIGTERM), ("waiting for brokers", signal.SIGKILL)],
)
def test_an_end_before_brokers_came_leaves_nothing(
    broker: BrokerProcess, directory: Path, tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    """No second broker ever comes, so the command never ends by itself."""
    name = f"short-{number.name}".lower().replace("-", "_")
    flood = Flood(broker, directory, tmp_path, name, NEVER, TTL.get(number, "10m"))
    with commands.begun(flood.arguments, flood.environment) as command:
        until(lambda: f": {phase}" in command.errors(), phase)
        if phase != "planning":
            assert flood.reservations() == [2]
        command.process.send_signal(number)
        code = command.process.wait(PATIENCE_S)
        errors, said = command.errors(), command.output()
    if number is signal.SIGKILL:
        assert code == -signal.SIGKILL
        until(lambda: not flood.reservations(), "the reservation ends by its own time")
    else:
        assert (code, said) == (130, "") and "Traceback" not in errors, errors
        sentence = errors.splitlines()[-1].removeprefix("headgate flood run: ")
        assert re.fullmatch(r"cancelled while [a-z ]+\. .*, and nothing was added: run the same days again\.", sentence), errors
        assert flood.reservations() == []
    assert flood.open_gates() == []


@pytest.mark.parametrize(
    ("phase", "number"), [("opening", signal.SIGTERM), ("writing", signal.SIGKILL), ("verifying", signal.SIGINT)]
)
def test_an_end_of_the_load_is_made_good_by_the_next_run(
    broker: BrokerProcess, directory: Path, tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    """A signal that comes when all is done has nothing to end."""
    flood = Flood(broker, directory, tmp_path, f"ended_{phase}", ttl=TTL.get(number, "10m"))
    with commands.begun(flood.arguments, flood.environment) as command:
        until(lambda: f"{phase} 2026" in command.errors() or command.process.poll() is not None, phase)
        command.process.send_signal(number)
        code = command.process.wait(PATIENCE_S)
        errors = command.errors()
    if number is not signal.SIGKILL:
        cancelled = re.search(r"cancelled while [^.]*\. Brokers and gates are released, and ", errors)
        done_before = "giving brokers back" in errors and code in (0, 130, -number)
        assert done_before or (code == 130 and cancelled), (code, errors)
        assert "Traceback" not in errors, errors
        assert flood.open_gates() == [] and flood.reservations() == []
    done = flood.run()
    assert done.returncode == 0, done.stderr
    assert flood.values() == EXPECTED, "each row once"
    until(lambda: not flood.reservations(), "the reservation of a killed command ends by its own time")


def test_the_blocks_of_the_page_run(
    broker: BrokerProcess, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pipelines/orchestrators.md`: its file, its commands, and the tasks of its DAG. `make compat` runs the DAG in Airflow, and
    `test_access.py` the rules."""
    flood = Flood(broker, directory, tmp_path, "page")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    lake = tmp_path / "lake"
    lake.mkdir()
    for day, like in zip((*DAYS, "2026-01-03"), (*DAYS, DAYS[0]), strict=True):
        os.link(directory / f"{like}.parquet", lake / f"{day}.parquet")
    file = tmp_path / "page.yaml"
    texts = {kind: [text for one, text in blocks if one == kind] for kind, _ in blocks}
    assert sorted(texts) == ["console", "python", "sh", "yaml"] and [len(texts[kind]) for kind in sorted(texts)] == [3, 1, 1, 3]
    file.write_text(texts["yaml"][0].replace("/data/lake/", f"{lake}/"))
    assert all(yaml.safe_load(text) for text in texts["yaml"])

    def run(line: str) -> None:
        arguments = shlex.split(line.replace("floods.yaml", str(file)), comments=True)
        done = commands.run(arguments[1:], flood.environment, timeout_s=PATIENCE_S)
        assert done.returncode == 0, (line, done.stdout, done.stderr)

    for line in re.findall(r"^\$ (headgate .*)$", texts["console"][0], re.M):
        run(line)
    (retried,) = (line for line in texts["sh"][0].splitlines() if line.startswith("until "))
    code = subprocess.run(
        ["/bin/sh", "-c", f"headgate() {{ echo $*; return 2; }}\nsleep() {{ exit 9; }}\nday=2026-01-02\n{retried}"],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (code.returncode, code.stdout) == (2, "flood run floods.yaml --partition 2026-01-02\n")

    tasks: dict[str, Any] = {}

    def keep(**_: object) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: tasks.setdefault(function.__name__, function) and MagicMock()

    sdk = MagicMock(dag=lambda **_: lambda function: function, task=MagicMock(bash=keep, sensor=keep))
    monkeypatch.setitem(sys.modules, "airflow", MagicMock(sdk=sdk))
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    dag = texts["python"][0].replace("127.0.0.1:9090", f"{HOST}:{broker.http_port}")
    exec(dag.replace("127.0.0.1:9095", flood.cluster.address), {})
    day = datetime(2026, 1, 2, tzinfo=UTC)
    run(tasks["load"](data_interval_start=day).removeprefix("exec ").replace("/etc/headgate/", ""))
    assert tasks["is_there"](data_interval_start=day) is True
    assert tasks["is_there"](data_interval_start=day + timedelta(days=1)) is False, "the third day has no rows of its own"
