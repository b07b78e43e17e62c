"""The gate of the gRPC port: strangers, users with few rights, and clients that open much, read nothing, or lose their rights.

Runs: a broker with users and rules, over real gRPC and over a client that breaks HTTP/2's customs (`tests/support/http2.py`).
Compared: what the attacker gets, what the broker keeps for it afterwards, and whether another user is served meanwhile. A mismatch
means that a client without a right ends a broker, shuts its port, or learns what it may not.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import User
from headgate.broker.cluster.acl import Acl, Operation, Pattern, Permission, Resource
from headgate.broker.cluster.edits.access import AddAcls, PutUser, RemoveAcls
from headgate.broker.server.grpc import open_calls, publish
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.grpc.headgate.v1 import access_pb2, admin_pb2, gates_pb2, groups_pb2
from headgate.broker.wire.grpc.headgate.v1 import log_pb2 as pb
from headgate.broker.wire.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.support.batches import patched
from tests.support.http2 import Http2, basic
from tests.support.http2 import message as framed
from tests.support.pki import Authority
from tests.support.ports import free_port
from tests.support.waiting import until_async
from tests.unit.grpc.conftest import METHODS, PASSWORD, WAIT_S, RawStream, Served, Start, batch, refused

ADMIN, ALICE = basic("admin", PASSWORD), basic("alice", "a")
MIB = 1 << 20


def rule(resource: Resource, name: str, operation: Operation) -> Acl:
    return Acl(resource=resource, name=name, pattern=Pattern.LITERAL, principal="User:alice", host="*", operation=operation,
               permission=Permission.ALLOW)  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(start: Start) -> AsyncIterator[Served]:
    """Topics `a` and `hidden`; alice reads and writes `a`, and uses the group `g`. Silence of 200 ms is too long."""
    served: Served = await start(authorization="acl", frame_timeout_ms=200)
    await served.create("a")
    await served.create("hidden")
    alice = User(name="alice", verifiers=scram.verifiers("a", bytes), created_ms=1)
    await served.engine.change_access(PutUser(alice, new=True))
    await served.engine.change_access(AddAcls([
        rule(resource, name, operation)
        for resource, name in ((Resource.TOPIC, "a"), (Resource.GROUP, "g"))
        for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE)
        if (resource, operation) != (Resource.GROUP, Operation.WRITE)
    ]))  # fmt: skip
    yield served


async def take_rules(served: Served) -> None:
    """Alice may do nothing with topic `a` any more."""
    rules = [one for one in served.engine.manifest.access.acls.all if one.name == "a"]
    await served.engine.change_access(RemoveAcls(rules))


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_no_byte_of_a_strangers_request_is_read(guarded: Served, name: str) -> None:
    """The broker refuses the call after its headers, although the request never comes."""
    client = await Http2.connect(guarded.port)
    async with asyncio.timeout(WAIT_S):
        await client.wait_ended(client.open(METHODS[name].path))
    assert not client.gone
    await client.close()
    assert guarded.lines[-1]["act"] == METHODS[name].short and guarded.lines[-1]["outcome"] == "refused"
    await until_async(lambda: not guarded.calls)


@pytest.mark.parametrize(
    ("name", "request_bytes", "why"),
    [
        ("Gates.FillGate", b"\x1a\x00" * 600_000, "too many elements"),
        ("Gates.OpenGate", b"\x32\x00" * 600_000, "too many elements"),
        ("Groups.DescribeGroups", b"\x0a\x00" * 100_000, "too many elements"),
        ("Kafka.Ask", b"\x0a\xff\xff\x40" + bytes(MIB + (1 << 14)), "too large"),
        ("Gates.Layout", b"\x12\x82\x80\x40\x0a\xfe\xff\x3f" + bytes(MIB - 2), "too many elements"),
        ("Admin.DescribeTopics", b"\x12\x00" * MIB, "too large"),
    ],
)
async def test_a_request_cannot_expand_in_memory(guarded: Served, name: str, request_bytes: bytes, why: str) -> None:
    code, _, details = await refused(guarded.call(name, request_bytes, ADMIN))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and why in details


async def test_many_small_fields_beside_a_batch_end_the_stream(guarded: Served) -> None:
    stream = guarded.stream("Log.Publish", ALICE)
    await stream.write(b"\x10\x00" * MIB)
    code, _, details = await stream.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "too many fields" in details


async def test_one_client_cannot_take_the_calls_of_others(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "CLIENT_MAX", 3)
    subscribed = pb.SubscribeRequest(add=[pb.Subscription(topic="a", position=pb.Position(latest=True))])
    streams = [guarded.stream("Log.Subscribe", ALICE) for _ in range(3)]
    for stream in streams:
        await stream.write(subscribed)
        assert (await stream.read()).next_offset == 0
    code, _, details = await refused(guarded.call("Log.ListOffsets", pb.ListOffsetsRequest(topic="a"), ALICE))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "of this client" in details
    assert len((await guarded.call("Admin.ListTopics", admin_pb2.ListTopicsRequest(), ADMIN)).topics) == 2
    for stream in streams:
        stream.call.cancel()
    await until_async(lambda: not guarded.calls)
    await guarded.call("Log.ListOffsets", pb.ListOffsetsRequest(topic="a"), ALICE)


async def test_a_stream_that_asks_for_nothing_ends(start: Start) -> None:
    served: Served = await start(connection_idle_ms=200)
    await served.create("a")
    idle, used = served.stream("Log.Subscribe"), served.stream("Log.Subscribe")
    await used.write(pb.SubscribeRequest(add=[pb.Subscription(topic="a", position=pb.Position(latest=True))], credit_bytes=MIB))
    assert (await used.read()).next_offset == 0
    assert (await idle.status())[0] is grpc.StatusCode.UNAVAILABLE
    await served.fill("a", 0, batch(b"later"))
    assert (await used.read()).next_offset == 1, "a consumer at the end waits for ever"
    used.call.cancel()


async def test_requests_that_do_not_arrive_end_and_delay_no_other_user(guarded: Served) -> None:
    client = await Http2.connect(guarded.port)
    calls = [client.open("/headgate.v1.Log/Fetch", ALICE) for _ in range(2 * open_calls.READING_MAX)]
    await client.send(calls[0], framed(bytes(MIB))[: MIB // 2])
    await guarded.call("Admin.ListTopics", admin_pb2.ListTopicsRequest(), ADMIN)
    async with asyncio.timeout(WAIT_S):
        await client.wait_ended(*calls)
    await client.close()
    await until_async(lambda: not guarded.calls)


async def test_answers_that_are_not_read_cost_no_other_user_its_budget(guarded: Served) -> None:
    budget, kib = guarded.budget, 1 << 10
    budget.limit_bytes = 400 * kib
    await guarded.fill("a", 0, *[batch(b"x" * 100 * kib)] * 4)
    client = await Http2.connect(guarded.port, window=0)
    calls = [client.open("/headgate.v1.Log/Fetch", ALICE) for _ in range(6)]
    for call in calls:
        await client.send(call, framed(pb.FetchRequest(topic="a", max_bytes=kib).SerializeToString()), end=True)
    await until_async(lambda: budget.must_wait("User:alice"))
    fetched = await guarded.call("Log.Fetch", pb.FetchRequest(topic="a", max_bytes=kib), ADMIN)
    assert len(fetched.batches) > 100 * kib
    assert len(guarded.calls) >= len(calls), "gRPC holds their answers: they count for their client"
    await client.close()
    await until_async(lambda: not guarded.calls and budget.used_bytes == 0)


async def test_a_client_that_wants_no_acks_gets_them(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "ACK_BATCHES_MAX", 5)
    stream = guarded.stream("Log.Publish", ALICE)
    for number in range(1, 6):
        options = pb.PublishOptions(ack_batches=2**31 - 1)
        await stream.write(pb.PublishRequest(sequence=number, topic="a", options=options, batch=batch(b"x")))
    assert (await stream.read()).acked_sequence == 5
    assert await stream.rest() == []


async def streams_of_alice(guarded: Served) -> tuple[RawStream, RawStream]:
    """She has published a batch, and reads on from the end."""
    publisher, subscriber = guarded.stream("Log.Publish", ALICE), guarded.stream("Log.Subscribe", ALICE)
    await publisher.write(pb.PublishRequest(sequence=1, topic="a", batch=batch(b"x")))
    assert (await publisher.read()).base_offsets == [0]
    add = [pb.Subscription(topic="a", position=pb.Position(latest=True))]
    await subscriber.write(pb.SubscribeRequest(add=add, credit_bytes=MIB))
    assert (await subscriber.read()).next_offset == 1
    return publisher, subscriber


@pytest.mark.parametrize("gone", ["user", "rules"])
async def test_what_is_revoked_ends_open_streams(guarded: Served, gone: str) -> None:
    publisher, subscriber = await streams_of_alice(guarded)
    if gone == "user":
        await guarded.call("Access.DeleteUser", access_pb2.DeleteUserRequest(name="alice"), ADMIN)
    else:
        await take_rules(guarded)
    expected = grpc.StatusCode.UNAUTHENTICATED if gone == "user" else grpc.StatusCode.PERMISSION_DENIED
    assert (await publisher.status())[0] is expected
    assert (await subscriber.status())[0] is expected


@pytest.mark.parametrize("values", [{"authorization": "acl"}, {}, {"kafka_protocol": "sasl_plaintext"}], ids=str)
async def test_a_revoked_certificate_ends_calls_and_streams(start: Start, tmp_path: Path, values: dict[str, str]) -> None:
    """On connections that exist: gRPC's own TLS asks no lists. Without `authorization`, too."""
    authority, revoked = Authority(tmp_path), tmp_path / "crl.pem"
    authority.revoke(revoked)
    certificate, key = map(str, authority.issue("broker"))
    port = free_port()
    served: Served = await start(tls_certificate=certificate, tls_key=key, tls_ca=str(authority.ca), tls_crl=str(revoked),
                                 grpc_mtls_port=port, super_users="User:O=Tests,CN=good;User:O=Tests,CN=bad", **values)  # fmt: skip
    await served.create("a")
    channels = {}
    for name in ("good", "bad"):
        chain, private = (path.read_bytes() for path in authority.issue(name))
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes(), private, chain)
        channels[name] = grpc.aio.secure_channel(f"localhost:{port}", credentials)
    listing, subscribing = METHODS["Admin.ListTopics"], METHODS["Log.Subscribe"]
    streams = {
        name: RawStream(channel.stream_stream(subscribing.path)(), subscribing.response) for name, channel in channels.items()
    }
    add = [pb.Subscription(topic="a", position=pb.Position(latest=True))]
    for name, channel in channels.items():
        await channel.unary_unary(listing.path)(b"")
        await streams[name].write(pb.SubscribeRequest(add=add, credit_bytes=MIB))
        assert (await streams[name].read()).next_offset == 0
    authority.revoke(revoked, "bad")
    assert served.certificates is not None
    served.certificates.look()
    assert (await streams["bad"].status())[0] is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channels["bad"].unary_unary(listing.path)(b"")
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await channels["good"].unary_unary(listing.path)(b"")
    await served.fill("a", 0, batch(b"later"))
    assert (await streams["good"].read()).next_offset == 1
    for channel in channels.values():
        await channel.close()


