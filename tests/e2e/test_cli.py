"""The user's commands against a real broker: their output, its destination, and their failures.

Runs `headgate topic|produce|consume|status` as processes, with files, pipes and a pseudo-terminal; confluent-kafka reads what
`produce` writes and writes what `consume` reads. Compared: output, exit codes, records. A mismatch means that a script or a
user sees something else than the stored records, a traceback instead of a reason, or control codes in a pipe.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.broker.runtime.setting_kinds import parse_time_ms
from tests.support import commands
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS
from tests.support.ports import free_port
from tests.support.records import Record
from tests.support.signals import python

TIMEOUT_S = 60.0
JUDGE = CLIENTS["confluent"]


broker = broker_of_module()


def headgate(
    broker: BrokerProcess | None, *arguments: str, stdin: bytes = b"", fails: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal. A traceback always fails the test."""
    done = commands.run(arguments, environment(broker), stdin=stdin, timeout_s=TIMEOUT_S)
    assert "Traceback" not in done.stderr, done.stderr
    assert "\x1b" not in done.stdout + done.stderr, "control codes without a terminal"
    assert (done.returncode != 0) == fails, (done.returncode, done.stdout, done.stderr)
    return done


def test_store_commands(broker: BrokerProcess) -> None:
    """Beside a running broker, and for places that have no cluster."""
    store = str(broker.store)
    for options in ((), ("--deep",)):
        assert headgate(broker, "store", "check", "--store", store, *options).stdout.startswith("whole: ")
    usage = json.loads(headgate(broker, "store", "usage", "--store", store, "--json").stdout)
    assert {row["kind"] for row in usage["kinds"]} >= {"cluster"}
    preview = json.loads(headgate(broker, "store", "preview", "--store", store, "--json").stdout)
    assert set(preview) == {"records", "objects"}
    for command in ("check", "usage", "preview"):
        assert "memory" in headgate(broker, "store", command, "--store", "memory:", fails=True).stderr
        assert headgate(broker, "store", command, "--store", "/nonexistent/place", fails=True).stderr


