"""Partitions as spans of time: keys, spans, and the occurrence to which a partition belongs. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from headgate.pipelines.floods.model import Flood, Partitions
from headgate.pipelines.part import Part

KEY_FORMATS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H:%M"}
"""Dagster's own formats of partition keys."""
KEYS_MAX = 366 * 24
_HELD = {"%Y": timedelta(days=365), "%m": timedelta(days=30), "%d": timedelta(days=1), "%H": timedelta(hours=1)}
LATE = ".late-"
"""In the id of a gate: behind the partition's key, before the digest of the condition of its late rows."""


@dataclass(frozen=True, slots=True, order=True)
class TimeSpan:
    """One partition: its key, and the span [start, end) of event times, in UTC. `late`: only the rows that came after it was
    loaded, which are as many as the source has more than `loaded` rows."""

    start: datetime
    end: datetime
    key: str
    late: bool = False
    loaded: int = 0


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time of a flood. `partition`: the newest partition that is complete by then."""

    at: datetime
    partition: str

    def run_key(self, flood: str, what: str) -> str:
        """The id of the occurrence, always the same: Dagster starts one run for it, however often a sensor asks."""
        return f"{flood}/{what}/{self.at:%Y-%m-%dT%H:%M:%SZ}"


def span_of(partitions: Partitions, key: str) -> TimeSpan:
    """The span of a partition. Raises ValueError for an illegal key."""
    local = datetime.strptime(key, KEY_FORMATS[partitions.by])
    place = ZoneInfo(partitions.timezone)
    start = local.replace(tzinfo=place)
    # A day lasts from midnight to midnight, even when the clock changes in between; an hour is 60 minutes.
    if partitions.by == "day":
        end = (local + timedelta(days=1)).replace(tzinfo=place).astimezone(UTC)
    else:
        end = start.astimezone(UTC) + timedelta(hours=1)
    return TimeSpan(start.astimezone(UTC), end, key)


def spans_of(partitions: Partitions, keys: Sequence[str]) -> list[TimeSpan]:
    """The spans of several partitions, oldest first."""
    return sorted({span_of(partitions, key) for key in keys})


def newest_key(partitions: Partitions, by: datetime) -> str | None:
    """The newest partition that is over at a time; None when there is none yet."""
    limit = by if partitions.end is None else min(by, partitions.end)
    local = limit.astimezone(ZoneInfo(partitions.timezone))
    if partitions.by == "day":
        first = local.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    else:
        first = (limit.astimezone(UTC) - timedelta(hours=1)).astimezone(local.tzinfo).replace(minute=0, second=0, microsecond=0)
    if first.astimezone(UTC) < partitions.start.astimezone(UTC):
        return None
    return first.strftime(KEY_FORMATS[partitions.by])


def occurrences(flood: Flood, after: datetime, until: datetime, loaded: Collection[str] = (), most: int = 100) -> list[Occurrence]:
    """The occurrences in (after, until], in order, at most `most`, up to the last one, without those whose partition does not exist
    yet or is loaded."""
    declared = flood.occurrences
    times: Iterator[datetime]
    if declared.cron is not None:
        times = islice(declared.cron.after(after, declared.timezone), most)
    else:
        times = islice((one for one in declared.at if one > after), most)
    found = []
    last = last_occurrence(flood)
    for at in times:
        if at > until or (last is not None and at > last):
            break
        key = newest_key(flood.partitions, at)
        if key is not None and key not in loaded:
            found.append(Occurrence(at, key))
    return found


def last_occurrence(flood: Flood) -> datetime | None:
    """The time at which the last partition is due: later ones bring nothing new. None for a flood without end or without times."""
    end, declared = flood.partitions.end, flood.occurrences
    if end is None:
        return None
    before = end.astimezone(UTC) - timedelta(microseconds=1)
    if declared.cron is not None:
        return next(declared.cron.after(before, declared.timezone))
    return next((one for one in declared.at if one > before), None)


def deadline_at(flood: Flood, started: datetime) -> datetime:
    """The deadline of a flood with this start."""
    if isinstance(flood.deadline, datetime):
        return flood.deadline
    return started + timedelta(milliseconds=flood.deadline)


def part_of(flood: Flood, span: TimeSpan) -> Part:
    """The rows of a partition. `partition_by: path`: all rows at its path."""
    conditions = tuple(one for one in (flood.where, flood.late if span.late else None) if one)
    return Part(conditions=conditions, span=None if flood.partition_by == "path" else (span.start, span.end))


def source_path(flood: Flood, span: TimeSpan) -> str:
    """The path of a partition's rows, with the partition's own time filled in."""
    local = span.start.astimezone(ZoneInfo(flood.partitions.timezone))
    # A subset of strftime(3), for which `my%20data` would be a day with twenty digits.
    return re.sub("%[YmdH]", lambda found: local.strftime(found[0]), flood.source.path)


def path_span(flood: Flood, span: TimeSpan) -> TimeSpan | None:
    """The span of time that a partition's path names; None when it names none. The partition lies within it."""
    named = [name in flood.source.path for name in _HELD]
    units = sum(named)
    if not units or not all(named[:units]):
        return None
    if units >= (3 if flood.partitions.by == "day" else 4):
        return span
    place = ZoneInfo(flood.partitions.timezone)
    first = span.start.astimezone(place).replace(tzinfo=None, minute=0, second=0, microsecond=0)
    if units == 3:
        first = first.replace(hour=0)
        after = first + timedelta(days=1)
    elif units == 2:
        first = first.replace(day=1, hour=0)
        after = (first + timedelta(days=31)).replace(day=1)
    else:
        first = first.replace(month=1, day=1, hour=0)
        after = first.replace(year=first.year + 1)
    start, end = (at.replace(tzinfo=place).astimezone(UTC) for at in (first, after))
    return TimeSpan(start, end, source_path(flood, span))


