"""The end of a step before its time: what the run holds is released, and one sentence says what happened and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from headgate.assets.progress import Follower
from headgate.assets.steps import Run, let_go
from headgate.broker.runtime.errors import HeadgateError, InvalidError

NO_RETRY = {"dagster/max_retries": "0"}
"""Tag of a run whose retry would fail in the same way."""


class EndedError(dg.Failure):
    """A failure without our stack. Dagster takes the stack of a failure, reads its description, and then prints both: reading
    it here leaves Dagster's own first frame of the stack."""

    @property
    def description(self) -> str | None:
        """The sentence for a person."""
        if self.__traceback__ is not None:
            self.__traceback__.tb_next = None
        return self._description

    @description.setter
    def description(self, text: str | None) -> None:
        self._description = text


@contextmanager
def clear_end(run: Run, doing: str, *, holds: bool = True) -> Iterator[Follower]:
    """Follow a step of a run. An error that a person can act on, and a cancellation, end the step with one sentence. Any end but
    success releases brokers; gates are released by the load itself.

    Args:
        doing: the step's work at its begin.
        holds: the step may hold brokers and gates.
    """
    with Follower(run.say) as follow:
        follow.at(doing)
        try:
            yield follow
        except HeadgateError as error:
            if isinstance(error, InvalidError):
                run.context.instance.add_run_tags(run.context.run.run_id, NO_RETRY)
            what = "correct it and run the same days again" if isinstance(error, InvalidError) else "run the same days again"
            failure = EndedError(
                description=f"{error.message}\n{_state(run, holds)}: {what}.",
                metadata={"reason": str(error.reason), "while": follow.doing},
                allow_retries=not isinstance(error, InvalidError),
            )
        except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
            text = f"cancelled while {follow.doing}. {_state(run, holds)}: run the same days again."
            failure = EndedError(description=text, metadata={"while": follow.doing}, allow_retries=False)
        except BaseException:
            if holds:
                let_go(run)
            raise
        else:
            return
    raise failure from None


def _state(run: Run, holds: bool) -> str:
    """What the run leaves behind, for a person."""
    if not holds:
        return "No brokers were asked for, and nothing was added"
    released = let_go(run)
    brokers = "Brokers and gates are released" if released else "Gates are released, and brokers when no other run needs them"
    try:
        added = run.newly_filled()
    except HeadgateError:
        return f"{brokers}, at the latest when their time is over"
    if not added:
        return f"{brokers}, and nothing was added"
    for key, rows in added.items():
        # Dagster shows these partitions as loaded, although the run did not succeed.
        run.context.log_event(dg.AssetMaterialization(run.topic_key, partition=key, metadata=run.figures(key, rows)))
    each = (
        f"{len(added)} of {len(run.keys)} partitions were added and stay"
        if len(run.keys) > 1
        else "the partition was added and stays"
    )
    return f"{brokers}, and {each}"
