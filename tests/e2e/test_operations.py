"""The documents of operation, followed as a reader follows them: certificates, data into the compose file's cluster, upgrade,
backup.

Runs: OpenSSL, brokers with TLS, every console, Python and TOML block of `deploy/certificates.md`, `upgrade.md` and `backup.md`, and
the commands at the head of `compose.yaml` without containers. Only ports and directories differ from the text. The backup is made
while producers write. Compared: each record that was acked before the copy, and the position of a group. A mismatch means that a
document promises something that does not work, or that a copy loses acked records.
"""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import documents
from tests.support.broker_process import PATIENCE_S, ROOT
from tests.support.ports import free_port
from tests.support.waiting import until

DEPLOY = ROOT / "deploy"
PARTITIONS = 3


class Desk:
    """A directory with the files of a reader, and the brokers that run in it. `kafka`: settings of Kafka clients."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.brokers: list[subprocess.Popen[bytes]] = []
        self.ports = [self._ports(), self._ports()]
        """Of each broker: the environment with its ports."""
        self.kafka = {
            "bootstrap.servers": f"localhost:{self.ports[0]['HEADGATE_KAFKA_PORT']}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(place / "ca.pem"),
        }

    @staticmethod
    def _ports() -> dict[str, str]:
        return {f"HEADGATE_{name}_PORT": str(free_port()) for name in ("KAFKA", "GRPC", "GRPC_MTLS", "HTTP")}

    @property
    def cluster(self) -> str:
        return f"tls://localhost:{self.ports[0]['HEADGATE_GRPC_PORT']}?ca={self.place / 'ca.pem'}"

    def text(self, text: str) -> str:
        """A text of a document with the ports of the first broker."""
        text = text.replace("localhost:9095", f"localhost:{self.ports[0]['HEADGATE_GRPC_PORT']}")
        return text.replace("localhost:9092", self.kafka["bootstrap.servers"])

    def run(self, *command: str) -> str:
        return documents.run(list(command), self.place, {**self.ports[0], "HEADGATE_CLUSTER": self.cluster})

    def sh(self, command: str) -> str:
        """Run a line of a document. A broker runs on beside it, and is waited for."""
        command = self.text(command)
        if not command.startswith("headgate broker"):
            return self.run("/bin/sh", "-ec", command)
        self.start(command)
        return ""

    def start(self, command: str, number: int = 0) -> None:
        """Start a broker and wait until it is healthy."""
        environment = documents.environment(self.ports[number])
        with (self.place / "brokers.log").open("ab") as log:
            broker = subprocess.Popen(f"exec {command}", shell=True, cwd=self.place, env=environment, stdout=log, stderr=log)
        self.brokers.append(broker)
        config = ["--config", "broker.toml"] if "broker.toml" in command else []
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(
                ["headgate", "health", *config], cwd=self.place, env=environment, capture_output=True, check=False
            )
            if done.returncode == 0:
                return
            log_text = (self.place / "brokers.log").read_text()
            assert broker.poll() is None and time.monotonic() < deadline, f"{done.stderr.decode()}\n{log_text[-4000:]}"
            time.sleep(0.1)

    def end(self, how: int) -> int:
        """End the broker that was started first. Returns its exit code."""
        broker = self.brokers.pop(0)
        broker.send_signal(how)
        return broker.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    found = Desk(tmp_path_factory.mktemp("operations"))
    try:
        yield found
    finally:
        for broker in found.brokers:
            broker.kill()
            broker.wait()


def consoles(name: str) -> list[list[str]]:
    """The commands of each console block of a document."""
    return [documents.commands(text) for language, text in documents.blocks(DEPLOY / name) if language == "console"]


def test_certificates(desk: Desk) -> None:
    """Three commands make them; a broker and its clients use them."""
    assert len(consoles("certificates.md")[0]) == 3
    for language, text in documents.blocks(DEPLOY / "certificates.md"):
        if language == "toml":
            (desk.place / "broker.toml").write_text(text)
        elif language == "python":
            desk.run(sys.executable, "-c", desk.text(text))
        else:
            for command in documents.commands(text):
                desk.sh(command)


def test_data_gets_into_the_cluster_of_the_compose_file(desk: Desk) -> None:
    """Its commands, in place of containers, with directories of this test."""
    compose = (DEPLOY / "compose.yaml").read_text()
    service = yaml.safe_load(compose)["services"]["example"]
    desk.run(*service["entrypoint"], service["command"][0].replace("/data/", f"{desk.place}/data/"))
    floods = (DEPLOY / "floods.yaml").read_text()
    (desk.place / "floods.yaml").write_text(floods.replace("/data/", f"{desk.place}/data/"))
    (desk.place / "FILE").write_text("a line\n")
    lines = re.findall(r"^#   exec (?:-T )?(?:dagster|brokers) (headgate .*?)(?:  +#.*)?$", compose, re.M)
    assert [line.split()[1] for line in lines] == ["flood", "consume", "produce"]
    for line in lines:
        desk.sh(line.replace("/floods.yaml", "floods.yaml"))
    assert desk.sh("headgate consume clicks --from-beginning --exit-at-end").count("\n") == 30_000 + 2


def test_upgrade(desk: Desk) -> None:
    """Two brokers, one after the other ended and started, as the page says."""
    assert desk.place.joinpath("broker.toml").exists(), "test_certificates ran before"
    command = "headgate broker --config broker.toml --store headgate-data --advertised-host localhost --broker-id {}"
    desk.start(command.format(2), number=1)
    before, after = [
        documents.commands(text) for language, text in documents.blocks(DEPLOY / "upgrade.md") if language == "console"
    ]
    for line in before:
        desk.sh(line)
    assert desk.end(signal.SIGTERM) == 0
    desk.start(command.format(1))
    for line in after:
        desk.sh(line.replace("health", "health --config broker.toml"))


class Writing:
    """A thread with an idempotent producer that writes numbered records into each partition of a topic.

    `acked`: by partition, the numbers that are acked, in their order.
    """

    def __init__(self, desk: Desk, topic: str) -> None:
        self.acked: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self._producer = Producer({**desk.kafka, "enable.idempotence": True, "linger.ms": 1})
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._over.is_set():
                return
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0.002)

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            self.acked[message.partition() or 0].append(int(message.value() or b""))

    def wait(self, more: int) -> None:
        """Wait until each partition has this many acks more."""
        wanted = [len(one) + more for one in self.acked.values()]
        until(
            lambda: all(len(one) >= least for one, least in zip(self.acked.values(), wanted, strict=True)), "the producer is acked"
        )

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        # The producer would live as long as its records, which know this object, and print lines until they time out.
        self._producer.purge()
        self._producer.flush(PATIENCE_S)


def test_backup(desk: Desk) -> None:
    """While a producer writes, a segment moves and a topic is made, the store is copied; brokers then start on the copy."""
    admin = AdminClient(desk.kafka)
    admin.create_topics([NewTopic("live", PARTITIONS, 1)])["live"].result(PATIENCE_S)
    writing = Writing(desk, "live")
    writing.wait(200)
    reader = Consumer({**desk.kafka, "group.id": "readers", "enable.auto.commit": False})
    position = TopicPartition("live", 0, 100)
    reader.commit(offsets=[position], asynchronous=False)
    making, restoring = consoles("backup.md")
    before = {partition: list(numbers) for partition, numbers in writing.acked.items()}
    busy = threading.Thread(target=desk.sh, args=("headgate drain 2",))  # while the first line copies
    busy.start()
    for line in making:
        desk.sh(line)
        writing.wait(50)
    busy.join()
    admin.create_topics([NewTopic("later", 1, 1)])["later"].result(PATIENCE_S)
    reader.commit(offsets=[TopicPartition("live", 0, 150)], asynchronous=False)
    reader.close()
    while desk.brokers:
        desk.end(signal.SIGKILL)
    writing.end()
    for line in restoring:
        desk.sh(line)
    plain = {"bootstrap.servers": desk.kafka["bootstrap.servers"]}
    found = read_all(plain)
    for partition, numbers in before.items():
        there = found[partition]
        assert there[: len(numbers)] == numbers, f"the copy lacks acked records. partition=`{partition}`"
        assert there == list(range(len(there))), "what came later is a beginning, in its order"
    again = Consumer({**plain, "group.id": "readers"})
    (kept,) = again.committed([TopicPartition("live", 0)], timeout=PATIENCE_S)
    again.close()
    assert kept.offset == position.offset
    assert "later" not in AdminClient(plain).list_topics(timeout=PATIENCE_S).topics
    producer = Producer(plain)
    producer.produce("live", b"after", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    assert desk.end(signal.SIGTERM) == 0
    desk.sh(making[-1])


def read_all(kafka: dict[str, str]) -> dict[int, list[int]]:
    """By partition: the numbers of its records."""
    consumer = Consumer({**kafka, "group.id": "judge", "auto.offset.reset": "earliest"})
    found: dict[int, list[int]] = {}
    for partition in range(PARTITIONS):
        _, end = consumer.get_watermark_offsets(TopicPartition("live", partition), timeout=PATIENCE_S)
        consumer.assign([TopicPartition("live", partition, 0)])
        messages: list[Message] = []
        deadline = time.monotonic() + PATIENCE_S
        while not messages or (messages[-1].offset() or 0) < end - 1:
            assert time.monotonic() < deadline, "the copy is not read to its end"
            messages += [one for one in consumer.consume(10_000, 1.0) if one.error() is None]
        found[partition] = [int(one.value() or b"") for one in messages]
    consumer.close()
    return found
