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
"""Dagster's own formats of partition keys. The second of two hours of one name has its offset from UTC behind it, as
`2026-10-25-02:00+0100`."""
HOUR = timedelta(hours=1)
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
    """The span of a partition. Raises ValueError for an illegal key, and for a day or an hour that the clock skips."""
    form, place = KEY_FORMATS[partitions.by], ZoneInfo(partitions.timezone)
    try:
        start = datetime.strptime(key, form).replace(tzinfo=place).astimezone(UTC)
    except ValueError:
        start = datetime.strptime(key, f"{form}%z").astimezone(UTC)
    span = _span_at(partitions, start)
    if span.key != key:
        raise ValueError(f"no partition in {partitions.timezone}: {key}")
    return span


def _span_at(partitions: Partitions, start: datetime) -> TimeSpan:
    """The partition that begins at this time, in UTC. A day lasts from midnight to midnight, even when the clock changes in
    between; an hour is 60 minutes, and of two hours of one name the second one shows its offset."""
    place = ZoneInfo(partitions.timezone)
    local = start.astimezone(place)
    if partitions.by == "day":
        midnight = local.replace(tzinfo=None, fold=0, hour=0, minute=0) + timedelta(days=1)
        return TimeSpan(start, midnight.replace(tzinfo=place).astimezone(UTC), local.strftime(KEY_FORMATS["day"]))
    key = local.strftime(KEY_FORMATS["hour"])
    return TimeSpan(start, start + HOUR, f"{key}{local:%z}" if _is_repeated(local) else key)


def _is_repeated(local: datetime) -> bool:
    """True for the second one of two hours of one name."""
    before = local.replace(fold=0).utcoffset()
    after = local.utcoffset()
    return local.fold == 1 and before is not None and after is not None and before > after


def has_whole_hours(partitions: Partitions, until: datetime) -> bool:
    """False when the clock of the partitions' zone changes by a part of an hour in their time, at the latest at `until`.

    Looks at each day, because no zone changes twice a day.
    """
    place, at = ZoneInfo(partitions.timezone), partitions.start.astimezone(UTC)
    end = until if partitions.end is None else partitions.end.astimezone(UTC)
    parts = set[int]()
    while at < end + timedelta(days=1) and len(parts) < 2:
        offset = at.astimezone(place).utcoffset()
        parts.add(int((offset or timedelta()).total_seconds()) % 3600)
        at += timedelta(days=1)
    return len(parts) < 2


def shares_path(flood: Flood, span: TimeSpan) -> bool:
    """True for the second of two hours of one name, in a flood whose partitions are their paths: its rows are stored at the path of
    the first one, which loads them."""
    return flood.partition_by == "path" and flood.partitions.by == "hour" and len(span.key) > len("2026-01-31-23:00")


def spans_of(partitions: Partitions, keys: Sequence[str]) -> list[TimeSpan]:
    """The spans of several partitions, oldest first."""
    return sorted({span_of(partitions, key) for key in keys})


def newest_key(partitions: Partitions, by: datetime) -> str | None:
    """The newest partition that is over at a time; None when there is none yet."""
    limit = by if partitions.end is None else min(by, partitions.end)
    place = ZoneInfo(partitions.timezone)
    if partitions.by == "day":
        # Midnight of the day of the last moment before this day: a clock may skip a whole day.
        midnight = limit.astimezone(place).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        before = (midnight.astimezone(UTC) - timedelta(microseconds=1)).astimezone(place)
        first = before.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    else:
        first = (limit.astimezone(UTC) - HOUR).astimezone(place).replace(minute=0, second=0, microsecond=0)
    span = _span_at(partitions, first.astimezone(UTC))
    return None if span.start < partitions.start.astimezone(UTC) else span.key


def first_key(partitions: Partitions) -> str:
    """The first partition: the day or the hour that begins at `start`, or the next one."""
    start, place = partitions.start.astimezone(UTC), ZoneInfo(partitions.timezone)
    local = start.astimezone(place)
    begin = local.replace(minute=0, second=0, microsecond=0)
    if partitions.by == "day":
        begin = begin.replace(hour=0, fold=0)
    span = _span_at(partitions, begin.astimezone(UTC))
    return span.key if span.start >= start else _span_at(partitions, span.end).key


def occurrences(flood: Flood, after: datetime, until: datetime, loaded: Collection[str] = (), most: int = 100) -> list[Occurrence]:
    """The occurrences in (after, until], in order, at most `most`, up to the last one, without those whose partition does not exist
    yet or is loaded."""
    declared = flood.occurrences
    times: Iterator[datetime]
    if declared.cron is not None:
        times = islice(declared.cron.after(after, declared.timezone), most)
    else:
        times = islice((time for time in declared.at if time > after), most)
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
    return next((time for time in declared.at if time > before), None)


def deadline_at(flood: Flood, started: datetime) -> datetime:
    """The deadline of a flood with this start."""
    if isinstance(flood.deadline, datetime):
        return flood.deadline
    return started + timedelta(milliseconds=flood.deadline)


def part_of(flood: Flood, span: TimeSpan) -> Part:
    """The rows of a partition. `partition_by: path`: all rows at its path; no rows for an hour whose rows the hour of the same name
    loads."""
    nothing = "false" if shares_path(flood, span) else None
    conditions = tuple(condition for condition in (flood.where, flood.late if span.late else None, nothing) if condition)
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
    if units >= 4 and flood.partitions.by == "hour":
        local = span.start.astimezone(ZoneInfo(flood.partitions.timezone))
        both = [local.replace(fold=0).astimezone(UTC), local.replace(fold=1).astimezone(UTC)]
        return TimeSpan(min(both), max(both) + HOUR, source_path(flood, span)) if both[0] != both[1] else span
    if units >= 3 and flood.partitions.by == "day":
        return span
    place = ZoneInfo(flood.partitions.timezone)
    first = span.start.astimezone(place).replace(tzinfo=None, minute=0, second=0, microsecond=0, fold=0)
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
    # An id has no colon and no plus sign.
    name = f"{flood.name}.{key.replace(':', '.').replace('+', '_')}"
    return f"{name}{LATE}{hashlib.sha256((flood.late or '').encode()).hexdigest()[:8]}" if late else name


def keys_between(partitions: Partitions, first: str, last: str) -> list[str]:
    """All keys from one to another, both included; at most a leap year of hours. Raises ValueError for an illegal key."""
    at, end = span_of(partitions, first), span_of(partitions, last).start
    found: list[str] = []
    while at.start <= end and len(found) < KEYS_MAX:
        found.append(at.key)
        at = _span_at(partitions, at.end)
    return found


def middles(keys: Sequence[str], most: int) -> list[str]:
    """Some of these keys, spread evenly: the one in the middle, those in the middle of both halves, and so on."""
    found: list[str] = []
    parts = [(0, len(keys))]
    while parts and len(found) < most:
        begin, end = parts.pop(0)
        if begin < end:
            middle = (begin + end) // 2
            found.append(keys[middle])
            parts += [(begin, middle), (middle + 1, end)]
    return found


def gates_of(flood: Flood, keys: Sequence[str], gates: Iterable[str]) -> dict[str, str]:
    """The gates that belong to partitions of a flood, as gate to key; not those of late rows."""
    names = {gate_id(flood, key): key for key in keys}
    return {gate: names[gate] for gate in gates if gate in names}
