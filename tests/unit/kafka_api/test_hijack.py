"""Producer ids and transactions of other clients.

Runs: produce requests of two users who may write to the same topic, on a real engine over a store in memory. Any reader of the
topic knows the producer ids in it. A mismatch means that one user can put records into another's transaction, or make another's
records count as duplicates, which loses them.
"""

from __future__ import annotations

import struct

import pytest
from headgate.broker.testing.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

from headgate.broker.cluster.access import Access
from headgate.broker.cluster.acl import Acl, Operation, Pattern, Permission, Resource
from headgate.broker.log.claims import CLAIMS_MAX, ProducerClaims
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.steps import finish
from headgate.broker.server.access.rights import Authority, Identity, Rights
from headgate.broker.server.kafka import produce
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headgate.broker.wire.kafka.messages.init_producer_id import InitProducerIdRequest
from tests.support.batches import batch, patched
from tests.unit.kafka_api.conftest import NOW_MS, Kafka

VERSION = 9
ATTRIBUTES_AT, TRANSACTIONAL = 21, b"\0\x10"
REFUSED = ErrorCode.INVALID_PRODUCER_ID_MAPPING


def rights(user: str) -> Rights:
    rows = [(Resource.TOPIC, "a"), (Resource.TRANSACTIONAL_ID, user)]
    access = Access(
        acls=[
            Acl(resource=kind, name=name, pattern=Pattern.LITERAL, principal=f"User:{user}", host="*", operation=Operation.WRITE,
                permission=Permission.ALLOW)
            for kind, name in rows
        ]
    )  # fmt: skip
    found = Authority(Settings(authorization="acl"), lambda: access).rights(Identity(principal=f"User:{user}", host="10.0.0.1"))
    assert found is not None
    return found


def request(records: bytes, transactional_id: str | None = None) -> bytes:
    rows = [TopicProduceData(name="a", partition_data=[PartitionProduceData(index=0, records=records)])]
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=rows).encode(VERSION)


async def send(kafka: Kafka, user: str, records: bytes, transactional_id: str | None = None) -> tuple[int, int]:
    """(error code, base offset) of a produce request, which asks its coordinator as a connection does."""
    frame = memoryview(bytearray(request(records, transactional_id)))
    may = rights(user)
    _, made, _ = produce.produce(kafka.engine, frame, 0, 0, VERSION, 1, NOW_MS, None, rights=may)
    if isinstance(made, produce.Answer) and made.unverified:
        refusal = None
        if transactional_id is not None:
            refusal = await produce.verify_transaction(kafka.engine, kafka.node.transaction_calls, frame, 0, VERSION, may)
        _, made, _ = produce.produce(kafka.engine, frame, 0, 0, VERSION, 1, NOW_MS, None, rights=may)
        if isinstance(made, produce.Answer) and made.unverified:
            made.refuse_unverified(*(refusal or (-1, "")))
    response = finish(made.encode(kafka.engine, "PLAINTEXT")) if isinstance(made, produce.Answer) else made
    (topic,) = ProduceResponse.decode(response, 9, VERSION)[0].responses
    return topic.partition_responses[0].error_code, topic.partition_responses[0].base_offset


def numbered(value: bytes, producer_id: int, sequence: int, *, transactional: bool = False, epoch: int = 0) -> bytes:
    made = batch([value], timestamp_ms=NOW_MS, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return patched(made, ATTRIBUTES_AT, TRANSACTIONAL) if transactional else made


async def test_a_producer_id_belongs_to_its_first_user(kafka: Kafka) -> None:
    """Mallory's batch would get the sequence of alice's next one, and alice's records would be dropped as duplicates."""
    await kafka.engine.create_topic("a", 1, {})
    assert await send(kafka, "alice", numbered(b"0", 5, 0)) == (0, 0)
    for stolen in (numbered(b"bad", 5, 1), numbered(b"bad", 5, 0, epoch=1), numbered(b"bad", 5, 1, transactional=True)):
        assert (await send(kafka, "mallory", stolen))[0] == REFUSED
    assert await send(kafka, "alice", numbered(b"1", 5, 1)) == (0, 1)
    assert await send(kafka, "mallory", numbered(b"own", 6, 0)) == (0, 2)


async def test_a_repeated_request_cannot_change_its_producer_id(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    assert await send(kafka, "alice", numbered(b"0", 5, 0)) == (0, 0)
    body = request(numbered(b"own", 6, 0))
    frame = memoryview(bytearray(body))
    _, made, shape = produce.produce(kafka.engine, frame, 0, 0, VERSION, 1, NOW_MS, None, rights=rights("mallory"))
    assert isinstance(made, bytes) and shape is not None
    for stolen, judged_anew in ((numbered(b"bad", 5, 1), True), (numbered(b"own", 6, 1), False)):
        again = memoryview(bytearray(struct.pack(">hhi", 0, VERSION, 1) + request(stolen)))
        answer = produce.produce_again(kafka.engine, shape, again, 0, len(again), NOW_MS, None, None)
        assert (answer is None) is judged_anew


async def _transaction(kafka: Kafka, transactional_id: str) -> int:
    """Begin a transaction with the topic's partition in it. Returns the producer id."""
    begun = await kafka.call(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 2)
    assert begun.error_code == 0
    added = await kafka.call(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[0])],
        ),
        3,
    )
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    return int(begun.producer_id)


@pytest.mark.parametrize("theirs", [None, "mallory"])
async def test_no_other_client_puts_records_into_a_transaction(kafka: Kafka, theirs: str | None) -> None:
    await kafka.engine.create_topic("a", 1, {})
    alice = await _transaction(kafka, "alice")
    mallory = await _transaction(kafka, "mallory")
    assert await send(kafka, "alice", numbered(b"0", alice, 0, transactional=True), "alice") == (0, 0)
    assert (await send(kafka, "mallory", numbered(b"bad", alice, 1, transactional=True), theirs))[0] == REFUSED
    assert (await send(kafka, "mallory", numbered(b"bad", alice, 1), theirs))[0] == REFUSED
    assert await send(kafka, "alice", numbered(b"1", alice, 1, transactional=True), "alice") == (0, 1)
    assert await send(kafka, "mallory", numbered(b"own", mallory, 0, transactional=True), "mallory") == (0, 2)
    assert (await send(kafka, "mallory", numbered(b"bad", alice, 2, transactional=True), "alice"))[0] == (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )


def test_claims_are_bounded() -> None:
    claims = ProducerClaims()
    for number in range(CLAIMS_MAX + 10):
        claims.use(number, "User:a")
    claims.check(5, "User:b", None, is_transactional=False)
    with pytest.raises(Exception, match="another user"):
        claims.check(15, "User:b", None, is_transactional=False)
