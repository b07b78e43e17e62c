"""Answers about group positions and high watermarks, judged: histories written by hand, and a simulated register.

A mismatch means that the verifier would miss a coordinator that answers an old position, or blame a correct one.
"""

from __future__ import annotations

import random

import pytest

from headgate.broker.verify.history import NO_POSITION, Commit, Outcome, PositionAnswer, WatermarkAnswer
from headgate.broker.verify.registers import judge_positions, judge_watermarks
from headgate.broker.verify.verdict import Kind

OK, UNKNOWN, FAILED = Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED


def commit(position: int, invoked: int, ended: int, outcome: Outcome = OK) -> Commit:
    return Commit(group="g", place=0, position=position, outcome=outcome, invoked_us=invoked, ended_us=ended)


def asked(position: int, invoked: int, ended: int, group: str = "g", place: int = 0) -> PositionAnswer:
    return PositionAnswer(group=group, place=place, position=position, invoked_us=invoked, ended_us=ended)


CASES = {
    "the committed position": ([commit(5, 0, 1)], [asked(5, 2, 3)], []),
    "none before the first commit": ([commit(5, 4, 5)], [asked(NO_POSITION, 2, 3)], []),
    "none while the first commit is under way": ([commit(5, 2, 9)], [asked(NO_POSITION, 3, 4)], []),
    "the new or the old one during a commit": ([commit(5, 0, 1), commit(8, 2, 9)], [asked(8, 3, 4), asked(5, 3, 4)], []),
    "the last one, though it is lower": ([commit(9, 0, 1), commit(4, 2, 3)], [asked(4, 5, 6)], []),
    "one whose outcome is not known": ([commit(5, 0, 1), commit(8, 2, 3, UNKNOWN)], [asked(8, 5, 6)], []),
    "not one whose outcome is not known": ([commit(5, 0, 1), commit(8, 2, 3, UNKNOWN)], [asked(5, 5, 6)], []),
    "an unknown one that takes effect late": ([commit(5, 0, 1, UNKNOWN), commit(8, 2, 3)], [asked(5, 5, 6)], []),
    "an older one": ([commit(5, 0, 1), commit(8, 2, 3)], [asked(5, 5, 6)], [Kind.POSITION_BACK]),
    "none after a commit": ([commit(5, 0, 1)], [asked(NO_POSITION, 2, 3)], [Kind.POSITION_BACK]),
    "older after an answer that showed a later one": (
        [commit(5, 0, 1), commit(8, 2, 20, UNKNOWN)],
        [asked(8, 5, 6), asked(5, 7, 8)],
        [Kind.POSITION_BACK],
    ),
    "one that was never committed": ([commit(5, 0, 1)], [asked(6, 2, 3)], [Kind.POSITION_UNKNOWN]),
    "one before its commit began": ([commit(5, 0, 1), commit(8, 9, 10)], [asked(8, 2, 3)], [Kind.POSITION_UNKNOWN]),
    "a refused one": ([commit(5, 0, 1), commit(8, 2, 3, FAILED)], [asked(8, 5, 6)], [Kind.POSITION_UNKNOWN]),
    "another group's": ([commit(5, 0, 1)], [asked(5, 2, 3, group="h")], [Kind.POSITION_UNKNOWN]),
    "another partition's": ([commit(5, 0, 1)], [asked(NO_POSITION, 2, 3, place=1)], []),
}


@pytest.mark.parametrize("name", CASES)
def test_positions(name: str) -> None:
    commits, answers, expected = CASES[name]
    assert [found.kind for found in judge_positions(commits, answers)] == expected


@pytest.mark.parametrize("seed", range(40))
def test_a_register_is_never_blamed_and_a_stale_copy_is(seed: int) -> None:
    """Commits and queries overlap at random and take effect at a moment between begin and end; some answers never come."""
    draw = random.Random(seed)
    commits: list[tuple[int, Commit]] = []
    for number in range(60):
        invoked = draw.randrange(1_000)
        effect = invoked + draw.randrange(1, 40)
        outcome = UNKNOWN if draw.random() < 0.2 else OK
        ended = effect + draw.randrange(1, 40)
        commits.append((effect, commit(100 + number, invoked, ended, outcome)))
    lost = {one.position for _, one in commits if one.outcome is UNKNOWN and draw.random() < 0.5}

    def at(moment: int) -> int:
        done = [(effect, one.position) for effect, one in commits if effect < moment and one.position not in lost]
        return max(done)[1] if done else NO_POSITION

    answers = []
    for _ in range(200):
        invoked = draw.randrange(1_100)
        moment = invoked + draw.randrange(1, 30)
        answers.append(asked(at(moment), invoked, moment + draw.randrange(1, 30)))
    history = [one for _, one in commits]
    assert judge_positions(history, answers) == []
    # No commit is under way at 1,200 any more; at 150 the register had another value, and many commits came in between.
    stale = asked(at(150), 1_200, 1_210)
    last = max((one for one in history if one.outcome is OK), key=lambda one: one.invoked_us)
    old = next((one for one in history if one.position == stale.position), None)
    is_provable = old is None or (old.outcome is OK and old.ended_us < last.invoked_us)
    assert bool(judge_positions(history, [*answers, stale])) == is_provable


def test_watermarks() -> None:
    def answer(high: int, invoked: int, ended: int, place: int = 0) -> WatermarkAnswer:
        return WatermarkAnswer(place=place, low=0, high=high, invoked_us=invoked, ended_us=ended)

    right = [answer(5, 0, 2), answer(7, 1, 3), answer(5, 1, 4), answer(7, 5, 6), answer(1, 7, 8, place=1)]
    assert judge_watermarks(right) == []
    (found,) = judge_watermarks([*right, answer(6, 9, 10)])
    assert (found.kind, found.offset, found.place) == (Kind.WATERMARK_BACK, 6, 0)
