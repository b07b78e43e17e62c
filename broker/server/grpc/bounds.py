"""The first and last offsets of partitions, from this broker's logs and from the other leads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.log import records_in
from headgate.broker.runtime.errors import RetryError
from headgate.broker.server.grpc.peers import Peers
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2
from headgate.broker.wire.grpc.methods import methods

ADMIN = methods(admin_pb2.DESCRIPTOR.services_by_name["Admin"])


class Bound(NamedTuple):
    """Records in [log_start, high_watermark) can be read."""

    log_start: int
    high_watermark: int
    size_bytes: int
    stable_end: int
    """Readers of committed records read up to it."""
    records: int

    def lag(self, offset: int) -> int:
        """Records from `offset` to the end."""
        return max(self.high_watermark - max(offset, self.log_start), 0)


NAMES_MAX = 1000
"""Most topics of one request."""

Bounds = dict[tuple[str, int], Bound]
"""By topic name and partition. A missing partition has no lead that answers."""


async def own_bounds(engine: Engine, topics: Iterable[str]) -> Bounds:
    """Bounds of partitions that this broker certainly leads (`Engine.confirm`)."""
    try:
        await engine.confirm()
    except RetryError:
        return {}
    logs = (log for name in topics for log in list(engine.logs.get(name, ())) if log is not None)
    return {
        (log.topic.name, log.number): Bound(log.log_start, log.high_watermark, log.size_bytes, log.stable_end, records_in(log))
        async for log in engine.turns.begin().each(logs)
        if log.refusal is None
    }


def batched(names: list[str], size: int) -> Iterator[list[str]]:
    """Slices of `size`; the last one may be shorter."""
    return (names[start : start + size] for start in range(0, len(names), size))


async def find_bounds(engine: Engine, peers: Peers, topics: Iterable[str]) -> Bounds:
    """Bounds of all partitions of some topics. Topics that do not exist are left out."""
    names = [name for name in dict.fromkeys(topics) if name in engine.manifest.topics]
    found = await own_bounds(engine, names)
    wanted: dict[str, tuple[Incarnation, dict[str, None]]] = {}
    for name in names:
        topic = engine.manifest.topics[name]
        for lead_id in {segment.incarnation_id for segment in engine.manifest.segments.leads[topic.id] if segment is not None}:
            if lead_id != engine.incarnation_id:
                broker = engine.manifest.incarnations[lead_id]
                wanted.setdefault(lead_id, (broker, {}))[1][name] = None
    requests = [
        (broker, admin_pb2.DescribeTopicsRequest(names=some))
        for broker, asked in wanted.values()
        for some in batched(list(asked), NAMES_MAX)
    ]
    answers = [answer.response for answer in await peers.ask(requests, ADMIN["DescribeTopics"]) if answer.error is None]
    parts = ((row.topic.name, part) for answer in answers for row in answer.topics for part in row.partitions)
    async for name, part in engine.turns.begin().each(parts):
        # A broker says nothing of partitions that it does not lead (any more).
        if part.high_watermark >= 0:
            found[name, part.partition] = Bound(part.log_start, part.high_watermark, part.size_bytes, part.stable_end, part.records)
    return found
