"""A broker process on a machine with a clock that jumps by days.

Runs: one real broker with a clock that the test moves, retention of an hour that runs ten times a second, librdkafka, and an
idempotent producer by hand. Compared: the readable records and the answer to a retry, before and after each jump and across
SIGKILL; and the broker's reports about its clock. A mismatch means that a wrong clock deletes or doubles records, refuses
writes, or goes unseen.
"""

from __future__ import annotations

import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from headgate.broker.cli import app
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.cluster import eventually
from tests.support.skewed_broker import set_clock, use_clock
from tests.support.wire import RawConnection

DAY_S = 86_400
LOOKS_S = 1.0
"""Wait for ten runs of retention."""


class Retrier:
    """An idempotent producer that retries its one batch."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        with RawConnection(HOST, broker.kafka_port) as connection:
            given = oracle.call(connection, oracle.INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout": 1_000})
        self._batch = batch([b"once"], producer_id=given.producer_id, producer_epoch=given.producer_epoch, base_sequence=0)

    def send(self) -> int:
        """Send the batch; returns its offset."""
        topic = {"name": "t", "partition_data": ({"index": 0, "records": self._batch},)}
        with RawConnection(HOST, self._broker.kafka_port) as connection:
            answer = oracle.call(connection, oracle.PRODUCE, 3, {"acks": -1, "timeout": 10_000, "topic_data": (topic,)})
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == 0, partition
        offset: int = partition.base_offset
        return offset


def produce(broker: BrokerProcess, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "message.timeout.ms": 30_000})
    for _ in range(count):
        producer.produce("t", b"live", partition=0, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0 and not failed, failed


def records(broker: BrokerProcess) -> tuple[int, int]:
    """(first offset, next offset)."""
    found = []
    with RawConnection(HOST, broker.kafka_port) as connection:
        for at in (-2, -1):
            asked = {"name": "t", "partitions": ({"partition_index": 0, "timestamp": at},)}
            answer = oracle.call(connection, oracle.LIST_OFFSETS, 1, {"replica_id": -1, "topics": (asked,)})
            found.append(answer.topics[0].partitions[0].offset)
    return found[0], found[1]


def difference_s(broker: BrokerProcess) -> float:
    with urlopen(f"http://{HOST}:{broker.http_port}/metrics", timeout=10) as response:
        (line,) = [line for line in response.read().decode().splitlines() if line.startswith("headgate_clock_difference_seconds")]
    return float(line.split()[-1])


@pytest.mark.timeout(180)
def test_a_clock_that_jumps_by_days(make_broker: BrokerFactory, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broker = make_broker(env={"HEADGATE_RETENTION_CHECK_INTERVAL_MS": "100", "HEADGATE_CLUSTER_LEASE_TTL_MS": "500"})
    clock = tmp_path / "clock"
    use_clock(broker, clock)
    broker.start()
    create_topic(broker.bootstrap, "t", 1, retention_ms="3600000")
    produce(broker, 10)
    retrier = Retrier(broker)
    assert retrier.send() == 10
    end = 11
    for days in (2, 30, -30):
        set_clock(clock, days * DAY_S)
        eventually(lambda: difference_s(broker) > DAY_S, "the jump is seen")
        capfd.readouterr()
        assert app.run(["status", "--window", "0", "--cluster", f"{HOST}:{broker.grpc_port}"]) == 0
        assert "clock in doubt, nothing is deleted by age" in capfd.readouterr().out
        time.sleep(LOOKS_S)
        assert retrier.send() == 10, "the retry is a duplicate"
        produce(broker, 10)
        end += 10
        assert records(broker) == (0, end)
        broker.kill()
        broker.start()
        time.sleep(LOOKS_S)
        assert retrier.send() == 10, "the retry is a duplicate after a restart, too"
        produce(broker, 10)
        end += 10
        assert records(broker) == (0, end)
    log = broker.log_path.read_text()
    assert "clock_in_doubt" in log and "downtime_noted" in log
    assert broker.terminate() == 0
