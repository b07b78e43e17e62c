"""Writes the store of `tests/fixtures/`, with the broker of a checkout, and reads one through a broker.

``python -m tests.support.store_fixture CHECKOUT MODULE DIR`` writes DIR/store.tar.xz and DIR/expected.json: with the commit of
the fixture, MODULE is ``broker.cli.main``. The store is written with Kafka clients and the checkout's own command line only.
`expected.json` is the content as the checkout's broker shows it, so a difference means that today's broker reads something else.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from headgate.broker.client import FileRef
from headgate.broker.client.upload import Uploader
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, PATIENCE_S, BrokerProcess
from tests.support.history_files import rows_of
from tests.support.wire import RawConnection

TOPICS = {
    "live": (4, {"retention.ms": "-1", "max.message.bytes": "2000000"}),
    "history": (2, {"retention.ms": "-1", "message.timestamp.type": "CreateTime", "history.room": "1000"}),
    "idempotent": (1, {"retention.ms": "-1"}),
    "gone": (1, {}),
}
"""By name: number of partitions, and settings. `gone` is deleted again."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GATE, GATE_ROWS = "january", 60
GROUP = "readers"
FIRST_MS = 1_700_000_000_000


class Checkout:
    """The broker of a checkout on a store, with its command line.

    Args:
        module: the module of the command line, which is imported from the checkout.
    """

    def __init__(self, checkout: Path, module: str, store: Path, log_path: Path) -> None:
        self._checkout, self._module = checkout, module
        self._store, self._log_path = store, log_path
        self.broker = self.another(1)

    def another(self, number: int) -> BrokerProcess:
        """One more broker on the store. It does not run yet."""
        broker = BrokerProcess(self._store, self._log_path, checkout=self._checkout)
        broker.entry = (self._module,)
        broker.arguments = ("--broker-id", str(number))
        return broker

    def run(self, *words: str, text: str | None = None) -> str:
        """The output of a command. Raises CalledProcessError."""
        command = [sys.executable, "-m", self._module, *words, "--cluster", f"{HOST}:{self.broker.grpc_port}"]
        done = subprocess.run(
            command, cwd=self._checkout, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def content(self) -> dict[str, Any]:
        """What clients see: topics with settings and records, gates, segments, positions."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        topics = admin.list_topics(timeout=PATIENCE_S).topics
        found: dict[str, Any] = {name: self._topic(admin, name, len(topics[name].partitions)) for name in sorted(topics)}
        [positions] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
        gate = json.loads(self.run("gate", "describe", "history", GATE, "--json"))
        return {
            "topics": found,
            "positions": sorted([one.topic, one.partition, one.offset] for one in positions.result(PATIENCE_S).topic_partitions),
            "gate": {name: gate[name] for name in ("state", "place", "windows", "rows", "files", "size_bytes", "digest")},
        }

    def _topic(self, admin: AdminClient, name: str, partitions: int) -> dict[str, Any]:
        [settings] = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]).values()
        given = {one.name: one.value for one in settings.result(PATIENCE_S).values() if not one.is_default}
        return {"settings": dict(sorted(given.items())), "records": [self._records(name, number) for number in range(partitions)]}

    def _records(self, topic: str, partition: int) -> list[list[Any]]:
        """Each record of a partition as (offset, time in ms, key, digest of the value, headers), bytes as hexadecimal digits."""
        config = {"bootstrap.servers": self.broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
        consumer = Consumer({**config, "check.crcs": True, "auto.offset.reset": "error"})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
            consumer.assign([TopicPartition(topic, partition, low)])
            found: list[list[Any]] = []
            while low < high:
                message = consumer.poll(PATIENCE_S)
                assert message is not None, f"nothing to read. topic=`{topic}` partition=`{partition}` offset=`{low}`"
                assert message.error() is None, message.error()
                headers = [[name, _hex(value)] for name, value in message.headers() or ()]
                value = None if message.value() is None else hashlib.sha256(message.value()).hexdigest()[:16]
                found.append([message.offset(), message.timestamp()[1], _hex(message.key()), value, headers])
                low = message.offset() + 1
            return found
        finally:
            consumer.close()


def send(broker: BrokerProcess, data: bytes) -> tuple[int, int]:
    """Send one batch to the only partition of `idempotent`. Returns the error code and the base offset of the answer."""
    body = {
        "acks": -1,
        "timeout": 30_000,
        "topic_data": ({"name": "idempotent", "partition_data": ({"index": 0, "records": data},)},),
    }
    with RawConnection(HOST, broker.kafka_port) as connection:
        answer = oracle.call(connection, oracle.PRODUCE, 8, body).responses[0].partition_responses[0]
    return int(answer.error_code), int(answer.base_offset)


def write(checkout: Checkout, second: BrokerProcess) -> tuple[bytes, int]:
    """Fill a new store in two lives of the broker. In the other life, `second` leads a part of `live`. Returns the idempotent
    producer's last batch and its base offset."""
    broker = checkout.broker
    broker.start()
    broker.wait_ready()
    for name, (partitions, settings) in TOPICS.items():
        pairs = [word for setting, value in settings.items() for word in ("--config", f"{setting}={value}")]
        checkout.run("topic", "create", name, "--partitions", str(partitions), *pairs)
    _produce(broker, "live", partitions=4, first=0)
    _produce(broker, "gone", partitions=1, first=0)
    _produce(broker, "history", partitions=2, first=0)
    checkout.run("gate", "open", "history", GATE, "--each", str(GATE_ROWS), "--place", "front")
    _fill(checkout)
    checkout.run("topic", "delete", "gone", "--yes")
    _commit(broker)
    assert broker.terminate() == 0, broker.log_tail()

    broker.start()
    broker.wait_ready()
    with RawConnection(HOST, broker.kafka_port) as connection:
        values = {"transactional_id": None, "transaction_timeout": 1_000, "producer_id": -1, "producer_epoch": -1}
        producer = oracle.call(connection, oracle.INIT_PRODUCER_ID, 4, values)
    offset = -1
    for sequence in (0, 3, 6):
        last = batch(
            [f"value {sequence + number}".encode() for number in range(3)],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
        )
        code, offset = send(broker, last)
        assert code == 0, code
    second.start()  # a segment is split only when a second broker can take a half
    second.wait_ready()
    _split(checkout)
    _produce(broker, "live", partitions=4, first=100)
    return last, offset


def _produce(broker: BrokerProcess, topic: str, *, partitions: int, first: int) -> None:
    """Write records with each compression, with and without keys, values and headers."""
    for number, codec in enumerate(CODECS):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 50})
        for row in range(first + number * 10, first + number * 10 + 10):
            headers = [("codec", codec.encode()), ("empty", b""), ("none", None)] if row % 2 else []
            producer.produce(
                topic,
                value=None if row % 10 == 9 else f"record {row} of {topic} ".encode() * 20,
                key=None if row % 3 == 0 else f"key {row % 7}".encode(),
                partition=row % partitions,
                timestamp=FIRST_MS + row,
                headers=headers,
            )
        assert producer.flush(PATIENCE_S) == 0, "records were not acked"


