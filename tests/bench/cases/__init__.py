"""All cases of the benchmark, in the order in which they run."""

from tests.bench.cases import (
    adopted,
    cold,
    durable,
    fetch,
    flood,
    folds,
    history,
    lanes,
    memory,
    page,
    produce,
    security,
    sink,
    sink_shapes,
    start,
    tables,
)
from tests.bench.harness import Case

ALL: list[Case] = [
    *produce.CASES,
    *fetch.CASES,
    *cold.CASES,
    *durable.CASES,
    *memory.CASES,
    *start.CASES,
    *history.CASES,
    *lanes.CASES,
    *page.CASES,
    *folds.CASES,
    *tables.CASES,
    *flood.CASES,
    *adopted.CASES,
    *sink.CASES,
    *sink_shapes.CASES,
    *security.CASES,
]
