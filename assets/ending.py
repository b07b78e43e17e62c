"""The end of a step before its time: what the run holds is released, and one sentence says what happened and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import dagster as dg

from headgate.assets.progress import Follower
from headgate.assets.steps import Run, let_go
from headgate.broker.runtime.errors import HeadgateError, InvalidError
from headgate.pipelines.calls import Apart

NO_RETRY = {"dagster/max_retries": "0"}
"""Tag of a run whose retry would fail in the same way."""
LET_GO_S = 5.0
"""Longest wait of a run that ends for the release of its brokers, in seconds."""
_CANCELLED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


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
        try:
            follow.at(doing)
            yield follow
        except (Exception, KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as error:  # noqa: BLE001 - raised again, in our words
            failure = _ended(run, error, follow.doing, holds)
        except BaseException:
            if holds:
                let_go(run)
            raise
        else:
            return
    raise failure from None


def _ended(run: Run, error: BaseException, doing: str, holds: bool) -> BaseException:
    """Release what the run holds. Returns the exception that ends the step.

    Whatever a run that is being cancelled raises, it was cancelled: cancelled work fails with errors of many kinds. Dagster reports
    a run as failed that raises such an error after Dagster stopped waiting for it, and then retries it; it does not for an
    interrupt.
    """
    status = _status(run)
    if not isinstance(error, Exception) or status in _CANCELLED:
        text = f"cancelled while {doing}. {_state(run, holds)}: run the same days again."
        if _status(run) is dg.DagsterRunStatus.CANCELED:
            run.context.log.error(text)
            return dg.DagsterExecutionInterruptedError()
        return EndedError(description=text, metadata={"while": doing}, allow_retries=False)
    if not isinstance(error, HeadgateError):
        if holds:
            let_go(run)
        return error
    is_mistake = isinstance(error, InvalidError)
    if is_mistake:
        run.context.instance.add_run_tags(run.context.run.run_id, NO_RETRY)
    what = "correct it and run the same days again" if is_mistake else "run the same days again"
    return EndedError(
        description=f"{error.message}\n{_state(run, holds)}: {what}.",
        metadata={"reason": str(error.reason), "while": doing},
        allow_retries=not is_mistake,
    )


def _status(run: Run) -> dg.DagsterRunStatus | None:
    """The state of the run in Dagster by now; None when it is deleted."""
    found = run.context.instance.get_run_by_id(run.context.run.run_id)
    return None if found is None else found.status


def _state(run: Run, holds: bool) -> str:
    """What the run leaves behind, for a person. Brokers that do not answer are not waited for: what they hold for the run ends by
    itself."""
    if not holds:
        return "No brokers were asked for, and nothing was added"
    left = Apart(partial(_left, run)).start()
    if not left.end(within_s=LET_GO_S):
        return "The cluster does not answer. Brokers and gates are released, at the latest when their time is over"
    released, added = left.result()
    brokers = "Brokers and gates are released" if released else "Gates are released, and brokers when no other run needs them"
    if added is None:
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


def _left(run: Run) -> tuple[bool, dict[str, int] | None]:
    """Release brokers. Returns whether they are released, and the rows of the partitions that the run added to; None when the
    cluster does not tell."""
    released = let_go(run)
    try:
        return released, run.newly_filled()
    except HeadgateError:
        return released, None
