"""Time from process start to the first answer on the Kafka port, as a multiple of the start of a bare interpreter, in
alternation.

The first start of all is not counted: it compiles the broker's modules, as an installation does.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.bench import brokers
from tests.bench.harness import Bench, Case, remove_tree
from tests.bench.native import free_port
from tests.bench.report import Goal, Row, paired

GOAL = 8.0


def _bare() -> float:
    """Seconds of `python -c pass`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, cwd=brokers.ROOT)
    return time.perf_counter() - start


def _first_answer(store: Path, log: Path) -> float:
    """Seconds from the start of a broker to its first answer to ApiVersions; then it is stopped."""
    ports = free_port(), free_port(), free_port()
    with log.open("wb") as sink:
        command = brokers.command(str(store), *ports)
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, cwd=brokers.ROOT, env=brokers.environment({})
        )
        try:
            brokers.wait_for_answer(ports[0], process, log)
            return time.perf_counter() - start
        finally:
            process.terminate()
            try:
                process.wait(brokers.STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _run(bench: Bench, name: str, *, fresh: bool) -> Iterable[Row]:
    log = bench.directory / "start.log"
    kept = bench.fresh_directory("start")
    _first_answer(kept, log)
    bare, ours = [], []
    for _ in range(bench.pick(7, 15)):
        store = bench.fresh_directory("start") if fresh else kept
        bare.append(_bare())
        ours.append(_first_answer(store, log))
        if fresh:
            remove_tree(store)
    remove_tree(kept)
    ratio = paired(ours, bare)
    yield Row(
        group="start",
        case=name,
        measured=f"{statistics.median(ours) * 1e3:.0f} ms",
        ceiling=f"{statistics.median(bare) * 1e3:.1f} ms bare interpreter",
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        unit="x",
        goal=GOAL,
        side=Goal.AT_MOST,
    )


def _case(name: str, *, fresh: bool) -> Case:
    return Case("start", name, lambda bench: _run(bench, name, fresh=fresh), goal=GOAL, side=Goal.AT_MOST, unit="x")


CASES = [_case("first Kafka answer, empty store", fresh=True), _case("first Kafka answer, a store that served before", fresh=False)]