async def test_one_right_that_ends_ends_its_part_of_a_stream(guarded: Served) -> None:
    await guarded.engine.change_access(AddAcls([rule(Resource.TOPIC, "other", Operation.ALL)]))
    publisher, subscriber = await streams_of_alice(guarded)
    await take_rules(guarded)
    await publisher.write(pb.PublishRequest(sequence=2, topic="a", batch=batch(b"y")))
    assert (await publisher.read()).failures[0].error.reason == "not_authorized"
    line = guarded.lines[-1]
    assert (line["outcome"], line["act"], line["who"], line["door"]) == ("refused", "Log/Publish", "User:alice", "grpc")
    await guarded.fill("a", 0, batch(b"z"))
    assert (await subscriber.read()).error.reason == "not_authorized"
    publisher.call.cancel()
    subscriber.call.cancel()


async def test_a_producer_id_belongs_to_its_first_user(guarded: Served) -> None:
    """As for Kafka clients (`kafka_api/test_hijack.py`): another writer would make the user's next records count as duplicates."""
    alice, other = guarded.stream("Log.Publish", ALICE), guarded.stream("Log.Publish", ADMIN)
    producer = {"producer_id": 5, "producer_epoch": 0}
    own = batch(b"own", producer_id=6, producer_epoch=0, base_sequence=0)
    sent = [(alice, batch(b"0", **producer, base_sequence=0)), (other, batch(b"bad", **producer, base_sequence=1)),
            (other, batch(b"bad", producer_id=5, producer_epoch=1, base_sequence=0)),
            (other, patched(batch(b"bad", **producer, base_sequence=1), 21, b"\0\x10")),
            (alice, batch(b"1", **producer, base_sequence=1)), (other, own)]  # fmt: skip
    found = []
    numbers = {alice: itertools.count(1), other: itertools.count(1)}
    for stream, data in sent:
        await stream.write(pb.PublishRequest(sequence=next(numbers[stream]), topic="a", batch=data))
        answer = await stream.read()
        found.append((list(answer.base_offsets), [one.error.reason for one in answer.failures]))
    refused_batch = ([-1], ["invalid_producer_id_mapping"])
    assert found == [([0], []), refused_batch, refused_batch, refused_batch, ([1], []), ([2], [])]
    alice.call.cancel()
    other.call.cancel()