def on_terminal(broker: BrokerProcess, *arguments: str, typed: bytes = b"", columns: int = 100) -> tuple[int, str]:
    """Run a command on a pseudo-terminal. Returns (exit code, terminal output)."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover
        os.chdir(ROOT)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "headgate.broker.cli.main", *arguments],
            environment(broker) | {"TERM": "xterm", "COLUMNS": str(columns)},
        )
    seen = b""
    if typed:
        os.write(terminal, typed)
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux raises EIO when the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen.decode(errors="replace")


def environment(broker: BrokerProcess | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    inherited["COLUMNS"] = "100"
    return inherited if broker is None else inherited | {"HEADGATE_CLUSTER": f"{HOST}:{broker.grpc_port}"}


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = done.stderr.splitlines()
    return line


# -- topics and status


def test_the_life_of_a_topic(broker: BrokerProcess) -> None:
    done = headgate(broker, "topic", "create", "life", "-p", "3", "-c", "retention.ms=60000")
    assert done.stdout == "topic life created with 3 partitions\n"
    again = headgate(broker, "topic", "create", "life", fails=True)
    assert "topic exists already" in error_line(again) and "--if-not-exists" in error_line(again)
    assert "exists already" in headgate(broker, "topic", "create", "life", "--if-not-exists").stdout
    rows = [line.split("\t") for line in headgate(broker, "topic", "list").stdout.splitlines()]
    assert rows[0][:2] == ["topic", "partitions"] and ["life", "3"] in [row[:2] for row in rows]
    (described,) = json.loads(headgate(broker, "topic", "describe", "life", "--json").stdout)
    assert described["config"] == {"retention.ms": "60000"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    headgate(broker, "topic", "alter", "life", "--set", "max.message.bytes=2000", "--unset", "retention.ms", "-p", "5")
    (described,) = json.loads(headgate(broker, "topic", "describe", "life", "--json").stdout)
    assert described["config"] == {"max.message.bytes": "2000"} and len(described["partitions"]) == 5
    (full,) = json.loads(headgate(broker, "topic", "describe", "life", "--json", "--all").stdout)
    assert full["config"]["retention.ms"] == "604800000"
    both = headgate(broker, "topic", "describe", "none", "life", "--json", fails=True)
    assert [one["name"] for one in json.loads(both.stdout)] == ["life"] and "topic=`none`" in error_line(both)
    assert headgate(broker, "topic", "delete", "none", "life", fails=True).stdout == "topic life deleted\n"
    assert "life" not in [topic["name"] for topic in json.loads(headgate(broker, "topic", "list", "--json").stdout)]


def test_status_counts_what_is_there(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "counted", "-p", "1")
    headgate(broker, "produce", "counted", stdin=b"a\nb\nc\n")
    status = json.loads(headgate(broker, "status", "--json", "--window", "0").stdout)
    (one,) = status["brokers"]
    assert (one["kafka_port"], one["grpc_port"], one["http_port"]) == (broker.kafka_port, broker.grpc_port, broker.http_port)
    (row,) = [topic for topic in status["topics"] if topic["name"] == "counted"]
    assert (row["partitions"], row["records"]) == (1, 3) and row["size_bytes"] > 0
    assert f"{HOST}:{broker.kafka_port}" in headgate(broker, "status", "--window", "10ms").stdout


# -- records


def test_produce_is_read_by_a_foreign_client(broker: BrokerProcess, tmp_path: Path) -> None:
    headgate(broker, "topic", "create", "lines", "-p", "2")
    (tmp_path / "a").write_bytes(b"k1\tone\r\nk2\t\nk3\tNULL\n")
    (tmp_path / "b").write_bytes("k4\tgrüße\nk5\twithout an end".encode())
    done = headgate(
        broker, "produce", "lines", str(tmp_path / "a"), str(tmp_path / "b"), "-k", "\\t", "--null-value", "NULL", "-H", "h=1",
        "-H", "h=2", "-z", "zstd", "-p", "1",
    )  # fmt: skip
    assert done.stderr == "produce: 5 records written to lines\n" and done.stdout == ""
    read = JUDGE.consume(broker.bootstrap, "lines", [0, 1])
    assert not read[0]
    assert [(one.key, one.value) for one in read[1]] == [
        (b"k1", b"one"), (b"k2", b""), (b"k3", None), (b"k4", "grüße".encode()), (b"k5", b"without an end"),
    ]  # fmt: skip
    assert {one.headers for one in read[1]} == {(("h", b"1"), ("h", b"2"))}


def test_produce_and_consume_give_the_same_lines_back(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "echo", "-p", "1")
    data = b"".join(b"%d\n" % number for number in range(20_000)) + b"\xff\xfe binary\n\n"
    assert "20,002 records" in headgate(broker, "produce", "echo", stdin=data).stderr
    done = subprocess.run(
        [sys.executable, "-m", "headgate.broker.cli.main", "consume", "echo", "-b", "-e"],
        capture_output=True, cwd=ROOT, env=environment(broker), timeout=TIMEOUT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == data


def test_arguments_that_are_no_text(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "bytes", "-p", "1")
    # Python's form of the byte ff in an argument from a shell.
    headgate(broker, "produce", "bytes", "-k", "\udcff", "-H", "h=\udcfe", "--null-value", "\udcfd", stdin=b"a\xffb\nc\xff\xfd\n")
    first, second = map(json.loads, headgate(broker, "consume", "bytes", "-b", "-e", "--json").stdout.splitlines())
    assert (first["key"], first["value"], second["key"], second["value"]) == ("a", "b", "c", None)
    assert first["headers"] == second["headers"] == [{"name": "h", "value_base64": "/g=="}]
    refused = headgate(broker, "produce", "bytes", "-H", "h\udcff=x", stdin=b"d\n", fails=True)
    assert "a header's name is not UTF-8" in refused.stderr, "aiokafka and kafka-python cannot read such a record"
    assert headgate(broker, "consume", "bytes", "-b", "-e", "-k", "\udcff").stdout == "a\udcffb\nc\udcffnull\n"
    done = headgate(broker, "topic", "create", "\udcff", fails=True)
    assert done.returncode == 2 and error_line(done) == "headgate topic create: an argument is not UTF-8. value=`\\udcff`"


def test_consume_from_every_kind_of_place(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "places", "-p", "1")
    start_ms = 1_700_000_000_000
    headers = (("h", b"\xff"), ("n", None))
    records = [
        Record(partition=0, key=b"k", value=b"%d" % number, timestamp_ms=start_ms + number * 1000, headers=headers)
        for number in range(10)
    ]
    JUDGE.produce(broker.bootstrap, "places", records)

    def values(*arguments: str) -> list[str]:
        return headgate(broker, "consume", "places", *arguments).stdout.split()

    everything = [str(number) for number in range(10)]
    assert values("--from-beginning", "--exit-at-end") == everything
    assert values("--offset", "7", "-e") == everything[7:]
    assert values("--offset", "-2", "-e") == everything[8:]
    assert values("--offset", "-200", "-e") == everything
    assert values("--timestamp", str(start_ms + 4500), "-e") == everything[5:]
    assert values("--timestamp", "2023-11-14T22:13:25", "-e") == everything[5:]
    assert values("--timestamp", "1m", "-e") == []
    assert values("-b", "--max", "3") == everything[:3]
    assert values("-b", "-n", "1", "-k", "=", "-p", "0") == ["k=0"]
    assert values("-e") == []
    row = json.loads(headgate(broker, "consume", "places", "-o", "3", "-n", "1", "--json").stdout)
    assert row == {
        "topic": "places", "partition": 0, "offset": 3, "timestamp_ms": start_ms + 3000, "key": "k", "value": "3",
        "headers": [{"name": "h", "value_base64": "/w=="}, {"name": "n", "value": None}],
    }  # fmt: skip


def test_consume_follows_and_survives_a_reader_that_leaves(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "follow", "-p", "1")
    with subprocess.Popen(
        [sys.executable, "-m", "headgate.broker.cli.main", "consume", "follow", "-b"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment(broker),
    ) as consumer:  # fmt: skip
        try:
            assert consumer.stdout is not None and consumer.stderr is not None
            headgate(broker, "produce", "follow", stdin=b"first\n")
            assert consumer.stdout.readline() == b"first\n"
            headgate(broker, "produce", "follow", stdin=b"second\n")
            assert consumer.stdout.readline() == b"second\n"
            headgate(broker, "topic", "alter", "follow", "-p", "2")
            headgate(broker, "produce", "follow", "-p", "1", stdin=b"in a new partition\n")
            assert consumer.stdout.readline() == b"in a new partition\n"
            consumer.stdout.close()
            headgate(broker, "produce", "follow", stdin=b"third\n")
            assert consumer.wait(TIMEOUT_S) == 0
            assert consumer.stderr.read() == b""
        finally:
            consumer.kill()


def test_ctrl_c_while_a_command_is_imported() -> None:
    code = """if True:
        import os, signal, sys
        class CtrlC:
            def find_spec(self, name, *place):
                if name == "headgate.broker.cli.app":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, CtrlC())
        from headgate.broker.cli.main import main
        sys.exit(main(["topic", "list"]))"""
    done = subprocess.run(python("-c", code), capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("number", "ignored"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
    ids=["ctrl-c", "SIGTERM", "SIGTERM in the background"],
)
def test_produce_that_is_interrupted_writes_what_it_has_read(broker: BrokerProcess, number: signal.Signals, ignored: bool) -> None:
    topic = f"stopped-{number.name}-{ignored}"
    headgate(broker, "topic", "create", topic, "-p", "1")
    with (
        subprocess.Popen(["yes", "a line"], stdout=subprocess.PIPE) as source,
        subprocess.Popen(
            python("-m", "headgate.broker.cli.main", "produce", topic, ignored=[signal.SIGINT] if ignored else []),
            stdin=source.stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(broker),
        ) as producer,
    ):  # fmt: skip
        try:
            # The command is under way once there is a record.
            headgate(broker, "consume", topic, "-b", "-n", "1")
            producer.send_signal(number)
            _, said = producer.communicate(timeout=TIMEOUT_S)
        finally:
            producer.kill()
            source.kill()
    assert producer.returncode == 130
    (end,) = json.loads(headgate(broker, "topic", "describe", topic, "--json").stdout)[0]["partitions"]
    assert said == f"produce: {end['high_watermark']:,} records written to {topic}\n"


def test_a_broker_that_goes_away_is_told_of_and_waited_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", tmp_path / "log") as broker:
        broker.start()
        headgate(broker, "topic", "create", "patient", "-p", "1")
        consumer, producer = (
            subprocess.Popen(
                [sys.executable, "-m", "headgate.broker.cli.main", *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, cwd=ROOT, env=environment(broker),
            )
            for arguments in (("consume", "patient", "-b"), ("produce", "patient"))
        )  # fmt: skip
        with consumer, producer:
            try:
                assert consumer.stdout and consumer.stderr and producer.stdin and producer.stderr
                producer.stdin.write(b"before\n")
                assert consumer.stdout.readline() == b"before\n"
                broker.kill()
                producer.stdin.write(b"meanwhile\n")
                said = "no broker answers, still trying: broker cannot be reached."
                assert consumer.stderr.readline().decode().startswith(f"consume: {said}")
                assert producer.stderr.readline().decode().startswith(f"produce: {said}")
                broker.start()
                assert consumer.stderr.readline() == b"consume: a broker answers again\n"
                assert producer.stderr.readline() == b"produce: a broker answers again\n"
                assert consumer.stdout.readline() == b"meanwhile\n"
                producer.stdin.close()
                assert producer.wait(TIMEOUT_S) == 0
                assert producer.stderr.read() == b"produce: 2 records written to patient\n"
            finally:
                consumer.kill()
                producer.kill()
    broker.check_output()


# -- a terminal


def test_a_terminal_gets_tables_and_is_asked_before_records_are_deleted(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "drawn", "-p", "1")
    code, seen = on_terminal(broker, "topic", "list")
    assert code == 0 and "─" in seen and "drawn" in seen
    code, seen = on_terminal(broker, "topic", "delete", "drawn", typed=b"n\n")
    assert code == 130 and "Delete drawn" in seen
    headgate(broker, "topic", "describe", "drawn")
    code, seen = on_terminal(broker, "topic", "delete", "drawn", typed=b"y\n")
    assert code == 0 and "topic drawn deleted" in seen


def test_records_cannot_command_a_terminal(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "escape", "-p", "1")
    headgate(broker, "produce", "escape", stdin=b"\x1b[2J red\xff\n")
    code, seen = on_terminal(broker, "consume", "escape", "-b", "-e")
    assert code == 0 and "\x1b" not in seen and "\\x1b[2J red" in seen


def test_names_cannot_command_a_terminal(broker: BrokerProcess) -> None:
    """A group's name may hold any characters, but every program reads it as one line."""
    headgate(broker, "topic", "create", "named", "-p", "1")
    name, shown = "\x1b[2J\tred\n", "\\x1b[2J\\tred\\n"
    done = headgate(broker, "group", "reset", name, "--topic", "named", "--to-earliest", "--execute")
    assert f"group {shown}: 1 position moved" in done.stdout.splitlines()
    assert f"{shown}\tEmpty\t-\t0\t1\t0" in headgate(broker, "group", "list").stdout.splitlines()
    assert name in [one["group"] for one in json.loads(headgate(broker, "group", "list", "--json").stdout)]
    for arguments in (("group", "list"), ("group", "describe", name), ("group", "describe", name + "?")):
        _, seen = on_terminal(broker, *arguments)
        assert "\x1b[2J" not in seen and "\\x1b[2J" in seen, seen
    headgate(broker, "group", "delete", name)


