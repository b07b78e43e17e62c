"""The gates of one run against a stand-in of the cluster: renewals, losses, releases.

Compared: the calls of the cluster. A mismatch means that a gate outlives a failed run, or ends while its run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.broker.client.gate_admin import Place
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.held_gates import HeldGate, HeldGates

OWNER = "run-1"


class StandIn:
    """A connection whose beats are made by hand. `owner`: of all gates; `refusal`: the error of each call but `open`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.owner = OWNER
        self.refusal: HeadgateError | None = None
        self.beats: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.gates = self

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> Any:
        repeated = SimpleNamespace(error=None, seconds=seconds, stop=lambda: self.calls.append("stop"))

        async def beat() -> None:
            try:
                await work()
            except HeadgateError as error:
                repeated.error = error

        self.beats.append(beat)
        return repeated

    async def open(self, topic: str, rows: Any, *, gate_id: str, **_: Any) -> Any:
        self.calls.append(f"open {gate_id}")
        return SimpleNamespace(topic=topic, id=gate_id, owner=self.owner)

    async def renew(self, topic: str, gate_id: str, ttl_ms: int) -> Any:
        return self._answer(f"renew {gate_id}")

    async def release(self, topic: str, gate_id: str, *, owner: str) -> Any:
        assert owner == OWNER
        return self._answer(f"release {gate_id}")

    def _answer(self, text: str) -> Any:
        self.calls.append(text)
        if self.refusal is not None:
            raise self.refusal
        return SimpleNamespace(owner=self.owner)


def opened(gates: HeldGates, gate_id: str, lost: list[str]) -> HeldGate:
    return gates.open("t", gate_id, [1], place=Place.NOW, ttl_ms=9_000, definition="d", lost=lambda: lost.append(gate_id))


def test_a_run_that_fails_releases_its_gates_except_the_filled_ones() -> None:
    cluster, said = StandIn(), list[str]()
    with pytest.raises(ZeroDivisionError), HeldGates(cluster, OWNER, said.append) as gates:  # type: ignore[arg-type]
        for name in ("a", "b", "c"):
            opened(gates, name, [])
        gates.drop("t", "b")
        raise ZeroDivisionError
    assert cluster.calls == ["open a", "open b", "open c", "stop", "stop", "stop", "release a", "release c"]
    assert said == []


def test_a_run_that_ends_well_releases_nothing() -> None:
    cluster = StandIn()
    with HeldGates(cluster, OWNER, print) as gates:  # type: ignore[arg-type]
        opened(gates, "a", [])
    assert cluster.calls == ["open a", "stop"]


def test_the_gate_of_another_run_is_renewed_and_never_released() -> None:
    cluster = StandIn()
    cluster.owner = "run-2"
    with pytest.raises(ZeroDivisionError), HeldGates(cluster, OWNER, print) as gates:  # type: ignore[arg-type]
        opened(gates, "a", [])
        asyncio.run(cluster.beats[0]())  # type: ignore[arg-type]
        raise ZeroDivisionError
    assert cluster.calls == ["open a", "renew a", "stop"]


def test_a_renewal_without_an_answer_is_tried_again_and_a_lost_gate_is_told() -> None:
    cluster, said, lost = StandIn(), list[str](), list[str]()
    with HeldGates(cluster, OWNER, said.append) as gates:  # type: ignore[arg-type]
        held = opened(gates, "a", lost)
        cluster.refusal = RetryError(Reason.STORE_UNAVAILABLE, "no answer")
        asyncio.run(cluster.beats[0]())  # type: ignore[arg-type]
        assert (held.lost, lost, said) == (None, [], ["gate a was not renewed, trying again: no answer"])
        cluster.refusal = None
        cluster.owner = "run-2"
        asyncio.run(cluster.beats[0]())  # type: ignore[arg-type]
        assert lost == ["a"]
        assert isinstance(held.lost, InvalidError)
        cluster.owner = OWNER
        assert opened(gates, "a", lost).lost is None, "a lost gate can be opened again"


def test_no_renewal_after_the_longest_time_and_a_failed_release_is_told() -> None:
    cluster, said = StandIn(), list[str]()
    with pytest.raises(ZeroDivisionError), HeldGates(cluster, OWNER, said.append, most_s=-1.0) as gates:  # type: ignore[arg-type]
        opened(gates, "a", [])
        asyncio.run(cluster.beats[0]())  # type: ignore[arg-type]
        assert "renew a" not in cluster.calls
        cluster.refusal = RetryError(Reason.STORE_UNAVAILABLE, "no answer")
        raise ZeroDivisionError
    assert said == [
        "gate a is not renewed any more: the run took longer than it may",
        "gate a could not be released, it will expire: no answer",
    ]
