"""`headgate group`, against a real broker with a confluent-kafka group.

Runs the commands as processes without a terminal. Compared: output, exit codes, and the positions that the client sees afterwards.
A mismatch means that a user or a script gets wrong information, or that a command that only shows positions moves them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support import commands
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.waiting import until

TIMEOUT_S = 60.0
RECORDS = 40
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the topics `a` and `b`: partition 0 has records of one second each, partition 1 has none."""
    directory = tmp_path_factory.mktemp("cli-groups")
    with BrokerProcess(directory / "store", directory / "log", env={"HEADGATE_NUM_PARTITIONS": "2"}) as running:
        running.start()
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for topic in ("a", "b"):
            for number in range(RECORDS):
                producer.produce(topic, b"%d" % number, partition=0, timestamp=FIRST_MS + number * 1000)
        assert producer.flush(30) == 0
        yield running
    running.check_output()


def headgate(broker: BrokerProcess, *arguments: str, code: int = 0) -> str:
    """Run a command; returns stdout, or stderr if it must fail."""
    done = run(broker, *arguments, code=code)
    return done.stderr if code else done.stdout


def run(broker: BrokerProcess, *arguments: str, code: int) -> subprocess.CompletedProcess[str]:
    done = commands.run(["group", *arguments, "--cluster", f"{HOST}:{broker.grpc_port}"], os.environ, timeout_s=TIMEOUT_S)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def consumer(broker: BrokerProcess, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )


def commit(broker: BrokerProcess, group: str, topic: str, offset: int) -> None:
    client = consumer(broker, group)
    client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    client.close()


def committed(broker: BrokerProcess, group: str, topic: str = "a", partition: int = 0) -> int:
    """The position that the client sees; -1001 if it sees none."""
    client = consumer(broker, group)
    (place,) = client.committed([TopicPartition(topic, partition)], timeout=60)
    client.close()
    return int(place.offset)


def test_list_and_describe(broker: BrokerProcess) -> None:
    commit(broker, "listed", "a", 30)
    assert "listed\tEmpty\t-\t0\t1\t10" in headgate(broker, "list").splitlines()
    (row,) = [row for row in json.loads(headgate(broker, "list", "--json")) if row["group"] == "listed"]
    assert (row["members"], row["positions"], row["lag_records"]) == (0, 1, 10)
    lines = headgate(broker, "describe", "listed").splitlines()
    assert lines[0] == "group listed: Empty, generation 0, 0 members, 10 records behind"
    assert lines[2] == "a\t0\t30\t40\t10\t-"
    (shown,) = json.loads(headgate(broker, "describe", "listed", "--json"))
    (position,) = shown["positions"]
    assert (position["offset"], position["lag_records"], position["high_watermark"]) == (30, 10, 40)


def test_members_are_described(broker: BrokerProcess) -> None:
    client = consumer(broker, "read")
    client.subscribe(["a"])
    until(lambda: client.poll(0.2), "the group reads")
    (shown,) = json.loads(headgate(broker, "describe", "read", "--json"))
    assert (shown["state"], shown["protocol"]) == ("Stable", "range")
    (member,) = shown["members"]
    assert (member["client_id"], member["client_host"], member["partitions"]) == ("rdkafka", "127.0.0.1", 2)
    assert [row["member_id"] for row in shown["positions"]] == [member["member_id"]] * 2
    for arguments in (("reset", "read", "--topic", "a", "--to-latest", "--execute"), ("delete", "read")):
        assert "group has members: stop them first" in headgate(broker, *arguments, code=1)
    client.close()
    headgate(broker, "delete", "read")


@pytest.mark.parametrize(
    ("place", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), RECORDS),
        (("--to-offset", "17"), 17),
        (("--to-offset", "1000"), RECORDS),
        (("--to-time", str(FIRST_MS + 5_000)), 5),
        (("--to-time", "2023-11-14T22:13:26"), 6),
        (("--to-time", "1h"), RECORDS),
    ],
)
def test_reset_shows_first_and_then_moves(broker: BrokerProcess, place: tuple[str, ...], offset: int) -> None:
    commit(broker, "moved", "a", 11)
    shown = headgate(broker, "reset", "moved", *place)
    assert f"a\t0\t11\t{offset}" in shown.splitlines() and "nothing was changed" in shown
    assert committed(broker, "moved") == 11
    answer = json.loads(headgate(broker, "reset", "moved", *place, "--execute", "--json"))
    assert answer["executed"] and answer["positions"] == [{"topic": "a", "partition": 0, "before": 11, "after": offset}]
    assert committed(broker, "moved") == offset


def test_reset_of_chosen_topics_and_partitions(broker: BrokerProcess) -> None:
    headgate(broker, "reset", "chosen", "--topic", "b", "--to-offset", "3", "--execute")
    assert (committed(broker, "chosen", "b"), committed(broker, "chosen", "b", 1), committed(broker, "chosen")) == (3, 0, -1001)
    headgate(broker, "reset", "chosen", "--topic", "a", "--partition", "0", "--to-latest", "--execute")
    assert (committed(broker, "chosen"), committed(broker, "chosen", "a", 1)) == (RECORDS, -1001)


def test_delete(broker: BrokerProcess) -> None:
    for group in ("gone", "gone-too"):
        commit(broker, group, "a", 1)
    assert headgate(broker, "delete", "gone", "gone-too").splitlines() == ["group gone deleted", "group gone-too deleted"]
    assert committed(broker, "gone") == -1001


def test_one_wrong_name_does_not_spoil_the_others(broker: BrokerProcess) -> None:
    for group in ("first", "last"):
        commit(broker, group, "a", 1)
    for action, said in (("describe", "group {}: Empty"), ("delete", "group {} deleted")):
        done = run(broker, action, "first", "none", "last", "nobody", code=1)
        assert len(done.stderr.splitlines()) == 2, done.stderr
        assert all(said.format(name) in done.stdout for name in ("first", "last")), done.stdout
        assert all(f"group does not exist. group=`{name}`" in done.stderr for name in ("none", "nobody")), done.stderr
    assert committed(broker, "last") == -1001


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("describe", "none"), 1, "group does not exist. group=`none` (`headgate group list` shows the groups)"),
        (("delete", "none"), 1, "group does not exist"),
        (("reset", "none", "--to-latest"), 1, "group does not exist"),
        (("reset", "none", "--to-latest", "--topic", "none"), 1, "topic does not exist"),
        (("reset", "none"), 2, "give one of --to-earliest, --to-latest, --to-offset and --to-time"),
        (("reset", "none", "--to-latest", "--to-earliest"), 2, "give one of"),
        (("reset", "none", "--to-latest", "--partition", "0"), 2, "--partition needs exactly one --topic"),
        (("reset", "none", "--to-time", "soon"), 2, "not a time"),
        (
            ("reset", "none", "--to-latest", "--topic", "a", "--partition", "7"),
            1,
            "partition does not exist. topic=`a` partition=`7` partitions=`2` (`headgate topic describe` shows the partitions)",
        ),
        (("reset",), 2, "Missing argument"),
    ],
)
def test_mistakes_are_told_on_one_line(broker: BrokerProcess, arguments: tuple[str, ...], code: int, said: str) -> None:
    told = headgate(broker, *arguments, code=code)
    assert said in told and len(told.splitlines()) == 1


def test_the_help_names_the_commands() -> None:
    help_text = commands.run(["group"], os.environ).stdout
    assert all(name in help_text for name in ("list", "describe", "reset", "delete"))
