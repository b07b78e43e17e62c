"""1,000,000 batches in the broker's own index, in a separate process. Prints JSON: one object for each shape.

The broker's modules are loaded first, so that a garbage collection visits as many objects as in a broker.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from headgate.broker.log.index import BatchIndex
from tests.bench.native import resident_bytes

BATCHES = 1_000_000
LOADED = ("headgate.broker.server.main", "headgate.broker.engine.engine")


class Pauses:
    """Measures the longest garbage collection while it is installed."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._started = 0.0

    def __call__(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._started = time.perf_counter()
        else:
            self.longest_s = max(self.longest_s, time.perf_counter() - self._started)


def _build(partitions: int) -> list[BatchIndex]:
    """Round robin over the partitions, as clients would send them."""
    indexes = [BatchIndex() for _ in range(partitions)]
    adds: list[Callable[[int, int, int, int], None]] = [index.add for index in indexes]
    for number in range(BATCHES):
        adds[number % partitions](number * 10, 1_700_000_000_000 + number, number * 1000 % (1 << 31), 1000)
    return indexes


def _measure(partitions: int, pid: int) -> dict[str, Any]:
    gc.collect()
    empty = time.perf_counter()
    gc.collect()
    empty = time.perf_counter() - empty
    pauses = Pauses()
    gc.callbacks.append(pauses)
    before = resident_bytes(pid)
    start = time.perf_counter()
    kept = _build(partitions)
    seconds = time.perf_counter() - start
    size = resident_bytes(pid) - before
    for _ in range(3):
        gc.collect()
    gc.callbacks.remove(pauses)
    assert sum(map(len, kept)) == BATCHES
    return {
        "partitions": partitions,
        "bytes_per_batch": size / BATCHES,
        "seconds": seconds,
        "gc_pause_max_ms": pauses.longest_s * 1e3,
        "gc_pause_empty_ms": empty * 1e3,
    }


def main() -> None:
    """Both shapes: all in one partition, and spread over a thousand."""
    import os

    for module in LOADED:
        importlib.import_module(module)
    # As in a broker that serves: the objects of start-up are never garbage.
    gc.freeze()
    sys.stdout.write(json.dumps([_measure(partitions, os.getpid()) for partitions in (1, 1000)]) + "\n")


if __name__ == "__main__":
    main()
