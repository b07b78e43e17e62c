"""SASL on one connection: what is offered where, and any order of any messages.

Runs the logins of one connection with users in memory. Compared: who is logged in after messages that are cut off, changed,
replayed, of another mechanism or in another order. A mismatch means that a client is logged in without a proof, or as another
user.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import MECHANISMS, Access, User, Verifier
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.server.access import passwords as passwords_module
from headgate.broker.server.access.failures import Failures
from headgate.broker.server.access.passwords import Passwords
from headgate.broker.server.access.rights import Identity
from headgate.broker.server.access.sasl import Logins, Sasl
from headgate.broker.server.access.tokens import Tokens
from tests.support.errors import raises
from tests.support.examples import examples
from tests.support.waiting import begun

EVERY_MECHANISM = (*MECHANISMS, "PLAIN", "OAUTHBEARER")
PASSWORD = "right"
"""Short in CI; the environment makes it long."""
ACCESS = Access(
    [User(name=name, verifiers=scram.verifiers(PASSWORD, lambda size: bytes(range(1, size + 1)))) for name in ("alice", "bob")]
)


class Client:
    """One connection of a client that knows alice's password, and the server's side of it."""

    def __init__(self, *, is_tls: bool = True, **values: Any) -> None:
        config = Settings(**values)
        self.now_s = 100.0
        self.logins: list[str] = []
        logins = Logins(
            config,
            passwords := Passwords(lambda: ACCESS),
            Tokens(config, lambda: self.now_s),
            lambda: self.now_s,
            lambda: int(self.now_s * 1000),
        )
        self.passwords = passwords
        self.failures = Failures(config.failed_logins_per_s, lambda: self.now_s)
        self.sasl = Sasl(logins, "10.0.0.1", self.failures, is_tls=is_tls, on_login=self._known)

    def _known(self, identity: Identity) -> None:
        self.logins.append(identity.principal)

    async def step(self, message: bytes) -> bytes:
        return await self.sasl.step(message)

    async def scram(self, user: str = "alice", mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> None:
        self.sasl.choose(mechanism)
        first = f"n={user},r=nonce"
        challenge = (await self.step(b"n,," + first.encode())).decode()
        await self.step(final(first, challenge, mechanism, password))


def final(first: str, challenge: str, mechanism: str, password: str) -> bytes:
    """The last message of a client, as in RFC 5802, by the standard library alone."""
    name = "sha256" if mechanism.endswith("256") else "sha512"
    parts = dict(one.split("=", 1) for one in challenge.split(","))
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    without_proof = f"c=biws,r={parts['r']}"
    signature = hmac.digest(hashlib.new(name, client_key).digest(), f"{first},{challenge},{without_proof}".encode(), name)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords_module, "FAILED_S", 0.0)


def test_passwords_and_tokens_are_not_offered_without_tls() -> None:
    tokens = {"oauth_jwks": "/keys"}
    assert Client(is_tls=False).sasl.mechanisms == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
    assert Client(is_tls=False, **tokens).sasl.mechanisms == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
    assert set(Client(**tokens).sasl.mechanisms) == set(EVERY_MECHANISM)
    assert "PLAIN" in Client(is_tls=False, sasl_plain_without_tls=True).sasl.mechanisms
    for mechanism in ("PLAIN", "OAUTHBEARER", "SCRAM-SHA-1", "GSSAPI", "ANONYMOUS", ""):
        with raises(InvalidError, Reason.UNSUPPORTED):
            Client(is_tls=False, **tokens).sasl.choose(mechanism)


async def test_an_operator_may_offer_fewer_mechanisms() -> None:
    client = Client(sasl_mechanisms="SCRAM-SHA-512")
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        with pytest.raises(InvalidError):
            client.sasl.choose(mechanism)
    await client.scram(mechanism="SCRAM-SHA-512")
    assert client.logins == ["User:alice"]


@pytest.mark.parametrize("weaker", ["SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"])
async def test_a_connection_cannot_log_in_again_by_a_weaker_mechanism(weaker: str) -> None:
    client = Client(oauth_jwks="/keys")
    await client.scram(mechanism="SCRAM-SHA-512")
    with pytest.raises(InvalidError, match="cannot change"):
        client.sasl.choose(weaker)


async def test_a_login_that_was_begun_in_time_may_arrive_a_little_late() -> None:
    """A client logs in again shortly before its time. On a busy machine the broker's timer came first, and ended the connection."""
    client = Client(connection_reauthenticate_ms=1000)
    await client.scram()
    assert client.sasl.lifetime_ms == 1000
    assert client.sasl.identity is not None and client.sasl.identity.expires_s == 102.0
    client.now_s = 101.5
    client.sasl.choose("SCRAM-SHA-256")
    challenge = (await client.step(b"n,,n=alice,r=nonce")).decode()
    assert client.sasl.lifetime_ms == 0, "librdkafka crashes if the first answer of a login has a time to live"
    await client.step(final("n=alice,r=nonce", challenge, "SCRAM-SHA-256", PASSWORD))
    assert client.sasl.lifetime_ms == 1000 and client.sasl.identity.expires_s == 103.5
    client = Client()
    await client.scram()
    assert client.sasl.lifetime_ms == 0


