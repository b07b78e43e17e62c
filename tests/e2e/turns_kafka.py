"""No request holds the event loop for long: the costliest requests of every API against small ones.

Runs: a broker in this process, with real sockets and an event loop that measures the CPU time of its turns. For every API that the
broker serves, the test sends the most expensive requests that the limits of size and elements admit (`tests/support/costly.py`
makes them from Kafka's schema, so a new API is covered). Compared: the longest turn of the loop during such a request with the
longest turn during small requests, in CPU time of the loop's thread, which other processes do not change much. The best of
several runs counts. A mismatch means that an API processes a whole large request in one turn. Meanwhile the broker serves no
other client, and a broker that is silent for long is replaced. The API's loops belong into `Context.turn.each`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from headgate.broker.runtime.turns import SLICE_S
from headgate.broker.server.kafka.apis import APIS, Served
from tests.support.costly import Costly, MeasuredBroker, costly, served, small

TURN_RATIO_MAX = 15.0
"""Bound of the longest turn of any request, as a multiple of the longest turn of the small requests of all APIs. A slice is some
2 ms. A small request takes up to half a millisecond, and a step or freeing memory may follow a slice. A whole request in one
turn takes from 30 ms to seconds, a ratio from 60 to 10,000."""
SMALL_TURN_MIN_S = SLICE_S / 2
"""A quick machine answers small requests in a tenth of a slice. But a slice is as long there as on a slow machine, and one turn
may contain slices of a request, of the leader and of the write path."""
RUNS = 5
QUICK_ELEMENTS = 20_000
"""Elements of a request in the short form: an array that is processed in one turn takes 20 ms at least."""


@pytest.fixture(scope="module", autouse=True)
def no_garbage_collection() -> Iterator[None]:
    # A garbage collection takes a hundred milliseconds in this process with its tests and tools, and a few in a broker.
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture
def broker() -> Iterator[MeasuredBroker]:
    """A broker for one API: what the requests of another one left to do in the background is not measured with it."""
    with MeasuredBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def small_turn_s(no_garbage_collection: None) -> float:
    """The longest turn of a small request of any API, after its code was imported."""
    with MeasuredBroker() as broker:
        longest_small_turn_s(broker)
        return max(SMALL_TURN_MIN_S, longest_small_turn_s(broker))


def longest_small_turn_s(broker: MeasuredBroker) -> float:
    requests = [small(api, api.max_version) for api in APIS.values()]
    return max(min(broker.longest_turn_s(request) for _ in range(RUNS)) for request in requests)


def check(broker: MeasuredBroker, request: Costly, small_turn_s: float) -> None:
    turns_s: list[float] = []
    while len(turns_s) < RUNS:
        turns_s.append(broker.longest_turn_s(request))
        if turns_s[-1] <= TURN_RATIO_MAX * small_turn_s:
            return
        # Beside other processes every turn takes longer, on some machines twice as long: compare neighbours.
        small_turn_s = max(small_turn_s, longest_small_turn_s(broker))
    raise AssertionError(
        f"a request held the loop for long. api=`{request.api.name}` version=`{request.version}` request=`{request.what}` "
        f"bytes=`{len(request.frame)}` turns_ms=`{[round(one * 1e3, 1) for one in turns_s]}` small_ms=`{small_turn_s * 1e3:.2f}` "
        f"ratio_max=`{TURN_RATIO_MAX}`"
    )


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_the_costliest_requests_of_each_api(broker: MeasuredBroker, small_turn_s: float, api: Served) -> None:
    for request in costly(api, api.max_version, QUICK_ELEMENTS):
        check(broker, request, small_turn_s)


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version"), list(served()), ids=lambda one: str(getattr(one, "name", one)))
def test_the_costliest_requests_of_each_version(broker: MeasuredBroker, small_turn_s: float, api: Served, version: int) -> None:
    for request in costly(api, version):
        check(broker, request, small_turn_s)
