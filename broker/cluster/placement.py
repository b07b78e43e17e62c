"""Placement on paper: the pressures of all brokers, segments as pieces that can be cut and moved, and the rules for both.

One rule prevents oscillation: a move takes at most two thirds of the gap between two brokers (`MOVED_PART_MAX`). The remaining
gap is at most a third, so the next plan finds less to do than this one.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headgate.broker.cluster.load_history import DEARNESS_MAX, SLOW, LoadHistory, SegmentHistory
from headgate.broker.cluster.segments import BrokerLoad, SegmentInfo, Successor

MOVED_PART_MAX = 2 / 3
PRESSURE_STEP = 0.1
"""Pressures that differ by less than this count as equal. A few percent of idle CPU must decide nothing."""
NEAR_SHARE = 0.25
"""A new topic is divided among the brokers with a pressure within this of the lowest one."""
SEGMENTS_PER_BROKER = 1000
"""With more segments than this, new topics are not divided, and quiet segments are merged."""
HOT_PARTITION_PART = 0.6
"""A partition with more than this share of its segment's load is handled alone."""
CUT_CANDIDATES = 8
"""Only the heaviest segments of a broker are examined partition by partition."""


@dataclass(slots=True)
class Piece:
    """A part of a segment in the plan. `weights`: the shares of its partitions, in order; `broker`: its future lead."""

    segment: SegmentHistory
    first: int
    broker: str
    weights: list[float]
    weight: float = field(init=False)

    def __post_init__(self) -> None:
        self.weight = sum(self.weights)

    @property
    def end(self) -> int:
        return self.first + len(self.weights)


