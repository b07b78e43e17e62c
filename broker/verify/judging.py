"""The judge of a whole recorded run: one place at a time, so that memory follows the largest place and not the run."""

from __future__ import annotations

from pathlib import Path

from headgate.broker.verify.history import NO_POSITION, PositionAnswer
from headgate.broker.verify.judge import EXAMPLES_MAX, judge_place
from headgate.broker.verify.page import EVENTS_MAX, Result
from headgate.broker.verify.recorder import Recorded
from headgate.broker.verify.registers import judge_positions, judge_watermarks
from headgate.broker.verify.verdict import Findings


def judge_directory(directory: Path, *, strict: bool) -> Result:
    """Judge a recorded history. Raises HistoryError when there is none or it is not complete."""
    recorded = Recorded(directory)
    run = recorded.run
    last: dict[tuple[str, int], PositionAnswer] = {}
    for answer in sorted(recorded.positions, key=lambda position: position.ended_us):
        last[answer.group, answer.place] = answer
    findings = Findings()
    counts = {}
    for place in range(len(run.places)):
        positions = {
            group: answer.position for (group, at), answer in last.items() if at == place and answer.position != NO_POSITION
        }
        found, counts[place] = judge_place(
            recorded.place(place), run.producers, run.sessions, positions, (run.writing_began_us, run.writing_ended_us)
        )
        findings.counts += found.counts
        findings.examples += found.examples
    for violations in (judge_positions(recorded.commits, recorded.positions), judge_watermarks(recorded.watermarks)):
        for kind in dict.fromkeys(violation.kind for violation in violations):
            of_kind = [violation for violation in violations if violation.kind is kind]
            findings.add(kind, len(of_kind), of_kind[:EXAMPLES_MAX])
    return Result(
        run=run,
        findings=findings,
        counts=counts,
        commits=len(recorded.commits),
        position_answers=len(recorded.positions),
        watermark_answers=len(recorded.watermarks),
        events=recorded.events[:EVENTS_MAX],
        event_count=recorded.event_count,
        strict=strict,
        directory=str(directory),
    )