def partitions_per_path(flood: Flood, now: datetime) -> int:
    """Approximate number of partitions at one path of the source: all existing ones, unless the path has a time in it."""
    partitions = flood.partitions
    until = now if partitions.end is None else min(now, partitions.end)
    held = min((length for name, length in _HELD.items() if name in flood.source.path), default=until - partitions.start)
    return max(1, min(held, until - partitions.start) // (timedelta(days=1) if partitions.by == "day" else timedelta(hours=1)))


def names_partition(path: str, by: str) -> bool:
    """True when a path with time in it is another one for each partition."""
    return all(name in path for name in ("%Y", "%m", "%d", *(["%H"] if by == "hour" else [])))


def gate_id(flood: Flood, key: str, *, late: bool = False) -> str:
    """The gate of a partition, or of its late rows under the present condition: always the same id, so that the same history never
    enters twice."""
    name = f"{flood.name}.{key.replace(':', '.')}"
    return f"{name}{LATE}{hashlib.sha256((flood.late or '').encode()).hexdigest()[:8]}" if late else name


def keys_between(partitions: Partitions, first: str, last: str) -> list[str]:
    """All keys from one to another, both included; at most a leap year of hours. Raises ValueError for an illegal key."""
    step = timedelta(days=1) if partitions.by == "day" else timedelta(hours=1)
    form = KEY_FORMATS[partitions.by]
    at, end = datetime.strptime(first, form), datetime.strptime(last, form)
    found: list[str] = []
    while at <= end and len(found) < KEYS_MAX:
        found.append(at.strftime(form))
        at += step
    return found


def gates_of(flood: Flood, keys: Sequence[str], gates: Iterable[str]) -> dict[str, str]:
    """The gates that belong to partitions of a flood, as gate to key; not those of late rows."""
    names = {gate_id(flood, key): key for key in keys}
    return {gate: names[gate] for gate in gates if gate in names}