def _split(checkout: Checkout) -> None:
    """Split the segment of `live` with partitions 1 and 2 between them, unless the leader itself has done it."""
    for _ in range(20):
        found = [one for one in json.loads(checkout.run("segment", "list", "--json")) if one["topic"] == "live"]
        whole = [one for one in found if one["first_partition"] <= 1 and one["end_partition"] > 2]
        if found and not whole:
            return
        for one in whole:
            try:
                checkout.run("segment", "split", str(one["id"]), "--at", "2")
            except AssertionError:
                time.sleep(1)  # the leader moves it at the moment
    raise AssertionError("the segment was not split")


def _fill(checkout: Checkout) -> None:
    gate = json.loads(checkout.run("gate", "describe", "history", GATE, "--json"))
    refs: list[FileRef] = []
    with Uploader(gate["store_url"]) as uploader:
        for window in gate["windows"]:
            partition, base = window["partition"], window["base_offset"]
            for number in range(2):
                first, count = number * GATE_ROWS // 2, GATE_ROWS // 2
                key = f"{gate['prefix']}partition={partition}/{GATE}-{number}.parquet"
                refs.append(uploader.write(key, rows_of(GATE, partition, first, count), partition, base + first))
    fields = ("partition", "path", "base_offset", "rows", "size_bytes", "footer_crc32c", "timestamp_min_ms", "timestamp_max_ms")
    text = json.dumps([{name: getattr(one, name) for name in fields} for one in refs])
    checkout.run("gate", "fill", "history", GATE, "-", text=text)


def _commit(broker: BrokerProcess) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("live", partition, 3 + partition) for partition in range(4)], asynchronous=False)
    consumer.close()


def _hex(data: bytes | str | None) -> str | None:
    return None if data is None else (data.encode() if isinstance(data, str) else data).hex()


def main(checkout: Path, module: str, to: Path) -> None:
    """Write the fixture."""
    with tempfile.TemporaryDirectory() as directory:
        store, log = Path(directory) / "store", Path(directory) / "broker.log"
        writer = Checkout(checkout, module, store, log)
        with writer.broker as broker, writer.another(2) as second:
            last, offset = write(writer, second)
            content = writer.content()
            broker.kill()
            second.kill()
            broker.check_output()
        with tarfile.open(to / "store.tar.xz", "w:xz") as archive:
            archive.add(store, arcname="store")
    (to / "expected.json").write_text(json.dumps({"last_batch": last.hex(), "last_offset": offset, **content}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).resolve())
    sys.exit(0)
