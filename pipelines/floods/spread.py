"""Decides which segments to split and merge, so that every broker of a flood leads a part of the topic. Pure."""

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
    """Split a segment at a partition; the second half goes to a broker. `at` None: the whole segment moves."""

    segment: int
    at: int | None
    broker: int


def next_split(parts: Sequence[Part], brokers: Sequence[int]) -> Split | None:
    """The next step towards a part for every broker; None when no step is left.

    The broker with most partitions gives a share of its widest segment to a broker without any. One step at a time, because
    segments get new ids.
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
    # A fair share at once: of three brokers the second gets a third, not a half of which it would give a part away again.
    share = -(-load[giver] // (len(empty) + 1))
    keep = max(1, widest.width - share)
    return Split(segment=widest.id, at=widest.first + keep, broker=empty[0])


def next_merge(parts: Sequence[Part]) -> tuple[int, int] | None:
    """Two neighbours at one broker that can be merged; None without such a pair."""
    ordered = sorted(parts, key=lambda part: part.first)
    for left, right in pairwise(ordered):
        if left.broker == right.broker and left.end == right.first:
            return left.id, right.id
    return None