class Board:
    """All brokers and segments, as a plan changes them.

    Args:
        brokers: live ones. A segment of any other broker has no weight and stays.
        which: the averages in use, `FAST` or `SLOW`.
        segments: the live segments by their current lead, for all of `brokers`.
    """

    def __init__(
        self,
        history: LoadHistory,
        brokers: Sequence[BrokerLoad],
        which: int,
        segments: Mapping[str, Sequence[SegmentHistory]] | None = None,
    ) -> None:
        self._history = history
        self._which = which
        targets = history.targets
        self.brokers = {broker.incarnation_id: broker for broker in brokers}
        self.segments = segments or {}
        self.totals = history.totals(which)
        self.pressure: dict[str, float] = {}
        """By broker, with the plan's moves so far."""
        self.movable: dict[str, float] = {}
        """The segments' share of a broker's pressure; the rest stays after any move."""
        self._dearness: dict[str, float] = {}
        for incarnation_id in self.brokers:
            share = self.totals.costs.get(incarnation_id, 0.0) / targets.broker_bytes_per_s
            known = history.brokers.get(incarnation_id)
            pressure = max(share, 0.0 if known is None else known.cpu[which])
            dearness = min(pressure / share, DEARNESS_MAX) if share > 0 else 1.0
            self.pressure[incarnation_id] = pressure
            self.movable[incarnation_id] = share * dearness
            self._dearness[incarnation_id] = dearness / targets.broker_bytes_per_s
        self.pieces: dict[int, list[Piece]] = {}
        """The pieces of the segments that the plan changes, in order, by segment id."""

    def weight(self, segment: SegmentHistory) -> float:
        """A segment's share of a broker."""
        return self._history.segment_cost(segment, self._which) * self._dearness[segment.info.incarnation_id]

    def whole(self, segment: SegmentHistory) -> Piece:
        """A segment as one piece."""
        scale = self._dearness[segment.info.incarnation_id]
        weights = [self._history.partition_cost(segment, number, self._which) * scale for number in segment.info.partitions]
        return Piece(segment, segment.info.first_partition, segment.info.incarnation_id, weights)

    def staying(self) -> list[str]:
        """Brokers that may receive something, by id: the order of all choices between equals."""
        return sorted((segment for segment, broker in self.brokers.items() if not broker.draining), key=self.order)

    def order(self, incarnation_id: str) -> tuple[int, str]:
        return self.brokers[incarnation_id].broker_id, incarnation_id

    def name(self, incarnation_id: str) -> str:
        return f"broker {self.brokers[incarnation_id].broker_id}"

    def shift(self, weight: float, source: str | None, target: str) -> None:
        """Note a move from one broker to another; None: from a broker that is gone."""
        if source is not None:
            self.pressure[source] -= weight
            self.movable[source] -= weight
        self.pressure[target] += weight
        self.movable[target] += weight

    def move(self, piece: Piece, target: str) -> None:
        """Plan a whole piece for another broker."""
        self.pieces.setdefault(piece.segment.info.id, [piece])
        self.shift(piece.weight, piece.broker, target)
        piece.broker = target

    def cut(self, piece: Piece, at: int) -> tuple[Piece, Piece]:
        """Split a piece in the plan; the second part begins at partition `at`; both stay at its broker."""
        pieces = self.pieces.setdefault(piece.segment.info.id, [piece])
        count = at - piece.first
        assert 0 < count < len(piece.weights), (piece.first, at)
        left = Piece(piece.segment, piece.first, piece.broker, piece.weights[:count])
        right = Piece(piece.segment, at, piece.broker, piece.weights[count:])
        where = pieces.index(piece)
        pieces[where : where + 1] = [left, right]
        return left, right

    def lightest(self, among: Iterable[str], weight: float = 0.0) -> str:
        """The broker for something new. Idle brokers are compared by their segments, not by the noise of their CPUs."""
        return min(
            among, key=lambda candidate: (_steps(self.pressure[candidate] + weight), self.movable[candidate], self.order(candidate))
        )

    def successors(self, pieces: Sequence[Piece]) -> tuple[Successor, ...]:
        """The segments to open in place of a segment. Neighbours with the same broker become one."""
        merged: list[tuple[int, int, str]] = []
        for piece in pieces:
            if merged and merged[-1][2] == piece.broker:
                merged[-1] = (merged[-1][0], piece.end, piece.broker)
            else:
                merged.append((piece.first, piece.end, piece.broker))
        topic_id = pieces[0].segment.info.topic_id
        return tuple(
            Successor(topic_id=topic_id, first_partition=first, end_partition=end, incarnation_id=broker)
            for first, end, broker in merged
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate for a move: a whole piece, or a part of it that begins or ends at partition `at`."""

    piece: Piece
    weight: float
    at: int | None = None
    prefix: bool = False


def choose(pieces: Sequence[Piece], gap: float, wanted: float, *, cut_weight_min: float = 0.0) -> Choice | None:
    """The candidate to move across a gap: the nearest to `wanted` of all allowed ones. Whole pieces come first.

    Args:
        gap: pressure of the source minus that of the target.
        wanted: share to move; half of the gap, or less.
        cut_weight_min: a lighter piece is not cut.
    """
    most = gap * MOVED_PART_MAX
    whole = [Choice(piece, piece.weight) for piece in pieces if piece.weight <= most]
    best = min(whole, key=lambda plan: abs(plan.weight - wanted), default=None)
    if best is not None and wanted / 2 <= best.weight <= wanted * 4 / 3:
        return best
    cuts = [
        choice
        for piece in sorted(pieces, key=lambda piece: -piece.weight)[:CUT_CANDIDATES]
        if piece.weight > max(wanted, cut_weight_min) and len(piece.weights) > 1
        for choice in _cuts(piece, wanted)
        if choice.weight <= most
    ]
    return min([*([] if best is None else [best]), *cuts], key=lambda plan: abs(plan.weight - wanted), default=None)


def _cuts(piece: Piece, wanted: float) -> Iterable[Choice]:
    """The cuts near the point at which a prefix, or a suffix, has the wanted weight."""
    for prefix in (False, True):
        before, total = 0.0, 0.0
        numbers = range(len(piece.weights)) if prefix else range(len(piece.weights) - 1, -1, -1)
        for number in numbers:
            before, total = total, total + piece.weights[number]
            if total >= wanted:
                break
        # With and without the partition at which the weight is exceeded. A part is never empty, and never the whole piece.
        for at, weight in ((number, before), (number + 1, total)) if prefix else ((number + 1, before), (number, total)):
            if 0 < at < len(piece.weights):
                yield Choice(piece, weight, piece.first + at, prefix)


def halve(piece: Piece) -> int:
    """The partition at which the second half of the weight begins. Needs two partitions."""
    total, best, best_difference = 0.0, 1, math.inf
    for count in range(1, len(piece.weights)):
        total += piece.weights[count - 1]
        difference = abs(piece.weight - 2 * total)
        if difference < best_difference:
            best, best_difference = count, difference
    return piece.first + best


def singled_out(piece: Piece) -> list[tuple[int, int]] | None:
    """The ranges beside a partition with most of the load; None without such a partition."""
    heaviest = max(range(len(piece.weights)), key=lambda index: piece.weights[index])
    if piece.weights[heaviest] <= HOT_PARTITION_PART * piece.weight:
        return None
    number = piece.first + heaviest
    return [(first, end) for first, end in ((piece.first, number), (number + 1, piece.end)) if first < end]


def better_half(piece: Piece, gap: float) -> list[tuple[int, int]]:
    """The half to move: the one that brings two brokers closest. Their pressures are `gap` apart."""
    at = halve(piece)
    first = sum(piece.weights[: at - piece.first])
    halves = [(first, (piece.first, at)), (piece.weight - first, (at, piece.end))]
    return [min(reversed(halves), key=lambda half: abs(gap - 2 * half[0]))[1]]


def place(
    history: LoadHistory,
    ranges: Sequence[tuple[uuid.UUID, int, int]],
    brokers: Sequence[BrokerLoad],
    *,
    divide: bool,
) -> list[Successor]:
    """Choose leads for partitions without one; see `segments.Planner.place`."""
    board = Board(history, brokers, SLOW)
    among = board.staying() or sorted(board.brokers, key=board.order)
    if not among:
        return []
    scale = 1 / history.targets.broker_bytes_per_s
    totals = board.totals
    typical = sum(totals.costs.values()) / totals.partitions if totals.partitions else 0.0
    typical = max(typical, history.targets.partition_bytes_per_s) * scale
    weights: list[float] = []
    for topic_id, first, end in ranges:
        cost = history.range_cost(topic_id, first, end, SLOW)
        weights.append((end - first) * typical if cost is None else cost * scale)
    placed: list[list[Successor]] = [[] for _ in ranges]
    # The heaviest first: later ones even out the result.
    for index in sorted(range(len(ranges)), key=lambda index: (-weights[index], index)):
        topic_id, first, end = ranges[index]
        divided = divide and totals.segments < SEGMENTS_PER_BROKER * len(among)
        near = _near(board, among) if divided else among
        parts = min(end - first, len(near)) if divided else 1
        free = list(near)
        for first_part, end_part in _even(first, end, parts):
            weight = weights[index] * (end_part - first_part) / (end - first)
            target = board.lightest(free, weight)
            if len(free) > 1:
                free.remove(target)
            board.shift(weight, None, target)
            placed[index].append(successor(topic_id, first_part, end_part, target))
    return [part for parts_of_one in placed for part in parts_of_one]


def _near(board: Board, among: Sequence[str]) -> list[str]:
    """The brokers among which a new topic is divided."""
    least = min(board.pressure[candidate] for candidate in among)
    return [candidate for candidate in among if board.pressure[candidate] - least < NEAR_SHARE]


def _even(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """A range in parts that differ by one partition at most."""
    count = end - first
    cuts = [first + count * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


def successor(topic_id: uuid.UUID, first: int, end: int, incarnation_id: str) -> Successor:
    """A segment to open, of the partitions [first, end)."""
    return Successor(topic_id=topic_id, first_partition=first, end_partition=end, incarnation_id=incarnation_id)


def _steps(pressure: float) -> int:
    return math.floor(pressure / PRESSURE_STEP)


def described(info: SegmentInfo) -> str:
    """A segment, for an operator."""
    return f"segment {info.id} of partitions {span(info.first_partition, info.end_partition)}"


def span(first: int, end: int) -> str:
    """Partitions, for an operator: ``3``, ``3-7``. The last one is included."""
    return str(first) if end - first == 1 else f"{first}-{end - 1}"


def count_of_segments(count: int) -> str:
    """``1 segment``, ``2 segments``: for the sentences that explain orders."""
    return "1 segment" if count == 1 else f"{count} segments"