async def test_a_client_cannot_claim_that_a_broker_passed_its_call_on(guarded: Served) -> None:
    async def commit(*metadata: tuple[str, str], **fields: str) -> list[int]:
        topics = [
            OffsetCommitRequestTopic(name=name, partitions=[OffsetCommitRequestPartition()]) for name in ("a", "hidden", "missing")
        ]
        request = OffsetCommitRequest(group_id="g", topics=topics)
        answer = await guarded.ask(request, OffsetCommitResponse, *metadata, **fields)
        return sorted(row.partitions[0].error_code for row in answer.topics)

    refused_topic, unknown_topic = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    hidden = [0, refused_topic, refused_topic]  # a hidden topic and a missing one look the same
    assert await commit(ALICE) == hidden
    assert await commit(ALICE, ("headgate-forwarded", "1"), principal="User:admin", host="10.0.0.1") == hidden
    assert {(line["who"], line["from"]) for line in guarded.lines if line["act"] == "OffsetCommit"} == {("User:alice", "127.0.0.1")}
    assert await commit(ADMIN) == [0, 0, unknown_topic]
    claim = ("headgate-forwarded", "1")
    for metadata in ((ALICE,), (ALICE, claim)):
        listed = await guarded.call("Groups.ListGroups", groups_pb2.ListGroupsRequest(), *metadata)
        assert not listed.positions and [(row.id, row.positions) for row in listed.groups] == [("g", 1)]
        described = await guarded.call("Groups.DescribeGroups", groups_pb2.DescribeGroupsRequest(ids=["g"]), *metadata)
        assert [row.topic for row in described.groups[0].positions] == ["a"]
        assert described.groups[0].group.positions == 1


