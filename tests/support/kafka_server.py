"""A real Apache Kafka on loopback, as the reference of comparisons. Its jars come from Maven Central, its data is temporary.

KRaft, with any number of nodes; each is controller and broker. `missing` gives the reason if it cannot run here (no Java, no
Maven).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.broker_process import HOST, PATIENCE_S
from tests.support.ports import free_port

VERSION = "4.1.0"
CLUSTER_ID = "aGVhZGdhdGUtdmVyaWZ5MQ"
"""A UUID in KRaft's own encoding."""
HEAP = "320m"
POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>headgate</groupId><artifactId>kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"""
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def missing() -> str | None:
    """The reason why Kafka cannot run here; None: it can."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None


def jars() -> Path:
    """The directory with Kafka and its run-time dependencies, downloaded once per user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / f"headgate-tests/kafka-{VERSION}"
    done = home / "complete"
    if not done.exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", COPY, "-DincludeScope=runtime", f"-DoutputDirectory={home / 'jars'}"]
        subprocess.run(command, cwd=home, check=True, capture_output=True, timeout=600)
        done.touch()
    return home / "jars"


class KafkaServer:
    """Nodes 1, 2, 3 ... of one Kafka. Use it as a context manager.

    Args:
        config: properties of every node, in addition to those that form a cluster on loopback.
    """

    def __init__(self, directory: Path, nodes: int = 1, config: Mapping[str, str] | None = None) -> None:
        self._directory, self._config = directory, dict(config or {})
        self.numbers = range(1, nodes + 1)
        self.ports = {number: free_port() for number in self.numbers}
        self._controllers = {number: free_port() for number in self.numbers}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def __enter__(self) -> Self:
        for number in self.numbers:
            self._format(number)
        for number in self.numbers:
            self.start(number)
        for number in self.numbers:
            self.wait_serving(number)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in list(self._processes):
            self.kill(number)

    def _java(self, main: str, *arguments: str) -> list[str]:
        return ["java", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-cp", f"{jars()}/*", main, *arguments]

    def _format(self, number: int) -> None:
        place = self._directory / str(number)
        place.mkdir(parents=True)
        voters = ",".join(f"{one}@{HOST}:{port}" for one, port in self._controllers.items())
        copies = str(min(len(self.numbers), 3))
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{HOST}:{self.ports[number]},CONTROLLER://{HOST}:{self._controllers[number]}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.ports[number]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(place / "data"),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "500",
            "log.cleaner.dedupe.buffer.size": "16000000",
            **self._config,
        }
        file = place / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        command = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file))
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)

    def start(self, number: int) -> None:
        """Start a node and return at once."""
        place = self._directory / str(number)
        with (place / "output").open("ab") as output:
            self._processes[number] = subprocess.Popen(
                self._java("kafka.Kafka", str(place / "server.properties")),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=place,
                start_new_session=True,
            )

    def wait_serving(self, number: int, timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection((HOST, self.ports[number]), 1).close()
                return
            except OSError:
                tail = (self._directory / str(number) / "output").read_text(errors="replace")[-2_000:]
                assert self._processes[number].poll() is None, f"a Kafka node ended. node=`{number}`\n{tail}"
                assert time.monotonic() < deadline, f"a Kafka node does not serve. node=`{number}`\n{tail}"
                time.sleep(0.1)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes.pop(number).wait(PATIENCE_S)

    def pause(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)
