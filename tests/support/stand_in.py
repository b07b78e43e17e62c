"""Stand-ins for the services that Dagster's assets use: a cluster of brokers that appear when they are reserved, and a Spark that
counts.

They keep their state in module-wide dictionaries, under a name that the resource carries: Dagster copies resources freely.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from headgate.assets.resources import ClusterResource, SparkResource
from headgate.broker.client.control import ClusterView, DesiredBrokers, Member, Reservation, Segment
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.certificate import Certificate, PartitionCertificate, Tally
from headgate.pipelines.cluster import GroupLag
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan, gate_id
from headgate.pipelines.follower import Follower
from headgate.pipelines.progress import Phase, Progress


@dataclass
class Book:
    """The state of a stand-in cluster, and the calls that it got."""

    fleet_max: int = 8
    reservation_max: int = 64
    reservations: dict[str, Reservation] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    gates: dict[tuple[str, str], Any] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    error: HeadgateError | None = None
    """While it is set, every call raises it."""
    spark_error: BaseException | None = None
    spark_error_from: str = ""
    """The first partition whose load raises the error."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """By partition: number of rows in its source, as Spark counts them."""
    lags: list[dict[str, GroupLag]] = field(default_factory=list)
    looks_until_gone: int = 2
    """Number of describe calls until brokers that are to leave have handed over their segments."""

    def live(self) -> int:
        return min(self.fleet_max, self.desired())

    def desired(self) -> int:
        return max([1, *(one.brokers for one in self.reservations.values())])


BOOKS: dict[str, Book] = {}


def book() -> tuple[str, Book]:
    """Create a cluster; returns its name and its state."""
    name = uuid.uuid4().hex
    BOOKS[name] = Book()
    return name, BOOKS[name]


class StandInCluster(ClusterResource):
    """A cluster resource that replaces every call to a broker."""

    name: str

    @property
    def _book(self) -> Book:
        found = BOOKS[self.name]
        if found.error is not None:
            raise found.error
        return found

    def reserve(self, reservation_id: str, brokers: int, ttl_ms: int, owner: str, lanes: int = 0) -> None:
        if brokers > self._book.reservation_max:
            raise InvalidError(Reason.INVALID_REQUEST, f"a reservation is for 1 to {self._book.reservation_max} brokers")
        self._book.calls.append(("reserve", reservation_id, brokers, ttl_ms, lanes))
        self._book.reservations[reservation_id] = Reservation(
            id=reservation_id, owner=owner, brokers=brokers, ttl_ms=ttl_ms, left_ms=ttl_ms, lanes=lanes
        )

    def release(self, reservation_id: str) -> bool:
        self._book.calls.append(("release", reservation_id))
        return self._book.reservations.pop(reservation_id, None) is not None

    def reservations(self) -> list[Reservation]:
        return list(self._book.reservations.values())

    def desired(self) -> DesiredBrokers:
        found = self._book
        return DesiredBrokers(brokers=found.desired(), reasons=("reservations",), live_brokers=found.live())

    def view(self) -> ClusterView:
        found = self._book
        serving = range(1, found.live() + 1)
        going = {one.broker_id for one in found.segments} - set(serving)
        if going and found.looks_until_gone:
            found.looks_until_gone -= 1
        elif going:
            found.segments[:] = [replace(one, broker_id=1) if one.broker_id in going else one for one in found.segments]
            going = set()
        members = tuple(
            Member(
                broker_id=number, incarnation_id="", host="127.0.0.1", kafka_port=9092 + number, grpc_port=0, http_port=0, rack="",
                cpu_share=0.0, memory_bytes=0, connections=0, draining=number in going, trouble="",
            )
            for number in (*serving, *sorted(going))
        )  # fmt: skip
        return ClusterView(leader_broker_id=1, version=1, members=members, segments=tuple(found.segments), decisions=())

    def split(self, segment: int, at_partition: int | None, broker: int) -> None:
        self._book.calls.append(("split", segment, at_partition, broker))
        old = next(one for one in self._book.segments if one.id == segment)
        self._book.segments.remove(old)
        newest = max(one.id for one in [old, *self._book.segments])
        if at_partition is None:
            self._book.segments.append(part(newest + 1, old.topic, old.first_partition, old.end_partition, broker))
            return
        self._book.segments.append(part(newest + 1, old.topic, old.first_partition, at_partition, old.broker_id))
        self._book.segments.append(part(newest + 2, old.topic, at_partition, old.end_partition, broker))

    def merge(self, segment: int, next_segment: int) -> None:
        self._book.calls.append(("merge", segment, next_segment))
        found = {one.id: one for one in self._book.segments}
        left, right = found.pop(segment), found.pop(next_segment)
        merged = part(max(segment, next_segment) + 1, left.topic, left.first_partition, right.end_partition, left.broker_id)
        self._book.segments[:] = [*found.values(), merged]

    def topic(self, name: str) -> Any:
        partitions = self._book.topics.get(name)
        if partitions is None:
            return None
        config = tuple(SimpleNamespace(name=key, value=value) for key, value in self._book.configs.get(name, {}).items())
        empty = [SimpleNamespace(number=number, log_start=0, high_watermark=0, records=0) for number in range(partitions)]
        return SimpleNamespace(partitions=tuple(empty), config=config)

    def check_readable(self, topic: str) -> None:
        assert topic in self._book.topics

    def create_topic(self, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
        self._book.calls.append(("create_topic", name, partitions, dict(config)))
        self._book.topics[name] = partitions or 8
        self._book.configs[name] = dict(config)
        self._book.segments.append(part(1, name, 0, partitions or 8, 1))

    def lags(self, topic: str) -> dict[str, GroupLag]:
        found = self._book.lags
        return {} if not found else found.pop(0) if len(found) > 1 else found[0]

    def gates(self, topic: str) -> dict[str, Any]:
        return {gate: value for (of, gate), value in self._book.gates.items() if of == topic}

    def release_gate(self, topic: str, gate_id: str) -> bool:
        found = self._book.gates[topic, gate_id]
        was_open = found.state == "open"
        if was_open:
            found.state = "released"
        return bool(was_open)


class StandInSpark(SparkResource):
    """Fills gates with the number of rows that the book gives for the source."""

    name: str

    def analyse(self, flood: Flood, span: TimeSpan) -> None:
        BOOKS[self.name].calls.append(("analyse", flood.name, span.key))

    @contextmanager
    def flood(
        self, flood: Flood, spans: Sequence[TimeSpan], cluster: str, partitions: int, most_s: float,
        follow: Follower, links: Callable[[Mapping[str, str]], None], listen: Callable[[TimeSpan, Any], None],
    ) -> Iterator[Callable[[TimeSpan], Certificate]]:  # fmt: skip
        book = BOOKS[self.name]
        links({"Spark's page (while it runs)": "http://127.0.0.1:4040"})
        book.calls.append(("spark", flood.name, tuple(span.key for span in spans), book.live()))

        def one(span: TimeSpan) -> Certificate:
            if book.spark_error is not None and span.key >= book.spark_error_from:
                listen(span, Progress(phase=Phase.WRITING, rows_done=1, rows_total=2))
                raise book.spark_error
            time.sleep(0.01)
            rows = book.rows.get(span.key, 0) - span.loaded
            tally = Tally(rows=rows, data_bytes=rows * 100, checksum=rows)
            if rows:
                definition = job_of(flood, span, cluster, partitions).definition()
                gate = gate_id(flood, span.key, late=span.late)
                book.gates[flood.topic, gate] = SimpleNamespace(
                    id=gate, state="filled", definition=definition, rows=rows, windows=()
                )
            return Certificate(
                cluster=cluster, topic=flood.topic, place="now", flood_id=gate_id(flood, span.key),
                gate_id=gate_id(flood, span.key), added_rows=rows, files=1, size_bytes=rows * 100,
                partitions=(
                    PartitionCertificate(
                        partition=0, base_offset=0, end_offset=rows, source=tally, topic=tally,
                        gap_rows=0, duplicate_rows=0, disordered_rows=0,
                    ),
                ),
            )  # fmt: skip

        yield one


def part(number: int, topic: str, first: int, end: int, broker: int) -> Segment:
    """An open segment."""
    return Segment(
        id=number, topic=topic, first_partition=first, end_partition=end, broker_id=broker, leader_epoch=number,
        bytes_in_per_s=0.0, bytes_out_per_s=0.0, requests_per_s=0.0,
    )  # fmt: skip
