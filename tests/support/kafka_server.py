"""A real Apache Kafka on loopback, as the reference of comparisons. Its jars come from Maven Central, its data is temporary.

KRaft, with any number of nodes; each is controller and broker. `maven.missing` gives the reason if it cannot run here.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import maven
from tests.support.broker_process import HOST, PATIENCE_S
from tests.support.ports import free_port

VERSION = "4.1.0"
CLUSTER_ID = "aGVhZGdhdGUtdmVyaWZ5MQ"
"""A UUID in KRaft's own encoding."""
ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3")
SMALL_JVM = ("-Xmx320m", "-XX:+UseSerialGC")
"""Options of a node's JVM in tests."""


def jars() -> Path:
    """The directory with Kafka and its run-time dependencies."""
    return maven.jars(f"kafka-{VERSION}", ARTIFACTS)


class KafkaServer:
    """Nodes 1, 2, 3 ... of one Kafka. Use it as a context manager.

    Args:
        config: properties of every node, in addition to those that form a cluster on loopback.
        listeners: protocols of further listeners of the first node, with their ports.
        jvm: options of a node's JVM.
        prefix: start of a node's command, such as ``taskset``.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, int] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
        prefix: Sequence[str] = (),
    ) -> None:
        self._listeners = dict(listeners or {})
        self._directory, self._config = directory, dict(config or {})
        self._jvm, self._prefix = jvm, prefix
        self.numbers = range(1, nodes + 1)
        self.ports = {number: free_port() for number in self.numbers}
        self._controllers = {number: free_port() for number in self.numbers}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def pid(self, number: int) -> int:
        """The process of a running node."""
        return self._processes[number].pid

    def __enter__(self) -> Self:
        for number in self.numbers:
            self._format(number)
        try:
            for number in self.numbers:
                self.start(number)
            for number in self.numbers:
                self.wait_serving(number)
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._kill_all()

    def _kill_all(self) -> None:
        for number in list(self._processes):
            self.kill(number)

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [*self._prefix, "java", *self._jvm, "-cp", f"{jars()}/*", main, *arguments]

    def _format(self, number: int) -> None:
        place = self._directory / str(number)
        place.mkdir(parents=True)
        voters = ",".join(f"{one}@{HOST}:{port}" for one, port in self._controllers.items())
        copies = str(min(len(self.numbers), 3))
        public = {"PLAINTEXT": self.ports[number], **(self._listeners if number == 1 else {})}
        shown = ",".join(f"{protocol}://{HOST}:{port}" for protocol, port in public.items())
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": f"{shown},CONTROLLER://{HOST}:{self._controllers[number]}",
            "advertised.listeners": shown,
            "listener.security.protocol.map": ",".join(f"{one}:{one}" for one in public) + ",CONTROLLER:PLAINTEXT",
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
