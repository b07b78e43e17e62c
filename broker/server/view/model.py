"""What the page shows, as data: the JSON of ``/api/...``, and what the leader tells the other brokers for it.

Every list is bounded, and a total stands beside each list that may be cut. Ages and remaining times are durations, because the
clocks of brokers and browsers differ. A number that no broker knows at the moment is null.
"""

from __future__ import annotations

import msgspec

TOPICS_MAX = 100
"""Topics of one answer."""
SEGMENTS_MAX = 64
"""Segments of one topic."""
WINDOWS_MAX = 64
"""Partitions of one gate."""
GATES_MAX = 20
"""Gates: all open ones come first, then the newest of the others."""
FLOODS_MAX = 50
DECISIONS_MAX = 60
RESERVATIONS_MAX = 50
BROKERS_MAX = 100
GROUPS_MAX = 100
"""Groups of one page."""


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """One live broker. `state`: serves, lane (it serves history), drains, drained, starved, silent, or the reason why it cannot
    store records. `copied_to`: the broker that holds copies of its acked records."""

    id: int
    host: str
    kafka_port: int
    grpc_port: int
    http_port: int
    state: str
    leads_cluster: bool
    uptime_s: float
    segments: int
    partitions: int
    cpu_share: float | None = None
    memory_bytes: int | None = None
    connections: int | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    late_s: float | None = None
    copied_to: int | None = None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions [first_partition, end_partition) and their lead. `broker_id`: null without a lead. `age_s`: time since a split, a
    merge or a move made it, null if that is unknown."""

    first_partition: int
    end_partition: int
    broker_id: int | None = None
    id: int | None = None
    leader_epoch: int | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    requests_per_s: float | None = None
    age_s: float | None = None


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. `records` is an upper bound: offsets from the first to the last readable record."""

    name: str
    partitions: int
    segments_total: int
    segments: list[Segment]
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    records: int | None = None
    size_bytes: int | None = None
    gates_open: int = 0


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: [log_start, high_watermark) can be read. Null if its lead does not answer."""

    partition: int
    broker_id: int | None
    leader_epoch: int | None
    log_start: int | None
    high_watermark: int | None
    size_bytes: int | None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one partition that a gate keeps free. `files` and `bytes`: uploaded for it so far; null if that is unknown."""

    partition: int
    base_offset: int
    end_offset: int
    files: int | None = None
    bytes: int | None = None


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate. `rows_planned`: room of its windows. `rows`, `size_bytes`, `files`: of its fill, 0 until then."""

    topic: str
    id: str
    place: str
    state: str
    owner: str
    age_s: float
    expires_in_s: float | None
    rows_planned: int
    rows: int
    size_bytes: int
    files: int
    released_by: str
    windows_total: int
    windows: list[Window]


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """One flood, as its driver reported it `silent_s` ago. `left_s`: of the present phase. `ended`: it is over."""

    topic: str
    id: str
    phase: str
    rows_planned: int
    rows_moved: int
    rows_written: int
    rows_verified: int
    rows_per_s: float
    left_s: float | None
    age_s: float
    silent_s: float
    ended: bool
    message: str


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Brokers that are asked for until a time."""

    id: str
    owner: str
    brokers: int
    left_s: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster `ago_s` seconds ago. `desired` is 0 if it was not known then."""

    ago_s: float
    desired: int
    live: int
    bytes_in_per_s: float
    bytes_out_per_s: float


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Desired and live brokers, the reasons (the deciding one first), and both over the last half hour, oldest first."""

    desired: int | None
    live: int
    reasons: list[str]
    reservations_total: int
    reservations: list[Reservation]
    samples: list[Sample]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader did and why. `kind`: split, merge, move, drain, failover, wait, gate, capacity or leader."""

    age_s: float
    kind: str
    why: str
    topics: list[str]
    under_way: bool = False
    error: str = ""
    pause_ms: int | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer group. `lag_records`: records behind its committed positions."""

    id: str
    state: str
    members: int
    positions: int
    lag_records: int


class LeaderView(msgspec.Struct, frozen=True, kw_only=True):
    """What only the leader knows."""

    leader_broker_id: int
    version: int
    brokers: list[Broker]
    topics: list[Topic]
    floods: list[Flood]
    gates: list[Gate]
    capacity: Capacity
    decisions: list[Decision]


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group in one topic. `positions`, `lag_records`: of this topic alone."""

    id: str
    state: str
    members: int
    positions: int
    lag_records: int


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """A page of groups, the greatest lag first. `trouble`: the reason why it is old or empty. `age_s`: null before the first
    look."""

    total: int
    found: int
    page: int
    pages: int
    search: str
    groups: list[Group]
    lag_total: int
    age_s: float | None
    trouble: str = ""


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """A page of topics. `total`: all topics; `found`: those that match the search."""

    total: int
    found: int
    page: int
    pages: int
    search: str
    sort: str
    topics: list[Topic]


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as one broker sees it.

    `role`: leading, following, looking (it knows no leader at the moment) or starting. `trouble`: the reason why this broker
    shows only what it knows by itself, "" otherwise. `seen_s`: age of the leader's part, null if there is none.
    """

    cluster_id: str
    cluster_name: str
    broker_id: int
    version: str
    role: str
    trouble: str
    ready: str
    leader_broker_id: int | None
    manifest_version: int | None
    seen_s: float | None
    topics_total: int
    partitions_total: int
    segments_total: int
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    brokers_total: int
    brokers: list[Broker]
    floods: list[Flood]
    gates: list[Gate]
    capacity: Capacity | None
    decisions: list[Decision]
