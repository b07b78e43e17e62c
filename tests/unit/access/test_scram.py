"""SCRAM: the exchanges of the RFC, and those that a server must not accept.

Compared: the server's messages with those of RFC 7677, and refusals. A mismatch means that a client cannot log in, or that a
recording, a truncated or a forged message logs somebody in.
"""

from __future__ import annotations

import base64

import pytest

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import Verifier
from headgate.broker.cluster.scram import Exchange, ScramError

# RFC 7677, section 3.
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
OURS = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
KNOWN = scram.verifier(scram.salted("pencil", SALT, 4096, "SCRAM-SHA-256"), SALT, 4096, "SCRAM-SHA-256")


def exchange(known: Verifier | None = KNOWN, nonce: str = OURS) -> Exchange:
    return Exchange("SCRAM-SHA-256", lambda name: known if name == "user" else None, nonce, b"secret")


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
    assert answers.pop().endswith(b",i=8192"), "as many iterations as a new user has"


def test_names_are_escaped() -> None:
    login = Exchange("SCRAM-SHA-512", lambda name: None, OURS, b"secret")
    login.step(b"n,,n=a=2Cb=3Dc,r=abc")
    assert login.user == "a,b=c"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_matches_its_own_verifier_only(mechanism: str) -> None:
    known = scram.verifiers("right", lambda size: bytes(range(1, size + 1)))[mechanism]
    assert scram.matches("right", known, mechanism) and not scram.matches("wrong", known, mechanism)
