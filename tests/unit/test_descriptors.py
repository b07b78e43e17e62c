"""File descriptors: the limit of a process, and the refusal of connections near it."""

from __future__ import annotations

import resource

import pytest

from headgate.broker.runtime import descriptors
from headgate.broker.runtime.errors import InvalidError

INFINITE = resource.RLIM_INFINITY


class Limits:
    """Stands for the system's limits, and records the new ones."""

    def __init__(self, patch: pytest.MonkeyPatch, soft: int, hard: int, *, lowest: int = 1 << 40) -> None:
        self.limits = soft, hard
        self._allowed = lowest
        patch.setattr(resource, "getrlimit", lambda _: self.limits)
        patch.setattr(resource, "setrlimit", self._set)

    def _set(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] > self._allowed:
            raise ValueError("current limit exceeds maximum limit")
        self.limits = limits


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        pytest.param(1024, 4096, 4096, id="all-that-may-be"),
        pytest.param(1024, 1 << 20, 12_000, id="what-is-needed"),
        pytest.param(1024, INFINITE, 12_000, id="no-limit"),
        pytest.param(1 << 20, 1 << 20, 1 << 20, id="never-lowered"),
        pytest.param(INFINITE, INFINITE, INFINITE, id="none-at-all"),
    ],
)
def test_the_limit_is_raised_to_what_connections_need(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int) -> None:
    limits = Limits(monkeypatch, soft, hard)
    descriptors.allow(10_000)
    assert limits.limits == (expected, hard)


def test_a_system_that_allows_less_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 256, INFINITE, lowest=10_240)
    descriptors.allow(10_000)
    assert limits.limits == (256, INFINITE)


@pytest.mark.parametrize(("hard", "refused"), [(48, True), (64, True), (255, True), (256, False)])
def test_a_limit_with_which_no_client_would_be_served(monkeypatch: pytest.MonkeyPatch, hard: int, refused: bool) -> None:
    Limits(monkeypatch, min(48, hard), hard)
    if refused:
        with pytest.raises(InvalidError, match=f"limit=`{hard}` least=`256`"):
            descriptors.allow(10_000)
    else:
        descriptors.allow(10_000)
        assert not descriptors.scarce(150)


def test_connections_leave_some(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, 1024, 1024)
    assert (descriptors.share(1000), descriptors.share(100)) == (128, 100)
    assert [descriptors.scarce(number) for number in (3, 863, 864, 1023)] == [False, False, True, True]
    Limits(monkeypatch, 12_000, 12_000)
    assert descriptors.share(1000) == 1000 and not descriptors.scarce(10_900)
    Limits(monkeypatch, INFINITE, INFINITE)
    assert descriptors.share(1000) == 1000 and not descriptors.scarce(1 << 30)
