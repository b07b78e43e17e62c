"""aiokafka: pure Python on asyncio, with the protocol's lower versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.support.clients.interface import BATCH_BYTES, FETCH_BYTES, REQUEST_BYTES, ClientError, Deadline
from tests.support.records import Read, Record


class Aiokafka:
    name = "aiokafka"
    empty_records = False
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
        return asyncio.run(self._produce(bootstrap, topic, records, codec, acks, idempotent))

    def consume(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> Mapping[int, list[Read]]:
        return asyncio.run(self._consume(bootstrap, topic, partitions))

    async def _produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], codec: str, acks: int, idempotent: bool
    ) -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=idempotent,
            linger_ms=20,
            max_request_size=REQUEST_BYTES,
            max_batch_size=BATCH_BYTES,
            retry_backoff_ms=20,
        )
        try:
            await producer.start()
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            answers = await asyncio.gather(*futures)
            return [-1 if answer is None else answer.offset for answer in answers]
        except KafkaError as error:
            raise ClientError(error.errno, repr(error)) from error
        finally:
            await producer.stop()

    async def _consume(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> Mapping[int, list[Read]]:
        consumer = AIOKafkaConsumer(
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
            await consumer.start()
            consumer.assign(assigned)
            await consumer.seek_to_beginning(*assigned)
            ends = await consumer.end_offsets(assigned)
            unfinished = set(assigned)
            deadline = Deadline("aiokafka consume")
            while True:
                unfinished = {part for part in unfinished if await consumer.position(part) < ends[part]}
                if not unfinished:
                    return found
                deadline.check(sum(map(len, found.values())), unfinished)
                for part, messages in (await consumer.getmany(*unfinished, timeout_ms=200)).items():
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
        except KafkaError as error:
            raise ClientError(error.errno, repr(error)) from error
        finally:
            await consumer.stop()