async def test_where_kafka_clients_log_in_grpc_clients_do(start: Start) -> None:
    served: Served = await start(kafka_protocol="sasl_plaintext")
    stolen = access_pb2.SetPasswordRequest(name="admin")
    assert (await refused(served.call("Access.SetPassword", stolen)))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert (await refused(served.call("Admin.Status", b"", basic("admin", "wrong"))))[0] is grpc.StatusCode.UNAUTHENTICATED
    await served.call("Admin.Status", b"", ADMIN)


async def test_calls_that_are_reset_at_once_leave_nothing(guarded: Served) -> None:
    client = await Http2.connect(guarded.port)
    for number in range(2000):
        client.reset(client.open("/headgate.v1.Log/Subscribe", *((ALICE,) if number % 2 else ())))
        if not number % 100:
            await client.drain()
    await guarded.call("Admin.ListTopics", admin_pb2.ListTopicsRequest(), ADMIN)
    await client.close()
    await until_async(lambda: not guarded.calls)


async def test_filling_a_gate_with_many_files_is_decoded_in_parts(served: Served) -> None:
    files = [gates_pb2.FileRef(partition=one, path=f"{one}.parquet", rows=1) for one in range(40_000)]
    request = gates_pb2.FillGateRequest(topic="missing", gate_id="g", files=files)
    code, _, details = await refused(served.call("Gates.FillGate", request))
    assert code is grpc.StatusCode.NOT_FOUND, details
