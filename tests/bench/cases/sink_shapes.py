"""The time of a flood against the shape of its source: rows, files, partitions, and one key that most rows have."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.bench.brokers import Broker
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case, quietly, remove_tree
from tests.bench.report import Goal, Row
from tests.bench.spark_driver import Driver, driver

PARTITIONS = 8
THREADS = 2
REPEATED_ROWS_MAX = 5_000_000
"""Sources up to this number of rows are loaded twice, and the better time counts."""
LINEAR_GOAL = 1.2
"""Largest time for a row of the largest source, of that of the source a fifth as large."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A source of so many rows in so many files. `made`: what else `spark_driver.source` needs."""

    name: str
    rows: int
    files: int
    partitions: int = PARTITIONS
    made: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Floods:
    """A Spark driver and a broker."""

    bench: Bench
    spark: Driver
    broker: Broker
    number: int = 0

    def seconds(self, shape: Shape) -> tuple[float, dict[str, Any]]:
        """The best time of a flood, and the answer of the last one."""
        place = self.bench.fresh_directory("shape")
        path = str(place / "source")
        best, answer = float("inf"), {}
        try:
            self.spark.run("source", path=path, rows=shape.rows, file_rows=-(-shape.rows // shape.files), **shape.made)
            for _ in range(2 if shape.rows <= REPEATED_ROWS_MAX else 1):
                answer, disturbed = quietly(partial(self._flood, path, shape))
                best = min(best, answer["seconds"])
                answer["disturbed"] = disturbed
        finally:
            remove_tree(place)
        return best, answer

    def _flood(self, path: str, shape: Shape) -> dict[str, Any]:
        self.number += 1
        os.sync()
        cluster = f"127.0.0.1:{self.broker.grpc_port}"
        return self.spark.run("flood", path=path, cluster=cluster, topic=f"t{self.number}", partitions=shape.partitions)


@contextlib.contextmanager
def _floods(bench: Bench) -> Iterator[Floods]:
    with driver(THREADS) as spark, bench.broker(LOCAL_ALWAYS) as broker:
        floods = Floods(bench=bench, spark=spark, broker=broker)
        floods.seconds(Shape("warm", 200_000, 2))
        yield floods


def _rows(bench: Bench) -> Iterable[Row]:
    sizes = [bench.pick(number // 10, number) for number in (1_000_000, 5_000_000, 25_000_000)]
    per_million = []
    with _floods(bench) as floods:
        for rows in sizes:
            seconds, answer = floods.seconds(Shape("", rows, max(rows // 500_000, 1)))
            per_million.append(seconds / rows * 1e6)
            yield _row(f"flood of {rows / 1e6:g} M rows", seconds, rows, answer)
    yield Row(
        group="sink", case="flood: time for a row of the largest, of one with a fifth of the rows", side=Goal.AT_MOST, unit="x",
        ratio=per_million[2] / per_million[1], goal=LINEAR_GOAL, measured=f"{per_million[2]:.2f} s/M",
        ceiling=f"{per_million[1]:.2f} s/M",
    )  # fmt: skip


def _compared(bench: Bench, shapes: list[Shape]) -> Iterable[Row]:
    """The shapes, each compared with the first one."""
    first = 0.0
    with _floods(bench) as floods:
        for shape in shapes:
            seconds, answer = floods.seconds(shape)
            first = first or seconds
            yield _row(f"flood, {shape.name}", seconds, shape.rows, answer, seconds / first)


def _row(case: str, seconds: float, rows: int, answer: dict[str, Any], ratio: float | None = None) -> Row:
    note = f"{rows:,} rows; {answer['files']} extents, counting {answer['counting']:.1f} s, by {answer['engine']}"
    measured = f"{seconds:.1f} s, {seconds / rows * 1e6:.2f} s/M"
    return Row(
        group="sink", case=case, measured=measured, ratio=ratio, unit="x", note=note, details=answer, disturbed=answer["disturbed"]
    )


def _files(bench: Bench) -> Iterable[Row]:
    rows, most = bench.pick(500_000, 5_000_000), bench.pick(1_000, 10_000)
    shapes = [Shape(f"{files:,} files", rows, files) for files in (100, 1, most)]
    shapes.append(Shape("100 files in the order of time", rows, 100, made={"ordered": True}))
    return _compared(bench, shapes)


def _partitions(bench: Bench) -> Iterable[Row]:
    rows = bench.pick(500_000, 5_000_000)
    shapes = [Shape(f"{count} partitions", rows, 10, count) for count in (8, 1, 64)]
    shapes.append(Shape("90 % of the rows on one key", rows, 10, made={"hot_share": 0.9}))
    return _compared(bench, shapes)


CASES = [
    Case("sink", "flood by number of rows", _rows, goal=LINEAR_GOAL, side=Goal.AT_MOST, unit="x"),
    Case("sink", "flood by number of files", _files),
    Case("sink", "flood by number of partitions, and a hot key", _partitions),
]