async def test_a_connection_cannot_become_another_user() -> None:
    client = Client()
    await client.scram()
    with pytest.raises(InvalidError, match="user cannot change"):
        await client.scram("bob")
    assert client.logins == ["User:alice"]


async def test_a_challenge_for_one_hash_is_not_answered_by_the_other() -> None:
    client = Client()
    client.sasl.choose("SCRAM-SHA-512")
    challenge = (await client.step(b"n,,n=alice,r=nonce")).decode()
    with pytest.raises(InvalidError):
        await client.step(final("n=alice,r=nonce", challenge, "SCRAM-SHA-256", PASSWORD))
    assert not client.logins


async def test_a_login_of_another_connection_cannot_be_replayed() -> None:
    one, other = Client(), Client()
    for client in (one, other):
        client.sasl.choose("SCRAM-SHA-256")
    first = "n=alice,r=nonce"
    recorded = final(first, (await one.step(b"n,," + first.encode())).decode(), "SCRAM-SHA-256", PASSWORD)
    await other.step(b"n,," + first.encode())
    with pytest.raises(InvalidError):
        await other.step(recorded)
    await one.step(recorded)
    one.sasl.choose("SCRAM-SHA-256")
    await one.step(b"n,," + first.encode())
    with pytest.raises(InvalidError):
        await one.step(recorded)
    assert (one.logins, other.logins) == (["User:alice"], [])


async def test_each_login_begins_with_a_handshake() -> None:
    client = Client()
    with raises(InvalidError, Reason.INVALID_REQUEST):
        await client.step(b"n,,n=alice,r=nonce")
    await client.scram()
    with pytest.raises(InvalidError):
        await client.step(b"n,,n=alice,r=nonce")


async def test_a_failed_login_must_begin_anew() -> None:
    client = Client()
    with pytest.raises(InvalidError):
        await client.scram(password="wrong")
    with pytest.raises(InvalidError) as raised:
        await client.step(b"anything")
    assert raised.value.reason is Reason.INVALID_REQUEST and not client.logins


@pytest.mark.parametrize(
    "message", [b"", b"\0", b"\0alice", b"\0alice\0", b"\0alice\0wrong", b"bob\0alice\0right", b"\0\0right", b"\0alice\0right\0"]
)
async def test_plain_that_is_cut_off_wrong_or_for_another_is_refused(message: bytes) -> None:
    client = Client()
    client.sasl.choose("PLAIN")
    with pytest.raises(InvalidError):
        await client.step(message)
    assert not client.logins


@pytest.mark.parametrize(("password", "counted"), [("wrong", 1), (PASSWORD, 0)])
async def test_a_login_counts_as_failed_until_it_has_worked(password: str, counted: int) -> None:
    client = Client(failed_logins_per_s=1)
    client.sasl.choose("PLAIN")
    login = await begun(client.step(b"\0alice\0" + password.encode()))
    assert client.failures.empty_s["10.0.0.1"] - client.now_s == 1, "who does not wait for the answer has caused the work"
    await asyncio.wait((login,))
    assert (login.exception() is not None) == bool(counted)
    assert client.failures.empty_s["10.0.0.1"] - client.now_s == counted


async def test_a_login_that_the_broker_has_no_time_for_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords_module, "SOURCE_MAX", 0)
    client = Client(failed_logins_per_s=1)
    busy = await begun(client.passwords.check("alice", "wrong", "http", "10.0.0.9"))
    client.sasl.choose("PLAIN")
    with pytest.raises(RetryError):
        await client.step(b"\0alice\0wrong")
    assert client.failures.empty_s["10.0.0.1"] - client.now_s == 0
    with pytest.raises(InvalidError):
        await busy


