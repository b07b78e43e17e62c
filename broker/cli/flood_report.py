"""The end of `headgate flood run FILE`: one sentence, an exit code that a retry understands, and the same as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headgate.broker.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, plural
from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.outcome import Outcome, judgements

EXIT_RETRY = 75
"""EX_TEMPFAIL of sysexits.h: what was asked for is right, and the same command may succeed later."""


class State(StrEnum):
    """How a run ended."""

    ADDED = "added"
    THERE = "there"
    """Nothing was added: all partitions were in the topic before, or have no rows."""
    INCOMPLETE = "incomplete"
    """The load ended, and a check of it failed."""
    WRONG = "wrong"
    """Command, file, source, topic or permission: the same command fails again."""
    UNAVAILABLE = "unavailable"
    """Cluster, store, source or brokers: the same command may succeed later."""
    FAILED = "failed"
    """This machine cannot do it, or an unexpected error."""
    INTERRUPTED = "interrupted"


CODES = {
    State.ADDED: 0,
    State.THERE: 0,
    State.INCOMPLETE: EXIT_FAILED,
    State.FAILED: EXIT_FAILED,
    State.WRONG: EXIT_USAGE,
    State.UNAVAILABLE: EXIT_RETRY,
    State.INTERRUPTED: EXIT_INTERRUPTED,
}
"""The exit code of each state; the table in `pipelines/orchestrators.md` describes them."""
RETRIED = (State.UNAVAILABLE, State.INTERRUPTED)
"""The states after which the same command may succeed."""


def state_after(error: BaseException) -> State:
    """The state of a run that an error ended."""
    if isinstance(error, KeyboardInterrupt):
        return State.INTERRUPTED
    if isinstance(error, InvalidError):
        return State.WRONG
    return State.UNAVAILABLE if isinstance(error, RetryError) else State.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The end of a run. `text`: one sentence. `problems`, `warnings`: what a person should look at. `more`: further fields of the
    JSON."""

    state: State
    text: str
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()
    more: Mapping[str, Any]

    @property
    def code(self) -> int:
        """The exit code."""
        return CODES[self.state]

    def to_json(self) -> dict[str, Any]:
        """The report for a program."""
        ended = {"state": str(self.state), "exit_code": self.code, "retry": self.state in RETRIED, "message": self.text}
        return {**ended, "problems": list(self.problems), "warnings": list(self.warnings), **self.more}


def succeeded(flood: Flood, outcome: Outcome, rows: Mapping[str, int], brokers: int, seconds: float) -> Report:
    """The report of a run that came to its end.

    Args:
        rows: those of each partition of the run in the topic, by key.
        brokers: reserved; 0 if none were needed.
        seconds: duration of the run.
    """
    failed = [judgement for judgement in judgements(flood, outcome) if not judgement.passed]
    problems = [line for judgement in failed if not judgement.warns for line in judgement.text.splitlines()]
    state = State.INCOMPLETE if problems else State.ADDED if outcome.added else State.THERE
    certificates = {key: certificate.to_dict() for key, certificate in outcome.certificates.items()}
    partitions = [
        {
            "partition": key,
            "rows": rows.get(key, 0),
            "added_rows": outcome.certificates[key].added_rows if key in outcome.certificates else 0,
        }
        for key in outcome.keys
    ]
    return Report(
        state=state,
        text=_sentence(flood, outcome, rows, bool(problems)),
        problems=problems,
        warnings=[line for judgement in failed if judgement.warns for line in judgement.text.splitlines()],
        more={
            "flood": flood.name, "topic": flood.topic, "added_rows": outcome.added, "rows": sum(rows.values()), "brokers": brokers,
            "seconds": round(seconds, 1), "partitions": partitions, "certificates": certificates,
        },
    )  # fmt: skip


def _sentence(flood: Flood, outcome: Outcome, rows: Mapping[str, int], is_incomplete: bool) -> str:
    there = sum(count > 0 for count in rows.values())
    empty = len(outcome.keys) - there
    added = [certificate for certificate in outcome.certificates.values() if certificate.added_rows]
    parts = [f"{plural(outcome.added, 'record')} added to topic {flood.topic}"]
    if added:
        parts.append(f"in {plural(len(added), 'partition')}" + (", read back and complete" if _is_proven(outcome) else ""))
    if before := there - len(added):
        parts.append(f"{plural(before, 'partition')} there before")
    if empty:
        parts.append(f"{plural(empty, 'partition')} without rows")
    text = f"{flood.name}: {', '.join(parts)}"
    return f"{text}; NOT COMPLETE" if is_incomplete else text


def _is_proven(outcome: Outcome) -> bool:
    return outcome.looked and not outcome.problems


def ended(flood: Flood | None, error: BaseException, text: str, added: Mapping[str, int] | None = None) -> Report:
    """The report of a run that an error ended. `added`: rows of the partitions that it added to, as far as that is known."""
    reason = getattr(error, "reason", None)
    return Report(
        state=state_after(error),
        text=" ".join(line if line.endswith(".") else f"{line}." for line in text.splitlines() if line.strip()),
        more={
            "flood": None if flood is None else flood.name, "topic": None if flood is None else flood.topic,
            "reason": None if reason is None else str(reason),
            "partitions": [{"partition": key, "rows": rows} for key, rows in (added or {}).items()],
        },
    )  # fmt: skip
