"""The offsets that a Spark query's options ask for. Nothing here calls a broker.

The options are those of Spark's Kafka source, with its meanings: a timestamp wins over offsets by timestamp, and these win over
offsets; ``-2`` is the earliest, ``-1`` the latest. They count for a new query only: a checkpoint wins over all of them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from headgate.broker.client.types import Start, Timestamp
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.options import invalid, json_value, option, whole

Offsets: TypeAlias = dict[str, dict[int, int]]
"""Offsets by topic and partition."""

_ID = "id"
_SPECIAL: dict[int, Start] = {-2: "earliest", -1: "latest"}


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics and partitions to read. Exactly one of these is given."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Topics:
        """From ``subscribe``, ``subscribePattern`` or ``assign``. Raises InvalidError unless exactly one is given."""
        given = [name for name in ("subscribe", "subscribePattern", "assign") if option(options, name) is not None]
        if len(given) != 1:
            raise invalid("give one of subscribe, subscribePattern and assign", ",".join(given))
        text = str(option(options, given[0]))
        if given[0] == "subscribe":
            names = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
            if not names:
                raise invalid("subscribe names no topic", text)
            return cls(names=names)
        if given[0] == "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                raise invalid(f"subscribePattern is no regular expression: {error}", text) from error
            return cls(pattern=text)
        found = json_value("assign", text)
        if not isinstance(found, dict) or not all(
            isinstance(numbers, list) and all(isinstance(number, int) and number >= 0 for number in numbers)
            for numbers in found.values()
        ):
            raise invalid('assign is written as {"topic": [0, 1]}', text)
        return cls(assigned={name: tuple(sorted(set(numbers))) for name, numbers in found.items()})

    def choose(self, known: Mapping[str, int], internal: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
        """The partitions to read.

        Args:
            known: all topics of the cluster, with their number of partitions.
            internal: topics that are read only by name.

        Raises:
            InvalidError(UNKNOWN_TOPIC): a named topic or partition does not exist.
        """
        if self.pattern is not None:
            matches = re.compile(self.pattern)
            # Kafka's consumers skip internal topics too (exclude.internal.topics).
            names = sorted(name for name in known if name not in internal and matches.fullmatch(name))
            return {name: tuple(range(known[name])) for name in names}
        if self.assigned is not None:
            for name, numbers in self.assigned.items():
                for number in numbers:
                    if number >= known.get(name, 0):
                        raise InvalidError(Reason.UNKNOWN_TOPIC, f"partition does not exist. topic=`{name}` partition=`{number}`")
            return dict(self.assigned)
        for name in self.names:
            if name not in known:
                raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist. topic=`{name}`")
        return {name: tuple(range(known[name])) for name in self.names}


@dataclass(frozen=True, slots=True)
class Place:
    """One end of a read: `every` for all partitions, or the value of `some_option` for each partition in `some`.

    `strict`: a time after the last record is an error; otherwise it means the end.
    """

    every: Start
    some: Mapping[str, Mapping[int, Start]] = field(default_factory=dict)
    strict: bool = False
    some_option: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str], end: str, default: Start) -> Place:
        """From the options that begin with `end`, which is ``starting`` or ``ending``. Raises InvalidError."""
        strategy = option(options, f"{end}OffsetsByTimestampStrategy") or ("error" if end == "starting" else "latest")
        if strategy not in ("error", "latest"):
            raise invalid(f"{end}OffsetsByTimestampStrategy is error or latest", strategy)
        time = option(options, f"{end}Timestamp")
        if time is not None:
            return cls(Timestamp(whole(f"{end}Timestamp", time)), strict=strategy == "error")
        times = option(options, f"{end}OffsetsByTimestamp")
        if times is not None:
            some = _by_partition(f"{end}OffsetsByTimestamp", times)
            return cls(
                default,
                {name: {number: Timestamp(ms) for number, ms in rows.items()} for name, rows in some.items()},
                strategy == "error",
                f"{end}OffsetsByTimestamp",
            )
        offsets = option(options, f"{end}Offsets")
        if offsets is None:
            return cls(default)
        if offsets.strip().lower() in ("earliest", "latest"):
            word: Start = "earliest" if offsets.strip().lower() == "earliest" else "latest"
            return cls(word)
        some = _by_partition(f"{end}Offsets", offsets)
        return cls(
            default,
            {name: {number: _SPECIAL.get(offset, offset) for number, offset in rows.items()} for name, rows in some.items()},
            some_option=f"{end}Offsets",
        )

    def at(self, topic: str, partition: int) -> Start:
        """The place in one partition."""
        return self.some.get(topic, {}).get(partition, self.every)

    def check(self, chosen: Mapping[str, Collection[int]]) -> None:
        """Raise InvalidError when the options name other partitions than those that are read, as Spark's Kafka source does."""
        if not self.some_option:
            return
        named = {(topic, number) for topic, rows in self.some.items() for number in rows}
        read = {(topic, number) for topic, numbers in chosen.items() for number in numbers}
        for topic, number in sorted(named - read):
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"{self.some_option} names a partition that is not read. topic=`{topic}` partition=`{number}`",
            )
        for topic, number in sorted(read - named):
            hint = "" if self.some_option.endswith("ByTimestamp") else ": -2 is the earliest offset, -1 the latest"
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"{self.some_option} leaves out a partition that is read{hint}. topic=`{topic}` partition=`{number}`",
            )


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The range that filters leave: offsets [first, last], times [first_us, last_us], and partitions. It may be too wide, never
    too narrow."""

    first: int = 0
    last: int = (1 << 63) - 1
    first_us: int | None = None
    last_us: int | None = None
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None

    def reads(self, topic: str, partition: int) -> bool:
        """True when the range may include records of the partition."""
        return (self.partitions is None or partition in self.partitions) and (self.topics is None or topic in self.topics)

    def with_filters(self, filters: Iterable[Any]) -> Narrowed:
        """The range narrowed by all filters about offset, time, partition or topic. Other filters are ignored."""
        narrowed = self
        for condition in filters:
            attribute = getattr(condition, "attribute", None)
            if not isinstance(attribute, tuple) or len(attribute) != 1:
                continue
            narrowed = narrowed._with(attribute[0], type(condition).__name__, getattr(condition, "value", None))
        return narrowed

    def _with(self, column: str, kind: str, value: Any) -> Narrowed:
        if value is None:
            return self
        match column, kind:
            case "offset", "EqualTo" | "EqualNullSafe" | "GreaterThan" | "GreaterThanOrEqual" | "LessThan" | "LessThanOrEqual":
                first, last = _span(kind, int(value))
                return replace(self, first=max(self.first, first or 0), last=min(self.last, self.last if last is None else last))
            case "offset", "In":
                numbers = [int(digit) for digit in value if digit is not None]
                return replace(self, first=max(self.first, min(numbers)), last=min(self.last, max(numbers))) if numbers else self
            case "timestamp", "EqualTo" | "EqualNullSafe" | "GreaterThan" | "GreaterThanOrEqual" | "LessThan" | "LessThanOrEqual":
                first, last = _span(kind, _microseconds(value))
                known = [bound for bound in (self.first_us, first) if bound is not None]
                ends = [bound for bound in (self.last_us, last) if bound is not None]
                return replace(self, first_us=max(known, default=None), last_us=min(ends, default=None))
            case "partition", "EqualTo" | "EqualNullSafe" | "In":
                wanted = frozenset(value if kind == "In" else (value,))
                return replace(self, partitions=wanted if self.partitions is None else self.partitions & wanted)
            case "topic", "EqualTo" | "EqualNullSafe" | "In":
                names = frozenset(value if kind == "In" else (value,))
                return replace(self, topics=names if self.topics is None else self.topics & names)
        return self


def rate_limited(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """Ends at most `rows_max` records behind `start` in total, in proportion to the size of each partition.

    Every partition with records advances by at least one, so that none starves. With more such partitions than `rows_max`, the
    result is larger than `rows_max`, as in Spark's Kafka source.
    """
    waiting = {
        (topic, number): stop - start[topic][number]
        for topic, rows in end.items()
        for number, stop in rows.items()
        if stop > start[topic][number]
    }
    total, rows_max = sum(waiting.values()), max(rows_max, len(waiting))
    if total <= rows_max:
        return end
    limited: Offsets = {topic: dict(rows) for topic, rows in start.items()}
    for (topic, number), size in waiting.items():
        limited[topic][number] += 1 + (size - 1) * (rows_max - len(waiting)) // (total - len(waiting))
    left = rows_max - sum(limited[topic][number] - start[topic][number] for topic, number in waiting)
    for topic, number in sorted(waiting, key=lambda at: -waiting[at]):
        # The remainder of the rounding goes to the largest partitions.
        more = min(left, end[topic][number] - limited[topic][number])
        limited[topic][number] += more
        left -= more
    return limited


def to_json(offsets: Offsets, ids: Mapping[str, str]) -> dict[str, dict[str, int | str]]:
    """The offsets in a checkpoint: like Spark's Kafka source, ``{"topic": {"0": 23}}``, plus the topic's id.

    A topic that is deleted and created again has the same name, and its offsets mean other records.
    """
    return {
        topic: {str(number): offset for number, offset in sorted(rows.items())} | ({_ID: ids[topic]} if topic in ids else {})
        for topic, rows in sorted(offsets.items())
    }


def from_json(found: Mapping[str, Mapping[str, int | str]]) -> tuple[Offsets, dict[str, str]]:
    """The reverse of `to_json`. A checkpoint of an earlier version has no ids."""
    offsets = {topic: {int(key): int(offset) for key, offset in rows.items() if key != _ID} for topic, rows in found.items()}
    return offsets, {topic: str(rows[_ID]) for topic, rows in found.items() if _ID in rows}


def _span(kind: str, value: int) -> tuple[int | None, int | None]:
    """(first, last) that a comparison leaves."""
    match kind:
        case "GreaterThan":
            return value + 1, None
        case "GreaterThanOrEqual":
            return value, None
        case "LessThan":
            return None, value - 1
        case "LessThanOrEqual":
            return None, value
    return value, value


def _microseconds(moment: Any) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int((moment - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(microseconds=1))


def _by_partition(name: str, text: str) -> dict[str, dict[int, int]]:
    found = json_value(name, text)
    try:
        return {
            topic: {int(number): int(value) for number, value in rows.items() if not isinstance(value, bool)}
            for topic, rows in found.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise invalid(f'{name} is written as {{"topic": {{"0": 23}}}}', text) from error
