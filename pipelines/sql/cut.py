"""The cut of a query: for each partition, the offsets between which the query sees records. It is fixed before the first read.

The end is the last stable offset: what a consumer of committed records can read at that moment, or what it could read `as_of` an
offset or a time. A time stands for the first record with that time or a later one, as in Kafka's ListOffsets.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headgate.broker.client import Admin
from headgate.broker.client.types import Start, Timestamp, Topic, TopicPartition
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.setting_kinds import parse_time_ms

AsOf: TypeAlias = int | Mapping[int, int] | datetime.datetime | str | None
"""Where a query ends: before an offset of each partition, before offsets by partition (others: now), before the first record of a
time. A text is one of them: ``1000``, ``0:1000,1:800``, ``2026-11-21T10:00:00`` (UTC), ``15m`` (ago). None: now."""

_OFFSETS = re.compile(r"\d{1,18}:\d{1,18}(,\d{1,18}:\d{1,18})*")


@dataclass(frozen=True, slots=True)
class Cut:
    """Records of one topic: offsets [start, end) by partition."""

    topic: str
    topic_id: uuid.UUID
    ranges: Mapping[int, tuple[int, int]]

    @property
    def end(self) -> int:
        """Behind the last offset of all partitions."""
        return max((end for _, end in self.ranges.values()), default=0)


def parse_as_of(value: AsOf, now_ms: int) -> int | Mapping[int, int] | Timestamp | None:
    """The place that `value` stands for. Raises InvalidError."""
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return Timestamp(int(moment.timestamp() * 1000))
    if not isinstance(value, str):
        if isinstance(value, int) and value < 0:
            raise InvalidError(Reason.INVALID_REQUEST, f"an offset is not negative. as_of=`{value}`")
        return value
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    if _OFFSETS.fullmatch(text):
        pairs = [part.split(":") for part in text.split(",")]
        return {int(partition): int(offset) for partition, offset in pairs}
    try:
        return Timestamp(parse_time_ms(text, now_ms))
    except InvalidError as error:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"as-of is an offset, offsets by partition as 0:1000,1:800, a time as 2026-11-21T10:00:00, or 15m ago. value=`{value}`",
        ) from error


async def take_cuts(admin: Admin, topics: Iterable[Topic], as_of: int | Mapping[int, int] | Timestamp | None) -> dict[str, Cut]:
    """The cuts of topics, by name, all from one request to each lead. Raises HeadgateError."""
    chosen = list(topics)
    places = [TopicPartition(topic.name, number) for topic in chosen for number in range(topic.partitions)]
    if isinstance(as_of, Mapping):
        for number in as_of:
            for topic in chosen:
                if number >= topic.partitions:
                    what = "as-of names a partition that the topic lacks"
                    raise InvalidError(Reason.INVALID_REQUEST, f"{what}. topic=`{topic.name}` partition=`{number}`")
    first: Start = "earliest"
    last: Start = as_of if isinstance(as_of, Timestamp) else "latest"
    # The ends first: what retention removes meanwhile is no part of the cut then.
    ends = await admin.offsets(dict.fromkeys(places, last)) if places else {}
    starts = await admin.offsets(dict.fromkeys(places, first)) if places else {}
    cuts: dict[str, Cut] = {}
    for topic in chosen:
        ranges: dict[int, tuple[int, int]] = {}
        for number in range(topic.partitions):
            at = TopicPartition(topic.name, number)
            start, end = starts[at].offset, ends[at].offset
            if isinstance(as_of, int):
                end = min(end, as_of)
            elif isinstance(as_of, Mapping) and number in as_of:
                end = _given_end(topic.name, number, as_of[number], end)
            ranges[number] = (min(start, end), end)
        cuts[topic.name] = Cut(topic.name, topic.id, ranges)
    return cuts


def _given_end(topic: str, partition: int, offset: int, end: int) -> int:
    if offset > end:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"as-of is behind the last record. topic=`{topic}` partition=`{partition}` offset=`{offset}` end=`{end}`",
        )
    return offset
