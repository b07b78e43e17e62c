"""The time for which the costliest requests hold the event loop, and the time that other clients wait beside them.

The longest turn of the loop is measured in CPU time, in a broker in this process, for the costliest request of each API
(`tests/support/costly.py`). The latency of small acked produce requests is measured at a separate broker, alone and beside four
connections that repeat a costly request.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Iterable
from functools import partial

from headgate.broker.server.kafka.apis import APIS, Served
from tests.bench import frames
from tests.bench.harness import MEMORY, Bench, Case
from tests.bench.report import Row
from tests.support.costly import Costly, MeasuredBroker, costly, small
from tests.support.wire import ClosedByPeer, RawConnection

ATTEMPTS = 2
CONNECTIONS = 4
HOSTILE = ("Fetch", "CreateTopics", "Metadata", "ListOffsets")
TOPIC = "bench"


def _turns(bench: Bench) -> Iterable[Row]:
    elements = bench.pick(20_000, 100_000)
    # A garbage collection of this process, with its tools, would take a hundred milliseconds.
    gc.disable()
    try:
        for api in APIS.values():
            version = api.max_version
            # A broker for each API: the work that one API leaves for later is not measured as another one's.
            with MeasuredBroker() as broker:
                little_s = _least_s(broker, small(api, version))
                longest_s, what = max((_least_s(broker, one), one.what) for one in costly(api, version, elements))
            ratio = f"{longest_s / max(little_s, 1e-6):.0f} times that of a small request"
            yield Row(group="turns", case=api.name, measured=f"{longest_s * 1e3:.1f} ms", note=f"{ratio}; {what}")
    finally:
        gc.enable()


def _least_s(broker: MeasuredBroker, request: Costly) -> float:
    """The longest turn of the loop in the best of some attempts. The first one also pays for imports."""
    return min(broker.longest_turn_s(request) for _ in range(ATTEMPTS))


def _costliest(api: Served) -> bytes:
    return next(costly(api, api.max_version)).frame


def _p99_ms(port: int, seconds: float) -> float:
    """Latency of small acked produce requests, one after another."""
    request = frames.produce_request(TOPIC, 0, frames.batch(1024))
    took: list[float] = []
    with RawConnection("127.0.0.1", port) as connection:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            connection.send(request)
            connection.receive_frame()
            took.append((time.perf_counter() - began) * 1e3)
    return statistics.quantiles(took, n=100)[98] if len(took) > 1 else seconds * 1e3


def _beside(bench: Bench, hostile: str) -> Iterable[Row]:
    seconds = float(bench.pick(3, 10))
    frame = _costliest(next(api for api in APIS.values() if api.name == hostile))
    with bench.broker(MEMORY) as broker:
        broker.create_topic(TOPIC)
        alone_ms = _p99_ms(broker.kafka_port, seconds / 2)
        over = threading.Event()
        answered = [0] * CONNECTIONS

        def repeat(which: int) -> None:
            while not over.is_set():
                try:
                    with RawConnection("127.0.0.1", broker.kafka_port) as connection:
                        while not over.is_set():
                            connection.send(frame)
                            connection.receive_frame()
                            answered[which] += 1
                except (ClosedByPeer, TimeoutError):
                    answered[which] += 1

        threads = [threading.Thread(target=repeat, args=(which,), daemon=True) for which in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        try:
            beside_ms = _p99_ms(broker.kafka_port, seconds)
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
    yield Row(
        group="turns",
        case=f"p99 of an ack beside {CONNECTIONS} connections that repeat {hostile}",
        measured=f"{beside_ms:.1f} ms",
        note=f"alone {alone_ms:.1f} ms; {sum(answered)} hostile requests answered in {seconds:.0f} s",
    )


CASES = [
    Case("turns", "longest turn of the loop for each API", _turns),
    *(Case("turns", f"beside {hostile}", partial(_beside, hostile=hostile)) for hostile in HOSTILE),
]
