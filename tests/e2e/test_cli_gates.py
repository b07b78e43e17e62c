"""`headgate gate` against a real broker: the output for users and scripts.

Runs: every command of the group once, as a subprocess without a terminal. Compared: lines, JSON and exit codes with the broker's
gates. A mismatch means that a command reports something else than it did.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from headgate.broker.client import Gate, GateState, GateWindow, Place
from tests.conftest import BrokerFactory
from tests.e2e.test_cli import TIMEOUT_S, environment
from tests.e2e.test_cli import headgate as run
from tests.support.broker_process import ROOT
from tests.support.history_files import upload


def test_gates_by_hand(make_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = make_broker()
    broker.start()
    run(broker, "topic", "create", "t", "--partitions", "2")
    opened = run(broker, "gate", "open", "t", "g", "--rows", "30,20", "--ttl", "10m", "--json")
    found = json.loads(opened.stdout)
    windows = tuple(GateWindow(**one) for one in found.pop("windows"))
    gate = Gate(**{**found, "windows": windows, "state": GateState(found["state"]), "place": Place(found["place"])})
    assert [(one.base_offset, one.end_offset) for one in windows] == [(0, 30), (0, 20)]
    refs = tmp_path / "refs.json"
    refs.write_text(json.dumps([asdict(ref) for ref in upload(gate)]))
    assert "filled: 50 records in 2 files" in run(broker, "gate", "fill", "t", "g", str(refs)).stdout
    assert "filled: 50 records in 2 files" in run(broker, "gate", "fill", "t", "g", str(refs)).stdout
    said = run(broker, "gate", "fill", "t", "g", str(tmp_path), fails=True).stderr
    assert "expected a JSON list of file references: is a directory. source=`" in said
    assert (
        "required field `path` - at `$[0]`"
        in run(broker, "gate", "fill", "t", "g", "-", stdin=b'[{"partition": 0}]', fails=True).stderr
    )
    assert "filled with other files" in run(broker, "gate", "fill", "t", "g", "-", stdin=b"[]", fails=True).stderr
    assert "is open: room for 10 records" in run(broker, "gate", "open", "t", "h", "--each", "5").stdout
    assert re.search(r"(2h 0m|1h 59m) left", run(broker, "gate", "renew", "t", "h", "--ttl", "2h").stdout)
    status = run(broker, "status").stdout
    assert "\nt\th\topen\tnow\t2\t10\t" in status and "\nt\tg\t" not in status
    assert "\nt\tg\tfilled\tnow\t2\t50\t50\t" in run(broker, "topic", "describe", "t").stdout
    assert "is released: asked" in run(broker, "gate", "release", "t", "h").stdout
    for only in ((), ("t",), ("--topic", "t")):
        rows = [line.split("\t")[:3] for line in run(broker, "gate", "list", *only).stdout.splitlines()]
        assert rows == [["topic", "gate", "state"], ["t", "g", "filled"], ["t", "h", "released (asked)"]]
    described = json.loads(run(broker, "gate", "describe", "t", "g", "--json").stdout)
    assert [ref["rows"] for ref in described["refs"]] == [30, 20]


def test_gates_that_are_filled_in_part(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """A gate with more room than rows, or without any rows, does not count as missing data of the topic or the gate."""
    broker = make_broker()
    broker.start()
    run(broker, "topic", "create", "t", "--partitions", "1")
    opened = json.loads(run(broker, "gate", "open", "t", "g", "--rows", "100", "--json").stdout)
    windows = tuple(GateWindow(**one) for one in opened.pop("windows"))
    gate = Gate(**{**opened, "windows": windows, "state": GateState(opened["state"]), "place": Place(opened["place"])})
    refs = json.dumps([asdict(ref) for ref in upload(gate, missing=40)])
    run(broker, "gate", "fill", "t", "g", "-", stdin=refs.encode())
    run(broker, "gate", "open", "t", "h", "--rows", "30")
    run(broker, "gate", "fill", "t", "h", "-", stdin=b"[]")
    for of_gate in ([], ["--flood-id", "g"], ["--flood-id", "h"]):
        certificate = json.loads(run(broker, "flood", "verify", "--topic", "t", *of_gate, "--json").stdout)
        assert [part["gap_rows"] for part in certificate["partitions"]] == [0]


def test_consume_says_that_it_waits_at_a_gate(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    run(broker, "topic", "create", "t", "-p", "1")
    run(broker, "produce", "t", stdin=b"before\n")
    run(broker, "gate", "open", "t", "g", "--rows", "10")
    run(broker, "produce", "t", stdin=b"behind\n")
    with subprocess.Popen(
        [sys.executable, "-m", "headgate.broker.cli.main", "consume", "t", "-b", "-e"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(broker),
    ) as consumer:  # fmt: skip
        try:
            assert consumer.stderr is not None
            assert consumer.stderr.readline() == "consume: waiting at gate g, which is open, until it is filled or released\n"
            run(broker, "gate", "release", "t", "g")
            assert consumer.communicate(timeout=TIMEOUT_S) == ("before\nbehind\n", "")
        finally:
            consumer.kill()


def test_references_with_a_wrong_field(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    whole = {
        "partition": 0, "path": "p", "base_offset": 0, "rows": 1, "size_bytes": 1, "footer_crc32c": 0, "timestamp_min_ms": 0,
        "timestamp_max_ms": 0,
    }  # fmt: skip
    wrong: dict[str, object] = {"partition": "0", "path": 5, "rows": 1.5, "size_bytes": None, "base_offset": 1 << 70}
    for field, value in wrong.items():
        refs = json.dumps([{**whole, field: value}]).encode()
        lines = run(broker, "gate", "fill", "t", "g", "-", stdin=refs, fails=True).stderr.splitlines()
        where = f"field=`{field}` value=`{value}`" if field == "base_offset" else f"at `$[0].{field}`"
        assert [where in line for line in lines] == [True], lines


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("open", "t", "g"), "give either --rows or --each"),
        (("open", "t", "g", "--rows", "1,x"), "numbers with commas"),
        (("open", "t", "g", "--each", "1", "--place", "behind"), "must be now or front"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], expected: str) -> None:
    assert expected in run(None, "gate", *arguments, fails=True).stderr