async def test_wrong_passwords_of_one_source_do_not_make_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 wrong ones from one port and address wait; the right one of another comes as the second, and those of the same as soon
    as each name there had one."""
    judged: list[str] = []

    def matches(password: str, known: Verifier, mechanism: str) -> bool:
        judged.append(password)
        return password.startswith(PASSWORD)

    monkeypatch.setattr(scram, "matches", matches)
    client = Client()
    check = client.passwords.check
    bad = [asyncio.create_task(check(f"user-{number % 5}", f"bad-{number}", "http", "10.0.0.1")) for number in range(400)]
    await asyncio.sleep(0)
    good = [
        asyncio.create_task(check("bob", PASSWORD, "http", "10.0.0.1")),
        asyncio.create_task(check("alice", PASSWORD, "kafka", "10.0.0.1")),
        asyncio.create_task(check("alice", PASSWORD, "kafka", "10.0.0.1")),
    ]
    await asyncio.sleep(0)
    bad[300].cancel()
    await asyncio.gather(*good)
    assert judged.index(PASSWORD) <= 2 and len(judged) < 20, "alice's second client needs no work: the first one was right"
    errors = await asyncio.gather(*bad, return_exceptions=True)
    refused = [one for one in errors if isinstance(one, RetryError)]
    assert len(refused) >= 400 - passwords_module.SOURCE_MAX - 1 and len(judged) <= passwords_module.SOURCE_MAX + 3
    assert all(isinstance(one, InvalidError | RetryError | asyncio.CancelledError) for one in errors)
    await check("bob", PASSWORD + "2", "http", "10.0.0.1")
    assert judged[-1] == PASSWORD + "2", "the queue goes on"


async def test_an_unknown_user_costs_as_much_as_a_known_one() -> None:
    challenges = []
    for user in ("alice", "nobody"):
        client = Client()
        client.sasl.choose("SCRAM-SHA-256")
        challenges.append((await client.step(f"n,,n={user},r=nonce".encode())).decode())
    assert len({one.rpartition(",i=")[2] for one in challenges}) == 1, "the iterations would tell who exists"


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("choose"), st.sampled_from((*EVERY_MECHANISM, "GSSAPI", ""))),
        st.tuples(st.just("raw"), st.binary(max_size=60)),
        st.tuples(st.just("first"), st.sampled_from(("alice", "bob", "nobody"))),
        st.tuples(st.just("final"), st.sampled_from((PASSWORD, "wrong"))),
        st.tuples(st.just("cut"), st.integers(0, 120)),
        st.tuples(st.just("flip"), st.integers(0, 2000)),
        st.tuples(st.just("again"), st.just("")),
        st.tuples(st.just("plain"), st.sampled_from((b"\0alice\0wrong", b"alice\0bob\0right", b"\0nobody\0right"))),
    ),
    max_size=12,
)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(MOVES)
def test_no_order_of_any_messages_logs_in_without_a_proof(moves: list[tuple[str, Any]]) -> None:
    asyncio.run(_play(moves))


async def _play(moves: list[tuple[str, Any]]) -> None:
    client = Client()
    mechanism = user = challenge = ""
    last = b""
    for kind, value in moves:
        logins = len(client.logins)
        right = final(f"n={user},r=nonce", challenge, mechanism, PASSWORD) if challenge else b""
        try:
            if kind == "choose":
                client.sasl.choose(value)
                mechanism, challenge = value, ""
                continue
            if kind == "first":
                # A second first message does not replace the one that the challenge is for.
                user, last = user if challenge else value, f"n,,n={value},r=nonce".encode()
            elif kind == "final" and challenge:
                last = final(f"n={user},r=nonce", challenge, mechanism, value)
            elif kind == "cut":
                last = last[:value]
            elif kind == "flip" and last:
                at = value % len(last)
                last = last[:at] + bytes((last[at] ^ (1 << value % 8),)) + last[at + 1 :]
            elif kind in ("raw", "plain"):
                last = value
            answer = await client.step(last)
            challenge = answer.decode() if answer.startswith(b"r=") else ""
        except HeadgateError:
            challenge = ""
        if len(client.logins) > logins:
            assert right and last == right and client.logins[-1] == f"User:{user}", moves
    assert len(set(client.logins)) <= 1, "a connection has one user"
