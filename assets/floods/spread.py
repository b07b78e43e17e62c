"""Which segments to split and merge, so that every broker of a flood has a part of the topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An open segment: partitions [first, end) of the topic at a broker."""

    id: int
    first: int
    end: int
    broker: int

    @property
    def width(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Cut a segment at a partition; the second half goes to a broker. `at` None: all of it moves."""

    segment: int
    at: int | None
    broker: int


def next_split(parts: Sequence[Part], brokers: Sequence[int]) -> Split | None:
    """The next step towards a part for every broker; None where there is no more to do.

    The broker with most partitions gives a share of its widest segment to one that has none. One step at a time, as segments get
    new ids.
    """
    load = dict.fromkeys(brokers, 0)
    for part in parts:
        load[part.broker] = load.get(part.broker, 0) + part.width
    empty = [broker for broker in sorted(brokers) if load[broker] == 0]
    if not empty:
        return None
    giver = max(load, key=lambda broker: (load[broker], -broker))
    own = [part for part in parts if part.broker == giver]
    if load[giver] < 2:
        return None
    widest = max(own, key=lambda part: (part.width, -part.id))
    if widest.width == 1:
        return Split(segment=widest.id, at=None, broker=empty[0])
    # A fair share at once: of three brokers the second gets a third, not half of which it would give away again.
    share = -(-load[giver] // (len(empty) + 1))
    keep = max(1, widest.width - share)
    return Split(segment=widest.id, at=widest.first + keep, broker=empty[0])


def next_merge(parts: Sequence[Part]) -> tuple[int, int] | None:
    """Two neighbours at one broker that may become one segment; None where there are none."""
    ordered = sorted(parts, key=lambda part: part.first)
    for left, right in pairwise(ordered):
        if left.broker == right.broker and left.end == right.first:
            return left.id, right.id
    return None
