"""The command line as users of rpk, kcat and kaf expect it: places of options, profiles, completion, formats, groups and ranges.

Runs the commands as processes against a real broker. Compared: output, exit codes and records. A mismatch means that a user has to
read the manual, or loses sight of a record.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.e2e.test_cli import TIMEOUT_S, environment, error_line, headgate, on_terminal
from tests.support import commands
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module

broker = broker_of_module()


def lines(broker: BrokerProcess, *arguments: str) -> list[str]:
    return headgate(broker, *arguments).stdout.splitlines()


def run(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has no cluster but that of its arguments, its profiles, and these variables."""
    return commands.run(arguments, environment(None) | {"XDG_CONFIG_HOME": str(home), **variables}, timeout_s=TIMEOUT_S)


def test_the_cluster_before_and_behind_the_command_and_in_profiles(broker: BrokerProcess, tmp_path: Path) -> None:
    here = f"{HOST}:{broker.grpc_port}"
    headgate(broker, "topic", "create", "seen")
    dead = "127.0.0.1:1"
    for arguments in (
        ("--cluster", here, "topic", "list"),
        ("topic", "--cluster", here, "list"),
        ("topic", f"--cluster={here}", "list"),
        ("topic", "list", "--cluster", here),
        ("--cluster", dead, "topic", "list", "--cluster", here),
    ):
        assert "seen" in run(tmp_path, *arguments, HEADGATE_CLUSTER=dead).stdout, arguments
    assert run(tmp_path, "profile", "set", "test", here).stdout == f"profile test is {here}, and in use\n"
    assert run(tmp_path, "profile", "set", "other", dead).stdout == f"profile other is {dead}\n"
    assert "seen" in run(tmp_path, "topic", "list").stdout
    assert "seen" in run(tmp_path, "--profile", "test", "topic", "list", HEADGATE_CLUSTER=dead).stdout
    assert f"cluster=`{dead}`" in run(tmp_path, "topic", "list", HEADGATE_PROFILE="other").stderr
    assert f"cluster=`{dead}`" in run(tmp_path, "topic", "list", HEADGATE_CLUSTER=dead).stderr, (
        "a variable before the profile in use"
    )
    assert run(tmp_path, "profile", "use", "other").returncode == 0
    rows = json.loads(run(tmp_path, "profile", "list", "--json").stdout)
    assert rows == [{"name": "other", "cluster": dead, "in_use": True}, {"name": "test", "cluster": here, "in_use": False}]
    assert run(tmp_path, "profile", "delete", "other").returncode == 0
    wrong = run(tmp_path, "--profile", "other", "topic", "list")
    assert wrong.returncode == 2 and "profile does not exist. profile=`other` known=`test`" in wrong.stderr
    told = run(tmp_path, "profile", "set", "far", f"tls://{here}?ca=my%20ca.pem&user=ann&password_file=/run/secret").stdout
    assert told == f"profile far is tls://{here}?ca={ROOT}/my+ca.pem&user=ann&password_file=/run/secret, and in use\n", (
        "from any directory"
    )
    assert "HOST:GRPC_PORT" in run(tmp_path, "profile", "set", "bad", "nowhere").stderr
    (tmp_path / "headgate" / "profiles.toml").write_text("current = [")
    broken = run(tmp_path, "topic", "list")
    assert broken.returncode == 2 and "profiles cannot be read" in broken.stderr and "profiles.toml" in broken.stderr


def test_help_and_completion(tmp_path: Path) -> None:
    shown = run(tmp_path, "--help", COLUMNS="80").stdout
    assert "..." not in shown.replace("[ARGS]...", "") and max(map(len, shown.splitlines())) <= 80
    texts = [run(tmp_path, *words, "--help").stdout for words in (("consume",), ("topic", "create"), ("gate", "open"))]
    assert all("<" not in text.replace("KEY<TEXT>VALUE", "") and "{" not in text for text in texts)
    assert "headgate consume [OPTIONS] TOPIC..." in texts[0] and "--partition N" in texts[0]
    for shell in ("bash", "zsh", "fish"):
        assert "_HEADGATE_COMPLETE" in run(tmp_path, "completion", shell).stdout
    words = {"COMP_WORDS": "headgate topic ", "COMP_CWORD": "2", "_HEADGATE_COMPLETE": "complete_bash"}
    assert {"create", "list", "alter"} <= set(run(tmp_path, **words).stdout.split())
    assert "bash, zsh or fish" in run(tmp_path, "completion", "tcsh").stderr


def test_status_at_80_columns(broker: BrokerProcess) -> None:
    """Brokers, segments, open gates and topics: no line is longer, and no name or number is cut in two."""
    headgate(broker, "topic", "create", "flights-of-2013", "-p", "12")
    headgate(broker, "gate", "open", "flights-of-2013", "flights.2013-06-10", "--each", "1000000")
    code, shown = on_terminal(broker, "status", columns=80)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert code == 0 and "\x1b" not in text
    rows = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, rows)) <= 80, text
    words = {word for row in rows for word in row.split()}
    assert words >= {f"{HOST}:{broker.kafka_port}", "flights-of-2013", "flights.2013-06-10", "leader"}, text
    assert any(row.split()[:2] == ["flights-of-2013", "12"] for row in rows), text


