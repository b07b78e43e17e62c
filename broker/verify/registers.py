"""Judges of answers about a single number: group positions (OffsetFetch) and high watermarks (ListOffsets).

A group's position at one place is a register: commits write it, OffsetFetch reads it. An answer is right if some commit of that
position can be the last one that took effect. The answer is wrong if each commit of that position is outdated. A commit is
outdated if it had ended before another commit began, and that other commit was known to have taken effect before the question
was asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from headgate.broker.verify.history import NO_POSITION, Commit, Outcome, PositionAnswer, WatermarkAnswer
from headgate.broker.verify.verdict import Kind, Violation

_AT = attrgetter("group", "place")


def judge_positions(commits: Iterable[Commit], answers: Iterable[PositionAnswer]) -> list[Violation]:
    """Positions that went back, and positions that no member committed."""
    written: defaultdict[tuple[str, int], list[Commit]] = defaultdict(list)
    for commit in commits:
        if commit.outcome is not Outcome.FAILED:
            written[_AT(commit)].append(commit)
    found: list[Violation] = []
    for at, asked in groupby(sorted(answers, key=_AT), key=_AT):
        found.extend(_judge_register(written[at], list(asked)))
    return found


def _judge_register(commits: Sequence[Commit], answers: Sequence[PositionAnswer]) -> Iterator[Violation]:
    seen_us: dict[int, int] = {}
    for answer in answers:
        seen_us[answer.position] = min(answer.ended_us, seen_us.get(answer.position, answer.ended_us))
    of_position: defaultdict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        of_position[commit.position].append(commit)
    known: list[tuple[int, Commit]] = []
    """The time from which the commit is known to have taken effect: its own answer, or an OffsetFetch that shows it."""
    for commit in commits:
        shown = [seen_us[commit.position]] if commit.position in seen_us and len(of_position[commit.position]) == 1 else []
        told = [commit.ended_us] if commit.outcome is Outcome.OK else []
        if shown or told:
            known.append((min(shown + told), commit))
    known.sort(key=lambda pair: pair[0])
    times_us = [time_us for time_us, _ in known]
    newest: list[Commit] = []
    """By index in `known`: among all commits up to it, the one that began last."""
    for _, commit in known:
        newest.append(commit if not newest or commit.invoked_us > newest[-1].invoked_us else newest[-1])
    for answer in answers:
        before = bisect_left(times_us, answer.invoked_us)
        last = newest[before - 1] if before else None
        candidates = [commit for commit in of_position[answer.position] if commit.invoked_us <= answer.ended_us]
        if answer.position == NO_POSITION:
            is_right = last is None
        else:
            is_right = any(
                last is None or commit.outcome is Outcome.UNKNOWN or commit.ended_us >= last.invoked_us for commit in candidates
            )
        if is_right:
            continue
        if answer.position != NO_POSITION and not candidates:
            text = f"OffsetFetch answered a position that no member had committed. group=`{answer.group}` asker=`{answer.asker}`"
            yield Violation(
                kind=Kind.POSITION_UNKNOWN, place=answer.place, offset=answer.position, time_us=answer.ended_us, text=text
            )
            continue
        assert last is not None
        text = (
            f"OffsetFetch answered an older position than one that was committed before. group=`{answer.group}` "
            f"asker=`{answer.asker}` committed=`{last.position}` commit_began_us=`{last.invoked_us}` asked_us=`{answer.invoked_us}`"
        )
        yield Violation(kind=Kind.POSITION_BACK, place=answer.place, offset=answer.position, time_us=answer.ended_us, text=text)


def judge_watermarks(answers: Iterable[WatermarkAnswer]) -> list[Violation]:
    """Find high watermarks that are lower than one that had been answered before the question was asked."""
    found: list[Violation] = []
    by_place = attrgetter("place")
    for place, asked in groupby(sorted(answers, key=by_place), key=by_place):
        rows = list(asked)
        ended = sorted(rows, key=attrgetter("ended_us"))
        times_us = [answer.ended_us for answer in ended]
        highest: list[int] = []
        for answer in ended:
            highest.append(max(answer.high, highest[-1] if highest else answer.high))
        for answer in rows:
            before = bisect_left(times_us, answer.invoked_us)
            if before and answer.high < highest[before - 1]:
                text = f"a high watermark went back. asker=`{answer.asker}` answered_before=`{highest[before - 1]}`"
                found.append(
                    Violation(kind=Kind.WATERMARK_BACK, place=place, offset=answer.high, time_us=answer.ended_us, text=text)
                )
    return found
