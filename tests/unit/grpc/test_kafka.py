"""Kafka's requests over gRPC: what is let in, who may do what, what is noted and what it costs.

Runs: a broker over real gRPC, with raw requests and with Headgate's clients. A mismatch means that a rule of the Kafka port does
not hold here, or that a client reads an answer wrongly.
"""

from __future__ import annotations

import grpc
import pytest

from headgate.broker.client.access_admin import AccessAdmin, Acl, Quota
from headgate.broker.client.kafka import REASONS, RETRIABLE, check
from headgate.broker.cluster import scram
from headgate.broker.cluster.access import User
from headgate.broker.cluster.edits.access import PutUser
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.server.kafka.apis import APIS, request_bytes_max
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.wire.grpc.headgate.v1 import kafka_pb2
from headgate.broker.wire.kafka.generate import CARRIED
from headgate.broker.wire.kafka.header import request_header
from headgate.broker.wire.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.support.carried import asked
from tests.support.errors import raises
from tests.support.http2 import basic
from tests.unit.grpc.conftest import PASSWORD, Served, Start, refused

ADMIN = basic("admin", PASSWORD)
TOPIC = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=-1)])
FETCH, SASL_AUTHENTICATE, CREATE_TOPICS, JOIN_GROUP = 1, 36, 19, 11


async def test_only_requests_of_headgates_own_clients_are_let_in(served: Served) -> None:
    for key, version in ((FETCH, 12), (SASL_AUTHENTICATE, 2), (JOIN_GROUP, 9), (CREATE_TOPICS, 6), (9999, 0), (-1, -1)):
        request = kafka_pb2.KafkaRequest(request=request_header(key, version, flexible=True) + bytes(50))
        code, reason, _ = await refused(served.call("Kafka.Ask", request))
        assert (code, reason) == (grpc.StatusCode.UNIMPLEMENTED, "unsupported"), (key, version)
    whole = asked(TOPIC).request
    for request_bytes in (b"", whole[:3], whole[:-1], whole[:20] + b"\xff" * 30):
        code, reason, _ = await refused(served.call("Kafka.Ask", kafka_pb2.KafkaRequest(request=request_bytes)))
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
    large = kafka_pb2.KafkaRequest(request=whole + bytes(request_bytes_max(CREATE_TOPICS) - len(whole) + 1))
    assert "too large" in (await refused(served.call("Kafka.Ask", large)))[2]
    elsewhere = asked(TOPIC, broker_id=7)
    assert (await refused(served.call("Kafka.Ask", elsewhere)))[:2] == (grpc.StatusCode.UNAVAILABLE, "not_leader")
    assert not served.engine.topics()
    answer = await served.ask(TOPIC, CreateTopicsResponse, broker_id=1)
    assert [(row.name, row.error_code, row.num_partitions) for row in answer.topics] == [("t", 0, 1)]


def test_carried_requests_are_served_in_the_version_of_our_clients() -> None:
    """All are flexible but OffsetDelete, which Kafka has in one version: `tests/support/carried.py` counts on it."""
    by_name = {api.name: api for api in APIS.values()}
    for name, version in CARRIED.items():
        api = by_name[name]
        assert api.serves(version) and api.flexible(version) == (name != "OffsetDelete") and version == api.load().request.CARRIED


async def test_rules_and_the_audit_log_are_those_of_the_kafka_port(start: Start) -> None:
    served: Served = await start(authorization="acl")
    await served.engine.change_access(PutUser(User(name="alice", verifiers=scram.verifiers("a", bytes), created_ms=1), new=True))
    stranger = await refused(served.call("Kafka.Ask", asked(TOPIC)))
    assert stranger[:2] == (grpc.StatusCode.PERMISSION_DENIED, "not_authorized"), "nothing of its request is read"
    alice = basic("alice", "a")
    (row,) = (await served.ask(TOPIC, CreateTopicsResponse, alice)).topics
    assert (row.error_code, row.error_message) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    assert not served.engine.topics()
    assert (await served.ask(TOPIC, CreateTopicsResponse, ADMIN)).topics[0].error_code == 0
    noted = [
        (line["outcome"], line["who"], line["door"], line["targets"]) for line in served.lines if line["act"] == "CreateTopics"
    ]
    assert noted == [("refused", "User:alice", "grpc", ["t"]), ("done", "User:admin", "grpc", ["t"])]


async def test_rules_about_headgates_own_resources_are_set_before_they_are_in_force(served: Served) -> None:
    """Kafka's clients see neither: `kafka_api/` has the refusals."""
    wanted = Acl(
        resource="gate", name="t", pattern="prefixed", principal="User:alice", host="*", operation="create", permission="allow"
    )
    async with AccessAdmin(served.address) as admin:
        await admin.add_acls([wanted, Acl(resource="topic", name="t", principal="User:bob", operation="read")])
        assert await admin.acls(Acl(principal="User:alice")) == [wanted]
        assert [(one.principal, one.pattern, one.host, one.permission) for one in await admin.acls()] == [
            ("User:bob", "literal", "*", "allow"),
            ("User:alice", "prefixed", "*", "allow"),
        ]
        assert await admin.remove_acls(Acl(resource="gate")) == [wanted]
        assert [one.principal for one in await admin.acls()] == ["User:bob"]
        for wrong, text in (({"resource": "barn"}, "unknown word"), ({"operation": "idempotent_write"}, "idempotent_write")):
            with raises(InvalidError, Reason.INVALID_REQUEST, text):
                bad = Acl(**{"resource": "topic", "name": "t", "principal": "User:bob", "operation": "read", **wrong})
                await admin.add_acls([wanted, bad])
            assert [one.principal for one in await admin.acls()] == ["User:bob"], "all or none"


async def test_quotas_are_set_and_listed(served: Served) -> None:
    async with AccessAdmin(served.address) as admin:
        await admin.set_quotas(Quota(user="", client_id="etl", values={"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0}))
        await admin.set_quotas(Quota(user="bob", values={"consumer_byte_rate": 2.0}))
        await admin.remove_quotas(Quota(user="", client_id="etl", values={"consumer_byte_rate": 0.0}))
        assert sorted(await admin.quotas(), key=str) == sorted(
            [
                Quota(user="", client_id="etl", values={"producer_byte_rate": 5.0}),
                Quota(user="bob", values={"consumer_byte_rate": 2.0}),
            ],
            key=str,
        )
        with raises(InvalidError, Reason.INVALID_REQUEST, "no_such_rate"):
            await admin.set_quotas(Quota(user="alice", values={"no_such_rate": 1.0}))


def test_a_code_becomes_the_usual_reason_for_it() -> None:
    for code, reason in REASONS.items():
        assert reason is Reason.NOT_AUTHORIZED or error_code(HeadgateError(reason, "")) == code
        with pytest.raises(RetryError if reason in RETRIABLE else InvalidError, match=r"\. topic=`t`$") as caught:
            check(code, None, "topic=`t`")
        assert caught.value.reason is reason
    usual = {ErrorCode.INVALID_REQUEST: Reason.INVALID_REQUEST, ErrorCode.REQUEST_TIMED_OUT: Reason.TIMED_OUT,
             ErrorCode.NOT_LEADER_OR_FOLLOWER: Reason.NOT_LEADER, ErrorCode.KAFKA_STORAGE_ERROR: Reason.STORE_UNAVAILABLE,
             ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reason.NOT_AUTHORIZED}  # fmt: skip
    assert usual.items() <= REASONS.items()
    with raises(InvalidError, Reason.INTERNAL):
        check(9999, None, "topic=`t`")