# -- mistakes


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("topic", "describe", "nope"), 1, ["topic does not exist", "nope", "headgate topic list"]),
        (("topic", "delete", "nope"), 1, ["topic does not exist", "nope"]),
        (("topic", "create", "a b"), 1, ["topic name", "a b"]),
        (("segment", "list", "--topic", "nope"), 1, ["topic does not exist", "nope", "headgate topic list"]),
        (("topic", "create", "x", "-p", "0"), 2, ["partitions", "--help"]),
        (("topic", "create", "x", "-p", "1000000"), 1, ["partitions", "1000000"]),
        (("topic", "create", "x", "-c", "retention.ms"), 2, ["NAME=VALUE"]),
        (("topic", "create", "x", "-c", "retention.mss=1"), 1, ["retention.mss", "--all"]),
        (("topic", "create", "x", "-c", "retention.ms=1", "-c", "retention.ms=2"), 2, ["--config", "retention.ms=2", "once"]),
        (("topic", "create", "x", "-p", "99999999999"), 2, ["--partitions", "2147483647"]),
        (("topic", "alter", "x", "-p", "99999999999"), 2, ["--partitions", "2147483647"]),
        (("segment", "move", "9" * 20), 2, ["SEGMENT", str(2**63 - 1)]),
        (("segment", "move", "1", "--broker", "99999999999"), 2, ["--broker", "2147483647"]),
        (("segment", "split", "1", "--at", "99999999999"), 2, ["--at", "2147483647"]),
        (("segment", "merge", "1", "9" * 20), 2, ["NEXT", str(2**63 - 1)]),
        (("drain", "99999999999"), 2, ["BROKER", "2147483647"]),
        (("capacity", "open", "99999999999"), 2, ["BROKERS", "2147483647"]),
        (("gate", "open", "x", "g", "--each", "9" * 20), 2, ["--each", str(2**63 - 1)]),
        (("gate", "open", "x", "g", "--rows", "1," + "9" * 20), 2, ["--rows", str(2**63 - 1)]),
        (("topic", "alter", "x"), 2, ["nothing to change"]),
        (("topic", "creat"), 2, ["No such command", "headgate topic --help"]),
        (("consume",), 2, ["TOPIC", "headgate consume --help"]),
        (("consume", "nope", "-e"), 1, ["topic does not exist", "nope"]),
        (("consume", "x", "-b", "-o", "1"), 2, ["only one of"]),
        (("consume", "x", "-t", "yesterday"), 2, ["not a time", "yesterday"]),
        (("produce", "nope"), 1, ["topic does not exist", "headgate topic create"]),
        (("produce", "x", "/no/such/file"), 2, ["cannot be read", "/no/such/file"]),
        (("produce", "x", "/"), 2, ["cannot be read", "is a directory", "path=`/`"]),
        (("produce", "x", "-z", "rar"), 2, ["--compression", "rar", "zstd"]),
        (("status", "--window", "1h"), 2, ["--window", "1h"]),
        (("status", "--cluster", "nonsense"), 2, ["HOST:GRPC_PORT", "nonsense"]),
        (("frobnicate",), 2, ["No such command", "frobnicate"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line_with_a_hint(broker: BrokerProcess, arguments: tuple[str, ...], code: int, parts: list[str]) -> None:
    done = headgate(broker, *arguments, stdin=b"a line\n", fails=True)
    line = error_line(done)
    assert done.returncode == code and line.startswith("headgate")
    assert all(part in line for part in parts), line


def test_a_line_without_its_key_says_which(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "keyless", "-p", "1")
    done = headgate(broker, "produce", "keyless", "-k", ":", stdin=b"a:1\nb\n", fails=True)
    assert "line has no key separator. line=`2`" in done.stderr
    assert "produce: 1 record written to keyless" in done.stderr


def test_records_that_are_refused_are_told_of(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "small", "-p", "1", "-c", "max.message.bytes=1000")
    done = headgate(broker, "produce", "small", stdin=b"fits\n" + b"x" * 2000 + b"\n", fails=True)
    assert done.returncode == 1
    told, counted = done.stderr.splitlines()
    assert "a record was refused: " in told
    assert "max.message.bytes" in told
    assert counted.startswith("produce: ")
    assert counted.endswith("of 2 records written to small")


def test_streams_that_are_closed(broker: BrokerProcess) -> None:
    headgate(broker, "topic", "create", "closed", "-p", "1")
    for command in ("produce closed <&-", "produce closed <&- >&-", "consume closed -b -e <&- >&-", "topic list >&-"):
        done = subprocess.run(
            ["/bin/sh", "-c", f"{sys.executable} -m headgate.broker.cli.main {command}"],
            capture_output=True, cwd=ROOT, env=environment(broker), timeout=TIMEOUT_S, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), command


def test_the_port_of_another_protocol_is_said_at_once(broker: BrokerProcess) -> None:
    for port in (broker.kafka_port, broker.http_port):
        done = headgate(None, "topic", "list", "--cluster", f"{HOST}:{port}", fails=True)
        assert done.returncode == 2
        assert "no gRPC port" in error_line(done)
        assert "9095" in done.stderr


def test_no_broker_is_said_at_once() -> None:
    done = headgate(None, "status", "--cluster", f"{HOST}:{free_port()}", fails=True)
    assert "no broker listens there" in error_line(done) and "headgate up" in error_line(done)


def test_help_and_version() -> None:
    for arguments in ((), ("topic",), ("--help",), ("topic", "--help"), ("up", "--help"), ("consume", "--help")):
        done = headgate(None, *arguments)
        assert "Usage: headgate" in done.stdout and done.stderr == ""
    assert re.fullmatch(r"headgate \d+\.\d+\.\d+ \(commit [0-9a-f]{12}(, changed)?\)\n", headgate(None, "--version").stdout)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-02", 86_400_000),
        ("15m", 10_000_000 - 900_000),
        ("1d", 0),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time_ms(text, now_ms=10_000_000) == expected


@pytest.mark.parametrize("text", ["", "x", "2023-13-01", "-5", "9" * 30, "1e3"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidError, match="not a time"):
        parse_time_ms(text, now_ms=0)
