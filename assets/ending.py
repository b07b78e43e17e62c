"""The end of a step before its time: what the run holds is released, and one sentence says what happened and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from headgate.assets.steps import DagsterRun
from headgate.broker.runtime.errors import HeadgateError, InvalidError
from headgate.pipelines.floods.ending import Left, failed, interrupted, leave
from headgate.pipelines.follower import Follower

NO_RETRY = {"dagster/max_retries": "0"}
"""Tag of a run whose retry would fail in the same way."""
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
def clear_end(run: DagsterRun, doing: str, *, holds: bool = True) -> Iterator[Follower]:
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
                run.let_go()
            raise
        else:
            return
    raise failure from None


def _ended(run: DagsterRun, error: BaseException, doing: str, holds: bool) -> BaseException:
    """Release what the run holds. Returns the exception that ends the step.

    Whatever a run that is being cancelled raises, it was cancelled: cancelled work fails with errors of many kinds. Dagster reports
    a run as failed that raises such an error after Dagster stopped waiting for it, and then retries it; it does not for an
    interrupt.
    """
    if not isinstance(error, Exception) or _status(run) in _CANCELLED:
        text = interrupted(doing, _left(run, holds))
        if _status(run) is dg.DagsterRunStatus.CANCELED:
            run.context.log.error(text)
            return dg.DagsterExecutionInterruptedError()
        return EndedError(description=text, metadata={"while": doing}, allow_retries=False)
    if not isinstance(error, HeadgateError):
        if holds:
            run.let_go()
        return error
    is_mistake = isinstance(error, InvalidError)
    if is_mistake:
        run.context.instance.add_run_tags(run.context.run.run_id, NO_RETRY)
    return EndedError(
        description=failed(error, _left(run, holds)),
        metadata={"reason": str(error.reason), "while": doing},
        allow_retries=not is_mistake,
    )


def _status(run: DagsterRun) -> dg.DagsterRunStatus | None:
    """The state of the run in Dagster by now; None when it is deleted."""
    found = run.context.instance.get_run_by_id(run.context.run.run_id)
    return None if found is None else found.status


def _left(run: DagsterRun, holds: bool) -> Left:
    """Release what the run holds, and show what it added. Returns what it leaves."""
    left = leave(run, held=holds)
    for key, rows in (left.added or {}).items():
        # Dagster shows these partitions as loaded, although the run did not succeed.
        run.context.log_event(dg.AssetMaterialization(run.topic_key, partition=key, metadata=run.figures(key, rows)))
    return left
