"""kafka-python 3: pure Python, negotiates up to the newest versions of every API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from tests.support.clients.interface import BATCH_BYTES, DEADLINE_S, FETCH_BYTES, REQUEST_BYTES, ClientError, Deadline
from tests.support.records import Read, Record


class KafkaPython:
    name = "kafka-python"
    empty_records = False
    null_header_values = False
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
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=idempotent,
            linger_ms=20,
            max_request_size=REQUEST_BYTES,
            batch_size=BATCH_BYTES,
            retry_backoff_ms=20,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(DEADLINE_S)
            answers = [future.get(DEADLINE_S) for future in futures]
            # Without an ack this library counts up from -1.
            return [-1 if acks == 0 else answer.offset for answer in answers]
        except KafkaError as error:
            raise ClientError(error.errno, repr(error)) from error
        finally:
            producer.close(timeout=5)

    def consume(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> Mapping[int, list[Read]]:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_wait_ms=10,
            retry_backoff_ms=20,
        )
        assigned = [TopicPartition(topic, partition) for partition in partitions]
        found: dict[int, list[Read]] = {partition: [] for partition in partitions}
        try:
            consumer.assign(assigned)
            consumer.seek_to_beginning(*assigned)
            ends = consumer.end_offsets(assigned)
            deadline = Deadline("kafka-python consume")
            while unfinished := [part for part in assigned if consumer.position(part) < ends[part]]:
                deadline.check(sum(map(len, found.values())), unfinished)
                for part, messages in consumer.poll(timeout_ms=200).items():
                    found[part.partition].extend(
                        Read(
                            partition=message.partition,
                            offset=message.offset,
                            key=message.key,
                            value=message.value,
                            headers=tuple(message.headers),
                            timestamp_ms=message.timestamp,
                            append_time=message.timestamp_type == 1,
                        )
                        for message in messages
                    )
            return found
        except KafkaError as error:
            raise ClientError(error.errno, repr(error)) from error
        finally:
            consumer.close(autocommit=False)
