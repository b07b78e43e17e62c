"""Requests of transactional producers, and of consumers of committed records. See `kafka.py`.

`version`: of the protocol of transactions: 1, or 2 (KIP-890), in which partitions join with their first batch, and each end of a
transaction begins a new epoch.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

import headgate.broker.testing.messages.fetch as fetch
import headgate.broker.testing.messages.produce as produce

from headgate.broker.testing.simulation.kafka import TIMEOUT_MS, Call, check
from headgate.broker.wire.kafka.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    offset_fetch,
    txn_offset_commit,
)

READ_COMMITTED = 1


class Identity(NamedTuple):
    """What a producer proves itself with."""

    transactional_id: str
    producer_id: int
    epoch: int


def begin_producer(who: Identity, timeout_ms: int) -> Call[Identity]:
    """The id and epoch of a producer, which fences all others of its transactional id. With an id and epoch of its own it continues
    after an error (KIP-360); with -1 it is new."""

    def read(response: init_producer_id.InitProducerIdResponse) -> Identity:
        check(response.error_code)
        return Identity(who.transactional_id, response.producer_id, response.producer_epoch)

    request = init_producer_id.InitProducerIdRequest(
        transactional_id=who.transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
    )
    return Call(request, 5, init_producer_id.InitProducerIdResponse, read)


def add_partition(who: Identity, topic: str, partition: int) -> Call[None]:
    def read(response: add_partitions_to_txn.AddPartitionsToTxnResponse) -> None:
        check(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    request = add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=who.transactional_id,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
    )
    return Call(request, 3, add_partitions_to_txn.AddPartitionsToTxnResponse, read)


def add_group(who: Identity, group: str) -> Call[None]:
    def read(response: add_offsets_to_txn.AddOffsetsToTxnResponse) -> None:
        check(response.error_code)

    request = add_offsets_to_txn.AddOffsetsToTxnRequest(
        transactional_id=who.transactional_id, producer_id=who.producer_id, producer_epoch=who.epoch, group_id=group
    )
    return Call(request, 3, add_offsets_to_txn.AddOffsetsToTxnResponse, read)


def produce_in_transaction(who: Identity, version: int, topic: str, partition: int, data: bytes) -> Call[int]:
    """Append one batch; the result is its first offset."""

    def read(response: produce.ProduceResponse) -> int:
        row = response.responses[0].partition_responses[0]
        check(row.error_code, row.error_message)
        base_offset: int = row.base_offset
        return base_offset

    rows = [produce.PartitionProduceData(index=partition, records=data)]
    topics = [produce.TopicProduceData(name=topic, partition_data=rows)]
    request = produce.ProduceRequest(transactional_id=who.transactional_id, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics)
    return Call(request, 11 if version == 1 else 12, produce.ProduceResponse, read)


def commit_in_transaction(who: Identity, version: int, group: str, topic: str, offset: int) -> Call[None]:
    """Commit a group's position of partition 0 with the transaction."""

    def read(response: txn_offset_commit.TxnOffsetCommitResponse) -> None:
        check(response.topics[0].partitions[0].error_code)

    rows = [txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    request = txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=who.transactional_id,
        group_id=group,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(name=topic, partitions=rows)],
    )
    return Call(request, 4 if version == 1 else 5, txn_offset_commit.TxnOffsetCommitResponse, read)


def end_transaction(who: Identity, version: int, *, commit: bool) -> Call[Identity]:
    """The result is the identity of the next transaction."""

    def read(response: end_txn.EndTxnResponse) -> Identity:
        check(response.error_code)
        return who if version == 1 else Identity(who.transactional_id, response.producer_id, response.producer_epoch)

    request = end_txn.EndTxnRequest(
        transactional_id=who.transactional_id, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commit
    )
    return Call(request, 4 if version == 1 else 5, end_txn.EndTxnResponse, read)


@dataclass(frozen=True, slots=True)
class Committed:
    """Records up to the last stable offset. `aborted`: (producer id, first offset) of aborted transactions in `batches`."""

    high_watermark: int
    stable_end: int
    batches: bytes
    aborted: list[tuple[int, int]]


def fetch_committed(topic_id: bytes, partition: int, offset: int, max_bytes: int, wait_ms: int) -> Call[Committed]:
    """Read with `isolation.level=read_committed`. `wait_ms`: longest wait for a first record."""

    def read(response: fetch.FetchResponse) -> Committed:
        check(response.error_code)
        row = response.responses[0].partitions[0]
        check(row.error_code)
        aborted = [(transaction.producer_id, transaction.first_offset) for transaction in row.aborted_transactions or ()]
        return Committed(row.high_watermark, row.last_stable_offset, bytes(row.records or b""), aborted)

    rows = [fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)]
    request = fetch.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic_id=uuid.UUID(bytes=topic_id), partitions=rows)],
    )
    return Call(request, 13, fetch.FetchResponse, read)


def stable_position(group: str, topic: str) -> Call[int]:
    """A group's position of partition 0 without transactions that have no outcome; -1: it has none."""

    def read(response: offset_fetch.OffsetFetchResponse) -> int:
        row = response.groups[0]
        check(row.error_code)
        check(row.topics[0].partitions[0].error_code)
        return row.topics[0].partitions[0].committed_offset

    asked = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=asked)]
    request = offset_fetch.OffsetFetchRequest(groups=groups, require_stable=True)
    return Call(request, 8, offset_fetch.OffsetFetchResponse, read)
