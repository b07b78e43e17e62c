"""History by reference in a bucket: gates from end to end, and a flood by Spark while the bucket throttles.

Runs: a broker process over an S3 server, through a proxy that refuses requests; files that are uploaded to the bucket, and the
command line that runs a backfill. Compared: every record with the uploaded rows, or with the source as plain Python reads it. A
mismatch means that a guarantee holds for a directory only, or that a refused request loses or doubles history, or shows a part
of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.broker.client import Admin, Gate, GateAdmin, GateState, Place
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support import commands
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.errors import raises
from tests.support.flood_sources import events, expected, write
from tests.support.history_files import expected as rows_of
from tests.support.history_files import upload, value_of
from tests.support.records import Record
from tests.support.s3_proxy import Break, S3Proxy
from tests.support.s3_server import S3Server

PARTITIONS = 2
TIMEOUT_S = 580
QUICK = {"HEADGATE_WAL_FLUSH_INTERVAL_MS": "10"}

# Spark starts during it; on a busy machine that alone takes minutes.
pytestmark = pytest.mark.timeout(600)


class Throttled(S3Proxy):
    """Refuses requests with 503 SlowDown from the first history file on: two of three, until it has refused `left`."""

    def __init__(self, server: S3Server, left: int = 0) -> None:
        super().__init__(server)
        self.left = left
        self._begun = False
        self._seen = 0

    def take(self, method: str) -> Break | None:
        self._seen += 1
        if self._begun and self.left > 0 and self._seen % 3:
            self.left -= 1
            return "slow_down"
        return super().take(method)

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        self._begun = self._begun or (method == "PUT" and ".parquet" in path)
        return super().forward(method, path, headers, body)


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[Throttled]:
    with Throttled(s3_server) as proxy:
        yield proxy


@pytest.fixture
def broker(s3_server: S3Server, bucket: Throttled, tmp_path: Path) -> Iterator[BrokerProcess]:
    store = f"s3://{s3_server.bucket()}/gates?endpoint={bucket.endpoint}"
    with BrokerProcess(store, tmp_path / "broker.log", env={**s3_server.environment, **QUICK}) as one:
        one.start()
        yield one
    one.check_output()


def read_all(broker: BrokerProcess, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    read = CLIENTS["confluent"].consume(broker.bootstrap, topic, range(PARTITIONS))
    return {partition: [(one.offset, one.value or b"") for one in records] for partition, records in read.items()}


@pytest.mark.asyncio(loop_scope="session")  # grpc.aio has one poller for the process
async def test_gates_of_every_kind(broker: BrokerProcess, bucket: Throttled) -> None:
    """Gates at now, front and end, and a released one; every upload and every commit meets a bucket that throttles."""
    cluster = f"{HOST}:{broker.grpc_port}"
    live = [Record(partition=number, key=None, value=b"live", timestamp_ms=1) for number in range(PARTITIONS)]
    made: dict[str, Gate] = {}
    async with Admin(cluster) as admin, GateAdmin(cluster) as gates:
        await admin.create_topic("t", PARTITIONS, {"history.room": "100"})
        bucket.left = 20
        for name, place, rows in (("now", Place.NOW, [300, 200]), ("front", Place.FRONT, [60, 100])):
            gate = await gates.open("t", rows, gate_id=name, place=place)
            await asyncio.to_thread(CLIENTS["confluent"].produce, broker.bootstrap, "t", live)
            made[name] = await gates.fill("t", name, await asyncio.to_thread(upload, gate, files=2))
            assert (made[name].state, made[name].rows) == (GateState.FILLED, sum(rows))
        given_up = await gates.open("t", [50, 50], gate_id="given-up")
        refs = await asyncio.to_thread(upload, given_up)
        assert (await gates.release("t", "given-up")).state is GateState.RELEASED
        with raises(InvalidError, Reason.GATE_CONFLICT):
            await gates.fill("t", "given-up", refs)
        with pytest.raises(InvalidError, match="no such file"):
            await gates.publish("t", [replace(refs[0], base_offset=0, path=f"{given_up.prefix}missing.parquet")], gate_id="missing")
        staged = await gates.open("t", [40, 40], gate_id="staged")
        files = await asyncio.to_thread(upload, staged)
        await gates.release("t", "staged")
        at_end = await gates.publish("t", [replace(one, base_offset=0) for one in files], gate_id="end")
        assert (at_end.state, at_end.rows, bucket.left) == (GateState.FILLED, 80, 0)
    whole = await asyncio.to_thread(read_all, broker, "t")
    for number in range(PARTITIONS):
        first = at_end.windows[number].base_offset
        wanted = [
            *rows_of(made["front"])[number],
            *rows_of(made["now"])[number],
            *((made["now"].windows[number].end_offset + at, b"live") for at in range(2)),
            *((first + row, value_of("staged", number, row)) for row in range(40)),
        ]
        assert whole[number] == wanted
    broker.kill()
    await asyncio.to_thread(broker.start)
    assert await asyncio.to_thread(read_all, broker, "t") == whole


def test_a_flood_into_a_bucket_that_throttles_in_the_middle(
    broker: BrokerProcess, bucket: Throttled, s3_server: S3Server, tmp_path: Path
) -> None:
    rows = events(3000, seed=21)
    source = write(tmp_path / "source", rows)
    bucket.left = 12
    options = ["--key", "user", "--value", "payload", "--event-time", "at", "--file-size", "64KiB", "--partitions", str(PARTITIONS)]
    environment = {**os.environ, **s3_server.environment, "HEADGATE_CLUSTER": f"{HOST}:{broker.grpc_port}"}
    command = ["flood", "run", "--topic", "t", "--source", str(source), "--verify", *options, "--master", "local[2]"]
    done = commands.run(command, environment, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "yes: the topic has what the source has" in done.stdout
    assert bucket.left == 0, "it throttled while files were written"
    found = CLIENTS["confluent"].consume(broker.bootstrap, "t", range(PARTITIONS))
    assert {number: [(row.timestamp_ms, row.key, row.value) for row in some] for number, some in found.items()} == expected(
        rows, PARTITIONS
    )
