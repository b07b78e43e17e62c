"""The command line at any of three real brokers covers the whole cluster.

Runs: the commands, in this process, each with another broker's address; the brokers are separate processes. Compared: their
output with the records that were written through other brokers. A mismatch means that the answer depends on the broker that the
user asks.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import pytest

from headgate.broker.cli import app
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import PATIENT, Brokers
from tests.support.waiting import until

PARTITIONS = 6


class Headgate:
    """Runs commands, each of which must succeed. Returns their output."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, door: str, *arguments: str) -> str:
        code = app.run([*arguments, "--cluster", door])
        captured = self._capfd.readouterr()
        assert code == 0, captured.err
        return captured.out


def lags(broker: BrokerProcess) -> list[float]:
    """The lag of groups in this broker's /metrics."""
    with urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("headgate_group_lag_records{")]


def test_every_command_at_any_broker(make_broker: BrokerFactory, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env=PATIENT)
    brokers.start()
    headgate = Headgate(capfd)
    doors = [f"127.0.0.1:{broker.grpc_port}" for broker in brokers.all]
    headgate(doors[2], "topic", "create", "made", "--partitions", "1")
    headgate(doors[1], "topic", "delete", "made", "--yes")
    brokers.spread("t", PARTITIONS)
    for number, door in enumerate(doors, 1):
        lines = tmp_path / "lines"
        lines.write_text("".join(f"key-{line}:{number}-{line}\n" for line in range(100)))
        headgate(door, "produce", "t", str(lines), "--key-separator", ":")
        assert len(headgate(door, "consume", "t", "-b", "-e").splitlines()) == 100 * number
    headgate(doors[0], "group", "reset", "g", "--topic", "t", "--to-earliest", "--execute")
    described = []
    for door in doors:
        (topic,) = json.loads(headgate(door, "topic", "describe", "t", "--json"))
        described.append(topic)
        assert sum(part["high_watermark"] for part in topic["partitions"]) == 300
        assert {part["leader"] for part in topic["partitions"]} == {1, 2, 3}
        (listed,) = (one for one in json.loads(headgate(door, "topic", "list", "--json")) if one["name"] == "t")
        assert listed["records"] == 300
        (group,) = json.loads(headgate(door, "group", "list", "--json"))
        assert (group["group"], group["positions"], group["lag_records"]) == ("g", PARTITIONS, 300)
        (group,) = json.loads(headgate(door, "group", "describe", "g", "--json"))
        assert sum(row["lag_records"] for row in group["positions"]) == 300
        status = json.loads(headgate(door, "status", "--window", "0", "--json"))
        assert [one["id"] for one in status["brokers"]] == [1, 2, 3]
        assert {one["name"]: one["records"] for one in status["topics"]}["t"] == 300
        segments = json.loads(headgate(door, "segment", "list", "--topic", "t", "--json"))
        assert sorted(number for one in segments for number in range(one["first_partition"], one["end_partition"])) == list(
            range(6)
        )
        assert "3 brokers" in headgate(door, "status", "--window", "0")
    assert described[0] == described[1] == described[2]
    assert sum(lag for broker in brokers.all for lag in lags(broker)) == 300, "each lag is shown once, whoever leads the partition"
    listed = json.loads(headgate(doors[1], "segment", "list", "--json"))
    led_by_3 = {one["topic"] for one in listed if one["broker_id"] == 3}
    assert "t" in led_by_3
    assert "broker 3 drained" in headgate(doors[1], "drain", "3")
    until(lambda: 3 not in brokers.leads("t").values(), "the others lead everything")
    rows = [line.split("\t") for line in headgate(doors[2], "status", "--window", "0").splitlines()]
    # A busy machine is starved, which changes nothing here.
    states = {row[0]: row[-1].removesuffix(", starved") for row in rows if len(row) == 10 and row[0] in "123"}
    assert {broker: state.removesuffix(", leader") for broker, state in states.items()} == {
        "1": "serves",
        "2": "serves",
        "3": "drained",
    }
    assert sum(state.endswith(", leader") for state in states.values()) == 1, "one leads, and be it without segments"
    drained = {topic for row in rows if row[1:2] == ["drain"] for topic in row[2].split(", ")}
    assert drained == led_by_3, f"it says what was decided. rows=`{rows}`"
    # A dead address in front changes nothing.
    brokers.all[0].kill()
    until(lambda: 1 not in brokers.leads("t").values(), "the others lead everything")
    both = f"{doors[0]},{doors[1]}"
    assert len(headgate(both, "consume", "t", "-b", "-e").splitlines()) == 300
    headgate(both, "produce", "t", str(lines))
    assert json.loads(headgate(both, "topic", "list", "--json"))
