"""All cases of the benchmark, in the order in which they run."""

from tests.bench.cases import (
    cluster,
    cold,
    durable,
    fetch,
    fleet,
    flood,
    gates,
    groups,
    grpc,
    history,
    latency,
    librdkafka,
    memory,
    noise,
    produce,
    start,
    turns,
)
from tests.bench.harness import Case

ALL: list[Case] = [
    *noise.CASES,
    *produce.CASES,
    *fetch.CASES,
    *cold.CASES,
    *durable.CASES,
    *librdkafka.CASES,
    *latency.CASES,
    *grpc.CASES,
    *groups.CASES,
    *memory.CASES,
    *start.CASES,
    *turns.CASES,
    *cluster.CASES,
    *fleet.CASES,
    *history.CASES,
    *gates.CASES,
    *flood.CASES,
]
