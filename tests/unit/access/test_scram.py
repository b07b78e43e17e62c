"""SCRAM: the exchanges of the RFC, and those that a server must not accept.

Compared: the server's messages with those of RFC 7677, and refusals. A mismatch means that a client cannot log in, or that a
recording, a truncated or a forged message logs somebody in.
"""

from __future__ import annotations

import base64

import pytest

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import Access, User, Verifier
from headgate.broker.cluster.scram import Exchange, ScramError

# RFC 7677, section 3.
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
OURS = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
KNOWN = scram.verifier(scram.salted("pencil", SALT, 4096, "SCRAM-SHA-256"), SALT, 4096, "SCRAM-SHA-256")


def decoy(name: str) -> tuple[int, bytes]:
    return scram.decoy(name, {(4096, 16): 1}, b"secret")


def exchange(known: Verifier | None = KNOWN, nonce: str = OURS) -> Exchange:
    return Exchange("SCRAM-SHA-256", lambda name: known if name == "user" else None, nonce, decoy)


def test_the_example_of_the_rfc() -> None:
    login = exchange()
    assert login.step(FIRST) == SERVER_FIRST
    assert login.step(FINAL) == SERVER_FINAL
    assert login.is_done and login.user == "user"


@pytest.mark.parametrize(
    "messages",
    [
        (b"",),
        (b"\xff",),
        (b"n,,n=user",),
        (b"n,,r=abc,n=user",),
        (b"p=tls-unique,,n=user,r=abc",),
        (b"n,a=other,n=user,r=abc",),
        (b"n,,n=user,r=" + b"a" * 5000,),
        (FIRST, b""),
        (FIRST, FINAL[:-1] + b"Q"),
        (FIRST, FINAL[:40]),
        (FIRST, FINAL.replace(b"biws", b"eSws")),
        (FIRST, FINAL.replace(b"hvYD", b"hvYE")),
        (FIRST, FINAL.replace(b"p=dHzb", b"p=dHzc")),
        (FIRST, FINAL.replace(b"=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"=AAAA")),
        (FIRST, FINAL, FINAL),
        (b"n,,n=nobody,r=rOprNGfwEbeRWgbNEkqO", FINAL),
    ],
)
def test_what_is_wrong_or_cut_off_is_refused(messages: tuple[bytes, ...]) -> None:
    login = exchange()
    with pytest.raises(ScramError):
        for message in messages:
            login.step(message)


def test_a_recorded_login_does_not_work_again() -> None:
    login = exchange(nonce="another")
    login.step(FIRST)
    with pytest.raises(ScramError, match="another login"):
        login.step(FINAL)


def test_an_unknown_user_looks_like_a_known_one() -> None:
    first = b"n,,n=nobody,r=abc"
    answers = {exchange().step(first) for _ in range(2)}
    assert len(answers) == 1, "the salt of an unknown user is always the same"
    assert answers.pop().endswith(b",i=4096"), "as many iterations as other users have"


def test_unknown_users_have_the_shapes_of_known_ones_as_often() -> None:
    """With a fixed length of the salt, or fixed iterations, an answer would tell who exists."""
    shapes = {(8192, 24): 900, (4096, 26): 100}
    names = [f"user-{number}" for number in range(4000)]
    found = {name: scram.decoy(name, shapes, b"secret") for name in names}
    assert {(iterations, len(salt)) for iterations, salt in found.values()} == set(shapes)
    rare = sum(iterations == 4096 for iterations, _ in found.values())
    assert 300 < rare < 500, "a tenth"
    assert found == {name: scram.decoy(name, shapes, b"secret") for name in names}, "another broker says the same"
    assert len({salt for _, salt in found.values()}) == len(names)
    later = {name: scram.decoy(name, {**shapes, (16384, 8): 10}, b"secret") for name in names}
    changed = [name for name in names if later[name] != found[name]]
    assert {later[name][0] for name in changed} == {16384} and len(changed) < 100, "new users change few"


def test_the_shapes_are_counted_while_users_come_change_and_go() -> None:
    users = {name: User(name=name, verifiers={"SCRAM-SHA-256": KNOWN}) for name in "ab"}
    access = Access([users["a"]])
    access.put(users["b"])
    assert access.shapes["SCRAM-SHA-256"] == {(4096, 16): 2} and not access.shapes["SCRAM-SHA-512"]
    access.put(User(name="a", verifiers=scram.verifiers("x", bytes)))
    assert access.shapes["SCRAM-SHA-256"] == {(4096, 16): 1, (scram.ITERATIONS, scram.SALT_BYTES): 1}
    access.delete("b")
    access.delete("b")
    assert access.shapes["SCRAM-SHA-256"] == {(scram.ITERATIONS, scram.SALT_BYTES): 1}


def test_names_are_escaped() -> None:
    login = Exchange("SCRAM-SHA-512", lambda name: None, OURS, decoy)
    login.step(b"n,,n=a=2Cb=3Dc,r=abc")
    assert login.user == "a,b=c"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_matches_its_own_verifier_only(mechanism: str) -> None:
    known = scram.verifiers("right", lambda size: bytes(range(1, size + 1)))[mechanism]
    assert scram.matches("right", known, mechanism) and not scram.matches("wrong", known, mechanism)