def test_durations_and_sizes_of_topic_settings(broker: BrokerProcess) -> None:
    settings = ("retention.ms=7d", "retention.bytes=1GiB", "segment.bytes=64MiB", "max.message.bytes=2000", "segment.ms=1.5h")
    headgate(broker, "topic", "create", "units", *(word for one in settings for word in ("-c", one)))
    headgate(broker, "topic", "alter", "units", "--set", "segment.ms=90m", "--set", "delete.retention.ms=2h")
    (described,) = json.loads(headgate(broker, "topic", "describe", "units", "--json").stdout)
    assert described["config"] == {
        "retention.ms": "604800000", "retention.bytes": "1073741824", "segment.bytes": "67108864", "max.message.bytes": "2000",
        "segment.ms": "5400000", "delete.retention.ms": "7200000",
    }  # fmt: skip
    headgate(broker, "topic", "alter", "units", "--set", "retention.ms=-1")
    for wrong in ("retention.ms=7 fortnights", "retention.bytes=big", "retention.ms=1GiB"):
        assert "value is not a number" in error_line(headgate(broker, "topic", "alter", "units", "--set", wrong, fails=True))


def test_records_as_json_come_back(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "from", "-p", "1")
    headgate(broker, "topic", "create", "to", "-p", "1")
    rows = [
        {
            "key": "k",
            "value": "v",
            "headers": [{"name": "h", "value": "1"}, {"name": "n", "value": None}],
            "timestamp_ms": 1700000000000,
        },
        {"key_base64": "/w==", "value": None, "headers": {"h": "2"}},
        {"value": {"a": [1, "ü"]}},
    ]
    told = headgate(broker, "produce", "from", "--json", "-H", "x=y", stdin="\n".join(map(json.dumps, rows)).encode() + b"\n")
    assert told.stderr == "produce: 3 records written to from\n"
    copied = headgate(broker, "consume", "from", "-b", "-e", "--json").stdout
    headgate(broker, "produce", "to", "--json", stdin=copied.encode())
    again = headgate(broker, "consume", "to", "-b", "-e", "--json").stdout
    first, second, third = map(json.loads, again.replace('"to"', '"from"').splitlines())
    assert [first, second, third] == list(map(json.loads, copied.splitlines()))
    assert first["timestamp_ms"] == 1700000000000 and first["headers"][1:] == [
        {"name": "n", "value": None},
        {"name": "x", "value": "y"},
    ]
    assert (second["key_base64"], second["value"], third["value"]) == ("/w==", None, '{"a":[1,"ü"]}')
    for wrong in (b"x", b"[]", b'{"valeu": 1}', b'{"value_base64": "?"}', b'{"timestamp_ms": "now"}', b'{"headers": [1]}'):
        refused = headgate(broker, "produce", "to", "--json", stdin=wrong, fails=True)
        assert "line is no record in JSON" in refused.stderr and "line=`1`" in refused.stderr, wrong
    assert "unknown fields: valeu" in headgate(broker, "produce", "to", "--json", stdin=b'{"valeu": 1}', fails=True).stderr
    assert "does not exist" in headgate(broker, "produce", "nosuch", fails=True).stderr, "also without a line"
    assert headgate(broker, "produce", "to").returncode == 0


def test_formats_ranges_and_several_topics(broker: BrokerProcess) -> None:
    for topic in ("a", "b"):
        headgate(broker, "topic", "create", topic, "-p", "1")
        headgate(broker, "produce", topic, "-k", ":", "-H", "h=1", stdin=b"".join(b"k%d:%d\n" % (n, n) for n in range(10)))
    assert sorted(lines(broker, "consume", "a", "b", "-o", "2:4", "-f", "%t/%p/%o %k=%v %h %K %S 100%%\\n")) == [
        f"{topic}/0/{n} k{n}={n} h=1 2 1 100%" for topic in ("a", "b") for n in (2, 3)
    ]
    assert lines(broker, "consume", "a", "-o", ":3") == ["0", "1", "2"]
    assert lines(broker, "consume", "a", "-o", "7:", "-e") == lines(broker, "consume", "a", "-o", "-3", "-e") == ["7", "8", "9"]
    assert lines(broker, "consume", "a", "-o", "8:100", "-e") == ["8", "9"]
    (time,) = lines(broker, "consume", "a", "-o", "beginning", "-n", "1", "-f", "%T\\n")
    assert int(time) > 1_700_000_000_000
    for option, wrong in (("-o", "x"), ("-o", "5:2"), ("-o", "1:-2"), ("-f", "%q"), ("-f", "\\x")):
        assert headgate(broker, "consume", "a", option, wrong, fails=True).returncode == 2
    assert "only one of" in headgate(broker, "consume", "a", "-f", "%v", "--json", fails=True).stderr


def test_a_group_continues_at_its_positions(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "kept", "-p", "1")
    headgate(broker, "produce", "kept", stdin=b"".join(b"%d\n" % n for n in range(10)))
    assert lines(broker, "consume", "kept", "-g", "cli", "-b", "-n", "4") == ["0", "1", "2", "3"]
    assert lines(broker, "consume", "kept", "-g", "cli", "-b", "-e") == ["4", "5", "6", "7", "8", "9"]
    assert lines(broker, "consume", "kept", "-g", "cli", "-b", "-e") == []
    (group,) = [row for row in json.loads(headgate(broker, "group", "list", "--json").stdout) if "cli" in row.values()]
    assert (group["positions"], group["lag_records"]) == (1, 0)


def test_up_on_a_store_in_use_names_the_cluster(broker: BrokerProcess) -> None:
    refused = headgate(None, "up", "--store", str(broker.store), "--kafka-port", "0", fails=True)
    assert refused.returncode == 2
    assert f"kafka=`{HOST}:{broker.kafka_port}`" in refused.stderr and f"grpc=`{HOST}:{broker.grpc_port}`" in refused.stderr
