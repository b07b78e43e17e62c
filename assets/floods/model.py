"""A flood, as it was declared. Plain values; `floods.parse` makes them from YAML, and whoever likes from code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from assets.floods.cron import Cron

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
ROOM = "history.room"
"""The setting of a topic with room in front."""
ROOM_OFFSETS = 1 << 40
"""As many as a topic gets that is made for floods in front."""

By = Literal["day", "hour"]
Place = Literal["now", "front"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What Spark reads.

    `path`: a file, a directory or a URL; ``%Y``, ``%m``, ``%d`` and ``%H`` in it stand for the partition's own time.
    `format`: Spark's name of it. `options`: Spark's options of the reader.
    """

    path: str
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitions:
    """Which parts of the history there are: each day, or each hour, from `start` until `end` (None: until now)."""

    by: By = "day"
    start: datetime
    end: datetime | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrences:
    """When the flood comes: again and again (`cron`, in `timezone`), at given times (`at`), or only by hand."""

    cron: Cron | None = None
    at: tuple[datetime, ...] = ()
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class Brokers:
    """How many brokers a flood may ask for.

    `bytes_per_s`: what one broker serves to readers, taken for planning. `wait_ms`: how long the fleet may take to reach the asked
    size. `short`: what happens when it does not: ``run`` with what came, or ``fail``.
    """

    minimum: int = 1
    maximum: int = 3
    bytes_per_s: int = 20 << 20
    wait_ms: int = 5 * MINUTE_MS
    short: Literal["run", "fail"] = "run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Flood:
    """A planned burst: history that goes into a topic by reference.

    `name`: a word for Dagster. `key`, `value`, `where`: Spark SQL over the source's columns; `key` None: records without keys.
    `event_time`: the column that says when it happened. `topic_partitions`: what the topic must have, or gets when it is made.
    `lead_time_ms`: brokers are asked for so long before an occurrence. `deadline`: the flood is to be over so long after its
    start (ms), or at a time; it sets what is asked for, and a run that cannot make it any more is refused. `catch_up_ms`: readers
    are to have read it within this time. `reservation_ttl_ms`: brokers go away so long after the last sign of life.
    `gate_ttl_ms`: the gate is released so long after the last sign of life. `verify`: read everything back as a client does, and
    compare it with the source.
    """

    name: str
    topic: str
    source: Source
    event_time: str
    partitions: Partitions
    key: str | None = None
    value: str = "to_json(struct(*))"
    where: str | None = None
    topic_partitions: int | None = None
    occurrences: Occurrences = Occurrences()
    lead_time_ms: int = 10 * MINUTE_MS
    deadline: int | datetime = 2 * HOUR_MS
    catch_up_ms: int = 5 * MINUTE_MS
    brokers: Brokers = Brokers()
    place: Place = "now"
    reservation_ttl_ms: int = 2 * MINUTE_MS
    gate_ttl_ms: int = 10 * MINUTE_MS
    verify: bool = True
