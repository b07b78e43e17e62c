"""librdkafka, through confluent-kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.clients.interface import BATCH_BYTES, FETCH_BYTES, REQUEST_BYTES, ClientError, Deadline
from tests.support.records import Read, Record

QUICK_RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}
"""librdkafka's default pauses after a broker's death are seconds; tests restart the broker in a fraction of one."""


class Confluent:
    name = "confluent"
    empty_records = True
    null_header_values = True
    header_order = True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 20,
                "message.max.bytes": REQUEST_BYTES,
                "batch.size": BATCH_BYTES,
                "message.timeout.ms": 60_000,
                **QUICK_RECONNECT,
            }
        )
        offsets: list[int | None] = [None] * len(records)
        failures: list[KafkaError] = []
        for index, record in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, index: int = index) -> None:
                if error is not None:
                    failures.append(error)
                else:
                    # With acks=0 librdkafka reports the made-up offset -1001.
                    offset = message.offset()
                    offsets[index] = offset if offset is not None and offset >= 0 else -1

            # A timestamp of 0 means "now" to this library.
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                on_delivery=delivered,
            )
            producer.poll(0)
        deadline = Deadline("confluent flush")
        while producer.flush(1.0):
            deadline.check(len(offsets) - offsets.count(None), len(failures))
        if failures:
            raise ClientError(failures[0].code(), failures[0].str())
        return [offset for offset in offsets if offset is not None]

    def consume(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> Mapping[int, list[Read]]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.message.max.bytes": FETCH_BYTES,
                "fetch.max.bytes": 8 * FETCH_BYTES,
                "receive.message.max.bytes": 9 * FETCH_BYTES,
                "check.crcs": True,
                "fetch.wait.max.ms": 10,
                **QUICK_RECONNECT,
            }
        )
        found: dict[int, list[Read]] = {partition: [] for partition in partitions}
        try:
            # An assignment made before the first metadata waits half a second for the next look.
            consumer.list_topics(topic, timeout=60)
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            unfinished = set(partitions)
            deadline = Deadline("confluent consume")
            while unfinished:
                deadline.check(sum(map(len, found.values())), unfinished)
                for message in consumer.consume(1000, 0.2):
                    error = message.error()
                    if error is None:
                        read = _read(message)
                        found[read.partition].append(read)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unfinished.discard(_known(message.partition()))
                    elif not error.retriable():
                        raise ClientError(error.code(), error.str())
        except KafkaException as error:
            raise ClientError(error.args[0].code(), error.args[0].str()) from error
        finally:
            consumer.close()
        return found


def _known(number: int | None) -> int:
    assert number is not None
    return number


def _read(message: Message) -> Read:
    kind, timestamp_ms = message.timestamp()
    return Read(
        partition=_known(message.partition()),
        offset=_known(message.offset()),
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((key, _bytes(value)) for key, value in message.headers() or ()),  # type: ignore[str-unpack]
        timestamp_ms=timestamp_ms,
        append_time={TIMESTAMP_CREATE_TIME: False, TIMESTAMP_LOG_APPEND_TIME: True}[kind],
    )


def _bytes(data: bytes | str | None) -> bytes | None:
    assert not isinstance(data, str)
    return data
