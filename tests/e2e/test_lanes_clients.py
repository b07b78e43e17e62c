"""Replays through a lane by clients of six libraries, while the lane and the leads are killed.

Runs: two brokers and a lane over one directory, and a topic with history and live records behind it. First each client reads it
alone. Then in each round all read it from the beginning at the same time, while the lane or a broker is killed or stopped.
Compared: what each got with the topic, every offset once and in order. Reported: how often leads sent a client that reads alone to
the lane, which is once for each partition if its library follows. A mismatch means that a hand-over skips, repeats or reorders
records with that library, or that a client lost its place.

HEADGATE_LANES_ROUNDS sets the number of rounds (30), HEADGATE_LANES_SEED replays a run's choices.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.compat.matrix import artifacts
from tests.compat.matrix.artifacts import Program
from tests.conftest import BrokerFactory
from tests.e2e.test_lanes import PARTITIONS, SEED, hurt, judge, metric, with_lane
from tests.support.cluster import Brokers
from tests.support.writers import AiokafkaReader, ConfluentReader, KafkaPythonReader, Reader

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ROUNDS = int(os.environ.get("HEADGATE_LANES_ROUNDS", "30"))
JAVA, FRANZ, SARAMA = "4.4.0", "v1.22.3", "v1.61.1"


class ProgramReader(Reader):
    """A client in a process of its own, which prints what it reads."""

    def __init__(self, program: Program, name: str, bootstrap: str) -> None:
        super().__init__(bootstrap, "t", PARTITIONS)
        self.name, self._program = name, program

    def run(self) -> None:
        command = [*self._program.command, self.bootstrap, self.topic, str(len(self.seen))]
        environment = {**os.environ, **self._program.env}
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment) as process,
        ):
            assert process.stdin is not None and process.stdout is not None
            ended = process.stdin
            self.end = ended.close
            try:
                for line in process.stdout:
                    number, offset, value = line.split(b" ")
                    self.seen[int(number)].append((int(offset), base64.b64decode(value)))
            finally:
                process.kill()
            said.seek(0)
            text = said.read()[-2000:].decode(errors="replace")
        assert self._stopping.is_set(), f"{self.name} ended by itself. exit_code=`{process.returncode}`\n{text}"

    def stop(self) -> None:
        super().stop()
        self.end()


def readers() -> dict[str, Callable[[str], Reader]]:
    """The clients by name."""
    jars = (f"org.apache.kafka:kafka-clients:{JAVA}", "org.slf4j:slf4j-nop:1.7.36")
    programs = {
        "Java": artifacts.java(f"clients-{JAVA}", jars, "Read.java"),
        "franz-go": artifacts.go("github.com/twmb/franz-go", FRANZ, "go_franz_read"),
        "Sarama": artifacts.go("github.com/IBM/sarama", SARAMA, "go_sarama_read"),
    }
    libraries = {"librdkafka": ConfluentReader, "kafka-python": KafkaPythonReader, "aiokafka": AiokafkaReader}
    return {
        **{name: partial(kind, topic="t", partitions=PARTITIONS) for name, kind in libraries.items()},
        **{name: partial(ProgramReader, program, name) for name, program in programs.items()},
    }


def sent(brokers: Brokers) -> int:
    """How often leads have sent a reader of a partition to the lane."""
    return round(sum(metric(one, "headgate_lane_sent_readers_total") for one in brokers.all))


@pytest.mark.timeout(3600)
async def test_replays_by_all_clients_through_kills(
    make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]
) -> None:
    draw = random.Random(SEED)
    report(f"replays by all clients: HEADGATE_LANES_SEED={SEED}")
    kinds = await asyncio.to_thread(readers)
    brokers, lane, log = await with_lane(make_broker, tmp_path / "store")
    wrong: list[str] = []

    def read(names: list[str], during: Callable[[], str]) -> None:
        running = [kinds[name](brokers.bootstrap) for name in names]
        for one in running:
            one.start()
        did, began = during(), time.monotonic()
        found = judge(running, log)
        wrong.extend(f"{did}: {line}" for line in found)
        report(f"{did}: {', '.join(names)} read all {time.monotonic() - began:.1f} s later; wrong: {len(found)}")

    for name in kinds:
        before = sent(brokers)
        await asyncio.to_thread(read, [name], lambda: "no fault")
        report(f"{name}: sent to the lane {sent(brokers) - before} times, {PARTITIONS} partitions")
    for number in range(ROUNDS):
        await asyncio.to_thread(read, list(kinds), lambda number=number: f"round {number}, {hurt(brokers, lane, draw)}")
    assert not wrong, wrong
