"""The end of a flood's run before its time, in one sentence: what happened, what is left, and what to do next.

An end releases brokers; gates are released by the load itself. Both end by themselves when the cluster does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from headgate.broker.runtime.errors import HeadgateError, InvalidError
from headgate.pipelines.calls import Apart
from headgate.pipelines.floods.run import Run

LET_GO_S = 5.0
"""Longest wait of a run that ends for the release of its brokers, in seconds."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves behind.

    `held`: the run may have held brokers and gates. `answered`: False when the cluster did not answer within `LET_GO_S`.
    `released`: its brokers are released; other runs may need them. `added`: rows of the partitions that it added to, all those of
    the partition in the topic, by key; None when the cluster does not tell. `partitions`: of the run.
    """

    partitions: int
    held: bool = True
    answered: bool = True
    released: bool = False
    added: Mapping[str, int] | None = None

    def __str__(self) -> str:
        if not self.held:
            return "No brokers were asked for, and nothing was added"
        if not self.answered:
            return "The cluster does not answer. Brokers and gates are released, at the latest when their time is over"
        brokers = (
            "Brokers and gates are released" if self.released else "Gates are released, and brokers when no other run needs them"
        )
        if self.added is None:
            return f"{brokers}, at the latest when their time is over"
        if not self.added:
            return f"{brokers}, and nothing was added"
        each = (
            f"{len(self.added)} of {self.partitions} partitions were added and stay"
            if self.partitions > 1
            else "the partition was added and stays"
        )
        return f"{brokers}, and {each}"


def leave(run: Run, *, held: bool) -> Left:
    """Release the brokers of a run that ends. Returns what it leaves. Brokers that do not answer are not waited for: what they hold
    for the run ends by itself.

    Args:
        held: the run may hold brokers and gates.
    """
    if not held:
        return Left(len(run.keys), held=False)
    left = Apart(partial(_leave, run)).start()
    return left.result() if left.end(within_s=LET_GO_S) else Left(len(run.keys), answered=False)


def _leave(run: Run) -> Left:
    released = run.let_go()
    try:
        return Left(len(run.keys), released=released, added=run.newly_filled())
    except HeadgateError:
        return Left(len(run.keys), released=released)


def interrupted(doing: str, left: Left) -> str:
    """The sentence about an interrupt. `doing`: the work at that moment."""
    return f"cancelled while {doing}. {left}: run the same days again."


def failed(error: HeadgateError, left: Left) -> str:
    """The sentence about an error, on two lines: the error, and what is left and to be done."""
    again = "correct it and run the same days again" if isinstance(error, InvalidError) else "run the same days again"
    return f"{error.message}\n{left}: {again}."
