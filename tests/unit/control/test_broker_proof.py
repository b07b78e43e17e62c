"""How brokers without certificates prove that they are brokers of a cluster.

Runs: the proofs alone, as an attacker would use them; and three brokers in one process, over one store, with SASL and permissions
and without TLS. Compared: who is let in. A mismatch means that a stranger becomes a broker, or that brokers cannot join each other.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from headgate.broker.control import broker_proof, proving
from headgate.broker.control.broker_proof import BROKER_KEY, ChallengeError, Proofs, proof
from headgate.broker.control.proving import Prover
from headgate.broker.engine.identity import BROKERS, DECOYS, shared_key
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.server.grpc import open_calls
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, capacity_pb2, control_pb2
from headgate.broker.wire.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.support import carried
from tests.support.http2 import basic
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_replication import hold_puts, new_lead, replicating, send, values
from tests.unit.control.world import METHODS, PASSWORD

KEY, PATH = b"k" * 32, "/headgate.v1.Control/Join"


def challenge_of(proofs: Proofs) -> str:
    with pytest.raises(ChallengeError) as caught:
        proofs.check("", PATH)
    return caught.value.challenge


def test_a_proof_works_once() -> None:
    proofs = Proofs(KEY)
    made = proof(KEY, 7, challenge_of(proofs), PATH)
    assert proofs.check(made, PATH) == 7
    with pytest.raises(InvalidError, match="used before"):
        proofs.check(made, PATH)
    assert proofs.check(proof(KEY, 7, challenge_of(proofs), PATH), PATH) == 7


def test_a_proof_is_worth_nothing_elsewhere() -> None:
    proofs = Proofs(KEY)
    challenge = challenge_of(proofs)
    made = proof(KEY, 7, challenge, PATH)
    for other in (Proofs(KEY), Proofs(b"x" * 32)):  # another broker, or a later run; another cluster
        with pytest.raises(ChallengeError):
            other.check(made, PATH)
    claim, _, code = made.rpartition(".")
    forged = (
        proof(b"x" * 32, 7, challenge, PATH), proof(KEY, 7, challenge, "/headgate.v1.Control/View"), "8" + made[1:],
        claim + "." + "0" * 64, claim + ".", f"{claim}0.{code}", proof(b"", 7, challenge, PATH), made + "é",
    )  # fmt: skip
    for wrong in forged:
        with pytest.raises(InvalidError, match="shares the store"):
            proofs.check(wrong, PATH)
    for wrong in ("", ".", "...", "7", made.replace(challenge, ""), "é.é.é.é", "." * 10_000):
        with pytest.raises(ChallengeError):
            proofs.check(wrong, PATH)
    assert proofs.check(made, PATH) == 7


def test_proofs_that_were_forgotten_are_worth_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_proof, "PROOFS_MAX", 3)
    proofs = Proofs(KEY)
    challenge = challenge_of(proofs)
    made = [proof(KEY, 7, challenge, PATH) for _ in range(4)]
    for one in made[:3]:
        proofs.check(one, PATH)
    for one in made:
        with pytest.raises(ChallengeError):
            proofs.check(one, PATH)
    assert challenge_of(proofs) != challenge


async def test_all_brokers_have_the_keys_of_their_store() -> None:
    objects = MemoryObjects()
    first = [await shared_key(MemoryStore(objects), purpose, b"first") for purpose in (DECOYS, BROKERS)]
    assert first == [await shared_key(MemoryStore(objects), purpose, b"second") for purpose in (DECOYS, BROKERS)]
    assert len({*first, await shared_key(MemoryStore(MemoryObjects()), BROKERS, b"other")}) == 3


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_brokers_with_logins_and_without_tls_are_a_cluster(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """They join, pass calls on, ask each other, replicate and take over; strangers, and brokers of another cluster, do not."""
    sent: list[str] = []

    def heard(key: bytes, broker_id: int, challenge: str, path: str) -> str:
        sent.append(proof(key, broker_id, challenge, path))
        return sent[-1]

    monkeypatch.setattr(proving, "proof", heard)
    world, lead, follower = await replicating(make_world, kafka_protocol="sasl_plaintext", authorization="acl")
    leader, other = world.leader, next(broker for broker in world.brokers if broker.participant.leader is None)
    admin = dict([basic("admin", PASSWORD)])
    fresh = CreateTopicsRequest(topics=[CreatableTopic(name="u", num_partitions=1, replication_factor=-1)])
    answer = await other.call("Kafka.Ask", carried.asked(fresh, broker_id=leader.number), **admin)
    (created,) = carried.answer(CreateTopicsResponse, answer).topics
    assert (created.name, created.error_code) == ("u", 0), "the leader answers"
    noted = [(line["who"], line["door"], line["targets"]) for line in leader.lines if line["act"] == "CreateTopics"]
    assert noted == [("User:admin", "grpc", ["u"])], "the request is its client's, also at the broker that it was passed on to"
    await other.call("Capacity.GetDesiredBrokers", capacity_pb2.GetDesiredBrokersRequest(), **admin)
    status = await other.call("Admin.Status", admin_pb2.StatusRequest(), **admin)
    assert {row.name for row in status.topics} == {"t", "u"}

    paths = [one.rsplit(".", 1)[0] for one in sent]
    assert len(sent) == len(set(sent)) and len(paths) > 3
    view = control_pb2.ViewRequest()
    for metadata in ({}, {BROKER_KEY: sent[0]}, {BROKER_KEY: sent[-1]}, {BROKER_KEY: "1." + "0" * 98}):
        assert (await refused(leader.call("Control.View", view, **metadata)))[0] is grpc.StatusCode.UNAUTHENTICATED
    stranger = Prover(1, lambda: shared_key(MemoryStore(MemoryObjects()), BROKERS, b"another cluster")).connect(leader.address)
    call: Any = stranger.unary_unary(METHODS["Control.View"].path)
    assert await refused(call(b"")) == (grpc.StatusCode.UNAUTHENTICATED, "authentication failed")
    await stranger.close()
    assert {line["act"] for line in leader.lines if line["outcome"] == "refused"} == {"Control/View"}, "a question is no refusal"

    hold_puts(lead)
    assert [await send(lead, number) for number in range(1, 5)] == list(range(1, 5))
    assert follower.engine.replicas.bytes > 0
    await lead.crash()
    assert await values(await new_lead(world, lead)) == [b"%d" % number for number in range(5)]


async def test_a_broker_that_was_started_again_is_proved_to_again(make_world: MakeWorld) -> None:
    """Connections are kept; the challenge of the earlier run is worth nothing."""
    world = await make_world(2, kafka_protocol="sasl_plaintext")
    first, second = world.brokers
    channel = second.connect(first.address)
    call: Any = channel.unary_unary(METHODS["Control.View"].path)
    await call(b"")
    security = first.security
    assert security is not None
    await security.use(first.engine, {})  # as a start does
    await call(b"")
    await channel.close()


async def test_strangers_cannot_take_the_places_of_brokers(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """All places for logins that are judged are taken, and all of strangers: brokers join, and a broker has places of its own."""
    monkeypatch.setattr(open_calls, "ASKING_MAX", 0)
    monkeypatch.setattr(open_calls, "STRANGERS_MAX", 0)
    world = await make_world(3, kafka_protocol="sasl_plaintext")
    first, second, _ = world.brokers
    status = admin_pb2.StatusRequest()
    admin = dict([basic("admin", PASSWORD)])
    assert (await refused(first.call("Admin.Status", status, **admin)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    channel = second.connect(first.address)
    call: Any = channel.unary_unary(METHODS["Control.View"].path)
    await call(b"")
    monkeypatch.setattr(open_calls, "BROKERS_MAX", 1)  # the streams of the two members are more
    code, details = await refused(call(b""))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "of other brokers" in details
    await channel.close()
    monkeypatch.setattr(open_calls, "ASKING_MAX", 1)
    assert (await first.call("Admin.Status", status, **admin)).brokers, "the reverse holds, too"
