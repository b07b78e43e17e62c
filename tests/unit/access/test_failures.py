"""Failed logins by address: who may still connect."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import cast

import pytest

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import Access, User
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.broker.server.access import failures, passwords
from headgate.broker.server.access.failures import BURST_S, Failures
from headgate.broker.server.access.security import Security
from headgate.broker.server.audit.audit import Audit
from headgate.broker.store.memory import MemoryStore


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_an_address_that_fails_too_often_waits_and_others_do_not() -> None:
    clock = Clock()
    found = Failures(5, clock)
    burst = 0
    while found.admits("10.0.0.1"):
        found.failed("10.0.0.1")
        burst += 1
    assert burst == 5 * BURST_S
    assert found.admits("10.0.0.2")
    admitted = 0
    for _ in range(1000):  # ten seconds of a hundred attempts each
        clock.now_s += 0.01
        if found.admits("10.0.0.1"):
            found.failed("10.0.0.1")
            admitted += 1
    assert admitted == 50
    clock.now_s += BURST_S
    assert found.admits("10.0.0.1")


def test_an_address_that_fails_as_often_as_it_may_is_never_refused() -> None:
    clock = Clock()
    found = Failures(5, clock)
    for _ in range(10_000):
        assert found.admits("10.0.0.1")
        found.failed("10.0.0.1")
        clock.now_s += 0.2


def test_without_a_rate_nothing_is_counted() -> None:
    found = Failures(0, Clock())
    for _ in range(10_000):
        found.failed("10.0.0.1")
    assert found.admits("10.0.0.1") and not found.empty_s


def test_addresses_are_bounded_and_the_failing_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "ADDRESSES_MAX", 1000)
    clock = Clock()
    found = Failures(5, clock)
    for number in range(failures.ADDRESSES_MAX - 1):
        found.failed(f"old-{number}")
    clock.now_s += 1
    while found.admits("bad"):
        found.failed("bad")
    found.failed("new")
    assert not found.admits("bad") and len(found.empty_s) == 2, "the old ones have an empty bucket"
    for number in range(2 * failures.ADDRESSES_MAX):
        found.failed(f"many-{number}")
    assert len(found.empty_s) == failures.ADDRESSES_MAX


async def test_logins_of_http_and_grpc_are_counted_too_and_a_right_password_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.from_values({"failed_logins_per_s": 1})
    security = Security(settings, Clock(), lambda: 0, None, Audit(1, lambda: 0, lambda *_: None))
    access = Access([User(name="alice", verifiers=scram.verifiers("right", bytes))])
    engine = SimpleNamespace(manifest=SimpleNamespace(access=access), store=MemoryStore())
    await security.use(cast(Engine, engine), {})

    def basic(password: str) -> str:
        return "Basic " + base64.b64encode(f"alice:{password}".encode()).decode()

    await security.by_header(basic("right"), "10.0.0.1")
    monkeypatch.setattr(passwords, "FAILED_S", 0.0)
    for door, header in [("http", basic("wrong")), ("grpc", "Bearer x")] * int(BURST_S / 2):
        with pytest.raises(InvalidError):
            await security.by_header(header, "10.0.0.1", door)
    assert not security.failures.admits("10.0.0.1"), "as seen by the Kafka port"
    for header in (basic("wrong"), basic("right2"), "Bearer x"):
        with pytest.raises(RetryError):
            await security.by_header(header, "10.0.0.1", "http")
    await security.by_header(basic("right"), "10.0.0.1")
    with pytest.raises(InvalidError):
        await security.by_header(basic("wrong"), "10.0.0.2")
