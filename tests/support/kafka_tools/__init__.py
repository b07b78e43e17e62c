"""Kafka's own command line tools, from Maven Central. `maven.missing` gives the reason if they cannot run here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import maven

VERSION = "4.4.0"
ARTIFACTS = (f"org.apache.kafka:kafka-tools:{VERSION}", f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-nop:1.7.36")
CLASSES = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
END = "\x1e"
BETWEEN = "\x1f"


class Tools:
    """One JVM that runs the tools, each as its shell script would. Use it as a context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __enter__(self) -> Self:
        jars = maven.jars(f"kafka-tools-{VERSION}", ARTIFACTS)
        program = Path(__file__).parent / "Tools.java"
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*", str(program)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, tool: str, *arguments: str) -> tuple[int, str]:
        """The exit code and the output of a tool. It gets the bootstrap servers."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        print(BETWEEN.join((CLASSES[tool], "--bootstrap-server", self._bootstrap, *arguments)), file=process.stdin, flush=True)
        output: list[str] = []
        for line in process.stdout:
            text, end, code = line.partition(END)
            output.append(text)
            if end:
                return int(code), "".join(output)
        raise AssertionError(f"the tools ended: {''.join(output)}")

    def __call__(self, tool: str, *arguments: str) -> str:
        """The output of a tool, which succeeds."""
        code, output = self.run(tool, *arguments)
        assert code == 0, f"{tool} {' '.join(arguments)} ended with {code}:\n{output}"
        return output
