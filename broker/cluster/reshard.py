"""Decides when to split, merge and move: the leader's planner. Pure: it receives loads and the time, and returns orders.

Theory of operation. Once a second `observe` folds the loads into averages (`load_history.py`), and `plan` checks in this order::

    drain    A broker that leaves loses all its segments at once. No later step delays this.
    welcome  A broker without segments gets its part: whole segments, and cuts of larger ones, up to its fair share.
    split    A segment was above `split_share` for `split_after_ms`: it is cut at half of its load, and one half goes to the least
             loaded broker. If one partition has most of the load, it stays, and its neighbours go. One partition is never cut:
             the moves below take its neighbours off its broker.
    move     Two brokers were `uneven_share` apart for `uneven_after_ms`: the segment, or its part, that best closes the gap.
    merge    Two neighbours together were below the average, and far from a split, for `merge_after_ms`.

These rules prevent oscillation:

- A move takes at most two thirds of the gap (`placement.py`).
- A split must bring two brokers closer by `gain_share_min`.
- The limits for splits and merges lie far apart.
- Merges never leave a broker empty, nor a topic with fewer segments than brokers: it would be divided again.
- After its writers have waited, a segment rests. The time doubles when it happens again soon.
- A broker that gained or lost a segment is not judged until its averages have followed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from headgate.broker.cluster.load_history import FAST, SLOW, BrokerHistory, LoadHistory, SegmentHistory, Targets
from headgate.broker.cluster.placement import (
    MOVED_PART_MAX,
    SEGMENTS_PER_BROKER,
    Board,
    Choice,
    Piece,
    better_half,
    choose,
    count_of_segments,
    described,
    halve,
    place,
    singled_out,
    span,
    successor,
)
from headgate.broker.cluster.segments import BrokerLoad, Order, OrderKind, PartitionLoad, Plan, SegmentInfo, Successor
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.runtime.steps import Steps

T = TypeVar("T")

FAIR_PART = 0.7
"""A new broker with this share of the fair share has enough to begin with."""
PART = 256
"""Segments in one step of a plan: a tenth of a millisecond, and a few tenths if all of them have traffic."""
CALM_PART = 0.8
"""A met condition holds until it is missed by this factor, because averages fluctuate."""


class LoadPlanner:
    """A `segments.Planner` that uses measured load. One object lives as long as one leader leads."""

    def __init__(self, targets: Targets | None = None) -> None:
        self.targets = targets or Targets()
        self.history = LoadHistory(self.targets)
        self.room = self.targets.orders_max
        """Orders that a plan may contain, at most. Drains do not count."""
        self._quiet_since: dict[tuple[int, int], int] = {}
        """Neighbours that could be merged, by their segment ids."""

    def observe(self, brokers: Sequence[BrokerLoad], now_ms: int) -> None:
        self.history.observe(brokers, now_ms)

    def place(
        self,
        ranges: Sequence[tuple[uuid.UUID, int, int]],
        segments: Mapping[int, SegmentInfo],
        brokers: Sequence[BrokerLoad],
        *,
        divide: bool = False,
    ) -> list[Successor]:
        self.history.learn(segments)
        return place(self.history, ranges, brokers, divide=divide)

    def plan(self, segments: Mapping[int, SegmentInfo], brokers: Sequence[BrokerLoad], now_ms: int) -> Steps[Plan]:
        self.history.learn(segments)
        orders = yield from _Pass(self, segments, brokers, now_ms).orders()
        return Plan(orders=tuple(orders))

    def pressures(self, segments: Mapping[int, SegmentInfo], brokers: Sequence[BrokerLoad]) -> dict[str, float]:
        """The used share of each broker, by incarnation: the input of `capacity.LoadDemand`."""
        self.history.learn(segments)
        return Board(self.history, brokers, FAST).pressure

    def load(self, segment_id: int) -> PartitionLoad:
        """Average traffic of a segment, for the operator; zeros if unknown."""
        segment = self.history.segments.get(segment_id)
        return PartitionLoad() if segment is None else self.history.load(segment)

    def order_split(
        self,
        segments: Mapping[int, SegmentInfo],
        brokers: Sequence[BrokerLoad],
        segment_id: int,
        at_partition: int | None = None,
        broker_id: int | None = None,
    ) -> Order:
        """A split by hand. Raises InvalidError: no such segment, partition or broker; nothing to split."""
        board, segment = self._by_hand(segments, brokers, segment_id)
        info, piece = segment.info, board.whole(segment)
        if len(info.partitions) < 2:
            raise _refused("segment has one partition and cannot be split", segment=info.id)
        at = halve(piece) if at_partition is None else at_partition
        if not info.first_partition < at < info.end_partition:
            raise _refused(
                f"a split is at a partition from {info.first_partition + 1} to {info.end_partition - 1}",
                segment=info.id,
                partition=at,
            )
        left, right = board.cut(piece, at)
        right.broker = self._target(board, info, broker_id)
        successors = (*board.successors([left]), *board.successors([right]))
        why = f"by hand: {described(info)} is split at partition {at}, the rest goes to {board.name(right.broker)}"
        return Order(kind=OrderKind.SPLIT, seal=(info.id,), open=successors, why=why)

    def order_merge(self, segments: Mapping[int, SegmentInfo], brokers: Sequence[BrokerLoad], first_id: int, next_id: int) -> Order:
        """A merge by hand, at the broker of the first. Raises InvalidError: no such segments; not neighbours."""
        board, first = self._by_hand(segments, brokers, first_id)
        _, second = self._by_hand(segments, brokers, next_id)
        a, b = first.info, second.info
        if a.topic_id != b.topic_id or a.end_partition != b.first_partition:
            raise _refused("segments are not neighbours of one topic, in order", segment=first_id, next=next_id)
        why = f"by hand: {described(a)} and {described(b)} are merged at {board.name(a.incarnation_id)}"
        merged = successor(a.topic_id, a.first_partition, b.end_partition, a.incarnation_id)
        return Order(kind=OrderKind.MERGE, seal=(a.id, b.id), open=(merged,), why=why)

    def order_move(
        self,
        segments: Mapping[int, SegmentInfo],
        brokers: Sequence[BrokerLoad],
        segment_id: int,
        broker_id: int | None = None,
    ) -> Order:
        """A move by hand. Raises InvalidError: no such segment or broker; it is there already; no other broker."""
        board, segment = self._by_hand(segments, brokers, segment_id)
        info, piece = segment.info, board.whole(segment)
        target = self._target(board, info, broker_id)
        if target == info.incarnation_id:
            raise _refused("segment is led by that broker already", segment=info.id, broker=board.brokers[target].broker_id)
        piece.broker = target
        why = f"by hand: {described(info)} goes from {board.name(info.incarnation_id)} to {board.name(target)}"
        return Order(kind=OrderKind.MOVE, seal=(info.id,), open=board.successors([piece]), why=why)

    def _by_hand(
        self, segments: Mapping[int, SegmentInfo], brokers: Sequence[BrokerLoad], segment_id: int
    ) -> tuple[Board, SegmentHistory]:
        self.history.learn(segments)
        if segment_id not in segments:
            raise _refused("there is no open segment of this number", segment=segment_id)
        segment = self.history.segments[segment_id]
        board = Board(self.history, brokers, FAST)
        if segment.info.incarnation_id not in board.brokers:
            raise RetryError(
                Reason.NOT_READY, f"segment's broker is lost, its segments are being taken over. segment=`{segment_id}`"
            )
        return board, segment

    @staticmethod
    def _target(board: Board, info: SegmentInfo, broker_id: int | None) -> str:
        if broker_id is None:
            others = [broker_id for broker_id in board.staying() if broker_id != info.incarnation_id]
            if not others:
                raise _refused("there is no other broker that could take it", segment=info.id)
            return board.lightest(others)
        for incarnation_id, broker in board.brokers.items():
            if broker.broker_id == broker_id:
                if broker.draining:
                    raise _refused("broker is being drained", broker=broker_id)
                return incarnation_id
        raise _refused("there is no live broker of this number", broker=broker_id)


class _Pass:
    """One call of `plan`. Later steps treat the orders of earlier ones as done.

    It goes through all segments several times, in steps: commits may open and seal segments between two steps. A step examines
    the segments that were live when the plan began.
    """

    def __init__(
        self, planner: LoadPlanner, segments: Mapping[int, SegmentInfo], brokers: Sequence[BrokerLoad], now_ms: int
    ) -> None:
        self._planner = planner
        self._history = planner.history
        self._targets = planner.targets
        self._segments = segments
        self._brokers = brokers
        self._now_ms = now_ms
        self._live = self._history.live()
        self._touched: set[str] = set()
        """Brokers to which or from which this plan moves something."""
        self._used: set[int] = set()
        """Segments that already are in an order of this plan."""
        self._count = 0

    def orders(self) -> Steps[list[Order]]:
        history, now_ms = self._history, self._now_ms
        segments = yield from self._by_lead()
        fast = Board(history, self._brokers, FAST, segments)
        orders = yield from self._drain(fast)
        hot = yield from self._watch(fast)
        if history.started_ms is None or now_ms - history.started_ms < self._targets.warm_up_ms or history.gap:
            return orders
        orders += yield from self._welcome(fast)
        orders += self._split(fast, hot)
        slow = Board(history, self._brokers, SLOW, segments)
        orders += yield from self._move(slow)
        orders += yield from self._merge(slow)
        return orders

    def _by_lead(self) -> Steps[dict[str, list[SegmentHistory]]]:
        """The live segments of the live brokers."""
        found: dict[str, list[SegmentHistory]] = {broker.incarnation_id: [] for broker in self._brokers}
        for part in _parts(self._live):
            yield PART
            for segment in part:
                if (led := found.get(segment.info.incarnation_id)) is not None:
                    led.append(segment)
        return found

    # -- lasting conditions

    def _watch(self, fast: Board) -> Steps[list[SegmentHistory]]:
        """Note for how long the lasting conditions hold. Returns the segments that are above the limit for a split."""
        now_ms, gap = self._now_ms, self._history.gap
        limit = self._targets.split_share
        hot: list[SegmentHistory] = []
        for part in _parts([segment for segments in fast.segments.values() for segment in segments]):
            yield PART
            for segment in part:
                weight = fast.weight(segment)
                if gap or weight < limit * CALM_PART:
                    segment.hot_since_ms = None
                elif weight > limit and segment.hot_since_ms is None:
                    segment.hot_since_ms = now_ms
                if segment.hot_since_ms is not None:
                    hot.append(segment)
        if gap:
            self._planner._quiet_since = {}
            for broker in self._history.brokers.values():
                broker.uneven_since_ms = None
        return hot

    def _is_free(self, segment: SegmentHistory) -> bool:
        """True if an order may seal the segment: no order on it is running, and its writers have not just waited."""
        segment_id = segment.info.id
        return segment_id in self._segments and segment_id not in self._used and not segment.is_cooling(self._now_ms)

    def _is_judged(self, incarnation_id: str) -> bool:
        """True if a broker's averages reflect its current segments."""
        broker = self._broker(incarnation_id)
        if broker is None or incarnation_id in self._touched:
            return False
        return broker.changed_ms is None or self._now_ms - broker.changed_ms >= self._targets.cooldown_ms

    def _broker(self, incarnation_id: str) -> BrokerHistory | None:
        return self._history.brokers.get(incarnation_id)

    def _room(self) -> int:
        return self._planner.room - self._count

    # -- drain

    def _drain(self, board: Board) -> Steps[list[Order]]:
        orders = []
        staying = board.staying()
        for source in sorted(board.brokers, key=board.order):
            if not board.brokers[source].draining or not staying:
                continue
            leaving = [segment for segment in board.segments[source] if segment.info.id in self._segments]
            leaving.sort(key=lambda segment: (-board.weight(segment), segment.info.id))
            successors: list[Successor] = []
            for part in _parts(leaving):
                yield PART
                for segment in part:
                    weight = board.weight(segment)
                    target = board.lightest(staying, weight)
                    board.shift(weight, source, target)
                    self._touched |= {source, target}
                    self._used.add(segment.info.id)
                    info = segment.info
                    successors.append(successor(info.topic_id, info.first_partition, info.end_partition, target))
            if successors:
                targets = sorted({board.name(successor.incarnation_id) for successor in successors})
                why = f"{board.name(source)} is to go: its {count_of_segments(len(successors))} to {', '.join(targets)}"
                seal = tuple(segment.info.id for segment in leaving)
                orders.append(Order(kind=OrderKind.DRAIN, seal=seal, open=tuple(successors), why=why))
        return orders

    # -- welcome

    def _free_pieces(self, board: Board, source: str) -> Steps[list[Piece]]:
        """The segments of a broker that may be cut or moved."""
        found: list[Piece] = []
        for part in _parts(board.segments[source]):
            yield PART
            found += [board.whole(segment) for segment in part if self._is_free(segment)]
        return found

    def _welcome(self, board: Board) -> Steps[list[Order]]:
        """Orders that give brokers without segments their part, all of them together."""
        targets, now_ms = self._targets, self._now_ms
        staying = board.staying()
        newcomers = [broker_id for broker_id in staying if not board.segments[broker_id]]
        joined = [broker.joined_ms for newcomer in newcomers if (broker := self._broker(newcomer)) is not None]
        if not joined or now_ms - max(joined) < targets.welcome_settle_ms:
            return []
        fair = sum(board.movable[broker_id] for broker_id in staying) / len(staying)
        before = dict(board.movable)
        pieces: dict[str, list[Piece]] = {}
        for source in staying:
            if source not in newcomers and source not in self._touched:
                pieces[source] = yield from self._free_pieces(board, source)
        changed: set[int] = set()
        for _ in range(4 * targets.orders_max * len(newcomers)):
            target = min(newcomers, key=lambda one: (board.movable[one], board.order(one)))
            if board.movable[target] >= fair * FAIR_PART:
                break
            choice = self._give(board, pieces, changed, target, fair)
            if choice is None:
                break
            self._apply(board, pieces, choice, target)
            changed.add(choice.piece.segment.info.id)
        return [
            self._changed(
                board,
                segment_id,
                f"{', '.join(board.name(newcomer) for newcomer in newcomers)} had nothing of {_share(fair)} that each broker "
                f"is to have, {board.name(self._history.segments[segment_id].info.incarnation_id)} had "
                f"{_share(before[self._history.segments[segment_id].info.incarnation_id])}",
            )
            for segment_id in sorted(changed)
        ]

    def _give(self, board: Board, pieces: Mapping[str, list[Piece]], changed: set[int], target: str, fair: float) -> Choice | None:
        """The next piece for a newcomer, from the broker with the most movable load."""
        full = len(changed) >= self._room()
        for source in sorted(pieces, key=lambda one: (-board.movable[one], board.order(one))):
            gap = board.movable[source] - board.movable[target]
            wanted = min(gap / 2, fair - board.movable[target])
            free = [
                piece for piece in pieces[source] if piece.broker == source and not (full and piece.segment.info.id not in changed)
            ]
            choice = choose(free, gap, wanted)
            if choice is None:
                continue
            after = board.pressure[target] + choice.weight
            # A newcomer that is busy with other work would end up with more pressure than the giver had.
            if after <= max(board.pressure[source], self._targets.busy_share):
                return choice
        return None

    def _apply(self, board: Board, pieces: Mapping[str, list[Piece]], choice: Choice, target: str) -> None:
        source = choice.piece.broker
        piece = choice.piece
        if choice.at is not None:
            left, right = board.cut(piece, choice.at)
            piece, rest = (left, right) if choice.prefix else (right, left)
            pieces[source].remove(choice.piece)
            pieces[source] += [piece, rest]
        board.move(piece, target)
        self._touched |= {source, target}

    def _changed(self, board: Board, segment_id: int, because: str) -> Order:
        """The order that turns a segment's pieces into those on the board."""
        pieces = board.pieces[segment_id]
        info = pieces[0].segment.info
        successors = board.successors(pieces)
        self._used.add(segment_id)
        self._count += 1
        gone = [
            f"{span(successor.first_partition, successor.end_partition)} to {board.name(successor.incarnation_id)}"
            for successor in successors
            if successor.incarnation_id != info.incarnation_id
        ]
        kind = OrderKind.MOVE if len(successors) == 1 else OrderKind.SPLIT
        what = (
            f"{described(info)} goes {gone[0].split(' ', 1)[1]}"
            if len(successors) == 1
            else f"of {described(info)}, {', '.join(gone)}"
        )
        return Order(kind=kind, seal=(segment_id,), open=successors, why=f"{because}: {what}")

    # -- split

    def _split(self, board: Board, watched: Sequence[SegmentHistory]) -> list[Order]:
        orders: list[Order] = []
        hot = [
            segment
            for segment in watched
            if segment.hot_since_ms is not None
            and self._now_ms - segment.hot_since_ms >= self._targets.split_after_ms
            and len(segment.info.partitions) > 1
            and self._is_free(segment)
            and not board.brokers[segment.info.incarnation_id].draining
        ]
        # All hot segments are judged before the first split, so that one plan splits all hot segments of a broker.
        judged = {broker_id for broker_id in board.staying() if self._is_judged(broker_id)}
        for segment in sorted(hot, key=lambda segment: (-board.weight(segment), segment.info.id)):
            source = segment.info.incarnation_id
            others = [broker_id for broker_id in board.staying() if broker_id in judged and broker_id != source]
            if self._room() <= 0 or source not in judged or not others:
                continue
            order = self._split_one(board, segment, board.lightest(others))
            if order is not None:
                orders.append(order)
        return orders

    def _split_one(self, board: Board, segment: SegmentHistory, target: str) -> Order | None:
        source, piece = segment.info.incarnation_id, board.whole(segment)
        gap = board.pressure[source] - board.pressure[target]
        going = singled_out(piece) or better_half(piece, gap)
        weight = sum(sum(piece.weights[first - piece.first : end - piece.first]) for first, end in going)
        if weight > gap * MOVED_PART_MAX or gap - abs(gap - 2 * weight) < self._targets.gain_share_min:
            return None
        before = board.pressure[source], board.pressure[target]
        for first, end in going:
            rest = piece
            if first > piece.first:
                piece, rest = board.cut(piece, first)
            if end < rest.end:
                rest, piece = board.cut(rest, end)
            board.move(rest, target)
        self._touched |= {source, target}
        since_ms = self._now_ms - (segment.hot_since_ms or self._now_ms)
        return self._changed(
            board,
            segment.info.id,
            f"{described(segment.info)} took {_share(board.weight(segment))} for {since_ms / 1000:.0f} s, above "
            f"{_share(self._targets.split_share)} ({self._rates(segment)}); moves {_share(weight)}, "
            f"{board.name(source)} from {before[0]:.2f} to {board.pressure[source]:.2f}, "
            f"{board.name(target)} from {before[1]:.2f} to {board.pressure[target]:.2f}",
        )

    # -- move

    def _move(self, board: Board) -> Steps[list[Order]]:
        targets, now_ms = self._targets, self._now_ms
        orders: list[Order] = []
        staying = board.staying()
        for source in sorted(staying, key=lambda broker_id: (-board.pressure[broker_id], board.order(broker_id))):
            broker = self._broker(source)
            others = [broker_id for broker_id in staying if broker_id != source and self._is_judged(broker_id)]
            if broker is None or not others or not self._is_judged(source):
                if broker is not None:
                    broker.uneven_since_ms = None
                continue
            target = min(others, key=lambda other: (board.pressure[other], board.order(other)))
            gap = board.pressure[source] - board.pressure[target]
            part = 1.0 if broker.uneven_since_ms is None else CALM_PART
            if gap < targets.uneven_share * part or board.pressure[source] < targets.busy_share * part:
                broker.uneven_since_ms = None
                continue
            if broker.uneven_since_ms is None:
                broker.uneven_since_ms = now_ms
            since_ms = now_ms - broker.uneven_since_ms
            if since_ms < targets.uneven_after_ms or self._room() <= 0:
                continue
            free = yield from self._free_pieces(board, source)
            choice = choose(free, gap, gap / 2, cut_weight_min=targets.merge_share_max * 1.2)
            if choice is None or gap - abs(gap - 2 * choice.weight) < targets.gain_share_min:
                continue
            before = board.pressure[source], board.pressure[target]
            self._apply(board, {source: free}, choice, target)
            broker.uneven_since_ms = None
            orders.append(
                self._changed(
                    board,
                    choice.piece.segment.info.id,
                    f"{board.name(source)} and {board.name(target)} were {_share(gap)} apart for {since_ms / 1000:.0f} s, more "
                    f"than {_share(targets.uneven_share)}; moves {_share(choice.weight)}, from {before[0]:.2f} and {before[1]:.2f} "
                    f"to {board.pressure[source]:.2f} and {board.pressure[target]:.2f}",
                )
            )
        return orders

    # -- merge

    def _merge(self, board: Board) -> Steps[list[Order]]:
        targets, planner = self._targets, self._planner
        weights: dict[int, float] = {}
        for part in _parts([segment for segments in board.segments.values() for segment in segments]):
            yield PART
            weights.update((segment.info.id, board.weight(segment)) for segment in part if segment.info.id in self._segments)
        average = sum(weights.values()) / len(weights) if weights else 0.0
        limit = min(max(average, targets.quiet_share), targets.merge_share_max)
        staying = board.staying()
        led = {broker_id: len(board.segments[broker_id]) for broker_id in staying}
        quiet: dict[tuple[int, int], int] = {}
        orders: list[Order] = []
        for infos in (yield from self._by_topic()):
            count = len(infos)
            partitions = sum(len(info.partitions) for info in infos)
            enough = 1 if len(weights) >= SEGMENTS_PER_BROKER * len(staying) else min(partitions, len(staying))
            ready: list[tuple[float, SegmentInfo, SegmentInfo]] = []
            for at, (a, b) in enumerate(pairwise(infos)):
                if at % PART == 0:
                    yield PART
                both = weights.get(a.id), weights.get(b.id)
                if a.end_partition != b.first_partition or both[0] is None or both[1] is None:
                    continue
                since = planner._quiet_since.get((a.id, b.id))
                if both[0] + both[1] > limit / (1.0 if since is None else CALM_PART):
                    continue
                since = quiet[a.id, b.id] = self._now_ms if since is None else since
                if self._now_ms - since >= targets.merge_after_ms:
                    ready.append((both[0] + both[1], a, b))
            for total, a, b in sorted(ready, key=lambda item: (item[0], item[1].id)):
                lead = self._merge_at(board, led, weights, a, b)
                if count <= enough or self._room() <= 0 or lead is None:
                    continue
                other = b if lead == a.incarnation_id else a
                led[other.incarnation_id] -= 1
                if other.incarnation_id != lead:
                    board.shift(weights[other.id], other.incarnation_id, lead)
                self._touched |= {a.incarnation_id, b.incarnation_id}
                self._used |= {a.id, b.id}
                self._count += 1
                count -= 1
                why = (
                    f"{described(a)} and {described(b)} together took {_share(total)} for at least "
                    f"{targets.merge_after_ms / 1000:.0f} s, below {_share(limit)}: merged at {board.name(lead)}"
                )
                merged = successor(a.topic_id, a.first_partition, b.end_partition, lead)
                orders.append(Order(kind=OrderKind.MERGE, seal=(a.id, b.id), open=(merged,), why=why))
        planner._quiet_since = quiet
        return orders

    def _merge_at(
        self, board: Board, led: Mapping[str, int], weights: Mapping[int, float], a: SegmentInfo, b: SegmentInfo
    ) -> str | None:
        """The lead of two segments after their merge; None: they stay two."""
        if not self._is_free(self._history.segments[a.id]) or not self._is_free(self._history.segments[b.id]):
            return None
        if a.incarnation_id == b.incarnation_id:
            return a.incarnation_id if a.incarnation_id in led else None
        heavy, light = (a, b) if weights[a.id] >= weights[b.id] else (b, a)
        for lead, other in ((heavy, light), (light, heavy)):
            target, source = lead.incarnation_id, other.incarnation_id
            # Leave no broker empty, and make none so busy that a part would be moved away again.
            after = board.pressure[target] + weights[other.id]
            if target in led and source in led and led[source] > 1 and (
                after < self._targets.busy_share * CALM_PART or after <= board.pressure[source] - weights[other.id]
            ):  # fmt: skip
                return target
        return None

    def _by_topic(self) -> Steps[list[list[SegmentInfo]]]:
        """The neighbours: of each topic with several segments, all that no order seals, in order."""
        topics: dict[uuid.UUID, list[SegmentInfo]] = {}
        for part in _parts(list(self._segments.values())):
            yield PART
            for info in part:
                if (others := topics.get(info.topic_id)) is None:
                    topics[info.topic_id] = [info]
                else:
                    others.append(info)
        several = [infos for infos in topics.values() if len(infos) > 1]
        for infos in several:
            yield len(infos)
            infos.sort(key=lambda info: info.first_partition)
        return several

    def _rates(self, segment: SegmentHistory) -> str:
        load = self._history.load(segment)
        return (
            f"{load.bytes_in_per_s / 1e6:.1f} MB/s in, {load.bytes_out_per_s / 1e6:.1f} MB/s out, "
            f"{load.requests_per_s:.0f} requests/s"
        )


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Items in parts of `PART`."""
    return (items[first : first + PART] for first in range(0, len(items), PART))


def _share(share: float) -> str:
    return f"{share:.2f} of a broker" if share >= 0.005 or share == 0 else f"{share:.1g} of a broker"


def _refused(message: str, **values: object) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"{message}. " + " ".join(f"{name}=`{value}`" for name, value in values.items()))
