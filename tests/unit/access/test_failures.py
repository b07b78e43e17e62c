"""Failed logins by address: who may still connect."""

from __future__ import annotations

from headgate.broker.server.access import failures
from headgate.broker.server.access.failures import BURST_S, Failures


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


def test_addresses_are_bounded_and_the_failing_ones_stay() -> None:
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
