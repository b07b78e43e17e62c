"""The floods in progress, as their Spark drivers report them: for the page and the metrics. No I/O; time is an argument.

A driver reports every few seconds how far it is. The leader keeps the newest report of each flood in memory only: a new leader
learns it from the next report. What is committed is in the gates; a report never decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headgate.broker.cluster.gates import check_gate_id
from headgate.broker.runtime.errors import InvalidError, Reason

FLOODS_MAX = 200
"""Remembered floods; above it, the flood that was silent for longest is forgotten."""
TOPIC_CHARS_MAX = 249
MESSAGE_CHARS_MAX = 300
ROWS_MAX = 1 << 62
RATE_HALF_LIFE_S = 6.0
PHASES = ("counting", "opening", "shuffling", "writing", "committing", "verifying", "done", "failed")
"""The phases in their order. A flood ends with one of the last two."""
ENDED = frozenset(("done", "failed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodReport:
    """One report. `rows_planned` is 0 while the rows are being counted. `rows_moved`: rows that Spark has sorted into
    partitions."""

    topic: str
    flood_id: str
    phase: str
    rows_planned: int = 0
    rows_moved: int = 0
    rows_written: int = 0
    rows_verified: int = 0
    message: str = ""

    @property
    def rows_done(self) -> int:
        """Rows of this phase."""
        match self.phase:
            case "shuffling":
                return self.rows_moved
            case "verifying":
                return self.rows_verified
            case _:
                return self.rows_written


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """A flood as far as its driver has reported it. Times are seconds of the monotonic clock.

    `rows_per_s`: of the present phase, 0 while unknown. `ended_s`: None while it runs.
    """

    report: FloodReport
    began_s: float
    reported_s: float
    rows_per_s: float = 0.0
    ended_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds until the end of the present phase at the present rate; None if that is unknown."""
        left = self.report.rows_planned - self.report.rows_done
        if self.report.phase not in ("shuffling", "writing", "verifying") or self.rows_per_s <= 0 or left < 0:
            return None
        return left / self.rows_per_s


def check_report(report: FloodReport) -> None:
    """Raise InvalidError(INVALID_REQUEST) if a report exceeds a limit."""
    check_gate_id(report.flood_id)
    if not 0 < len(report.topic) <= TOPIC_CHARS_MAX:
        raise _refused("a report names a topic of 1 to 249 characters", "topic", report.topic[:50])
    if report.phase not in PHASES:
        raise _refused(f"a flood has no such phase, but {', '.join(PHASES)}", "phase", report.phase[:50])
    if len(report.message) > MESSAGE_CHARS_MAX:
        raise _refused(f"a report's message has at most {MESSAGE_CHARS_MAX} characters", "characters", len(report.message))
    for name in ("rows_planned", "rows_moved", "rows_written", "rows_verified"):
        rows = getattr(report, name)
        if not 0 <= rows <= ROWS_MAX:
            raise _refused("a number of rows is out of range", name, rows)


class FloodBook:
    """The newest reports, by topic and flood, the one that was reported last at the end."""

    def __init__(self) -> None:
        self._floods: dict[tuple[str, str], Flood] = {}

    def take(self, report: FloodReport, now_s: float) -> bool:
        """Note a report. A report after the end of a flood begins a new run of it, except that a done flood may be verified later.

        Returns:
            True if the flood began or ended.
        """
        key = (report.topic, report.flood_id)
        before = self._floods.pop(key, None)
        ended_s = now_s if report.phase in ENDED else None
        is_event = before is None or (before.ended_s is None) == (ended_s is not None)
        if before is not None and before.report.phase == report.phase == "done":
            # The job and its verification report the end on their own, in any order.
            report = replace(report, rows_verified=max(report.rows_verified, before.report.rows_verified))
        if before is not None and before.report.phase == "done" and report.phase == "verifying":
            is_event = False
        elif before is None or before.ended_s is not None:
            before = Flood(report=report, began_s=now_s, reported_s=now_s)
        self._floods[key] = replace(
            before, report=report, reported_s=now_s, rows_per_s=_rate(before, report, now_s), ended_s=ended_s
        )
        if len(self._floods) > FLOODS_MAX:
            del self._floods[next(iter(self._floods))]
        return is_event

    def floods(self) -> list[Flood]:
        """All known floods, the one that was reported last first."""
        return list(reversed(self._floods.values()))


def _rate(before: Flood, report: FloodReport, now_s: float) -> float:
    """Rows per second of the present phase, as an average over the last seconds."""
    elapsed_s = now_s - before.reported_s
    if report.phase in ENDED:
        return 0.0
    if before.report.phase != report.phase:
        return 0.0
    if elapsed_s <= 0:
        return before.rows_per_s
    now = max(report.rows_done - before.report.rows_done, 0) / elapsed_s
    if before.rows_per_s <= 0:
        return now
    kept = float(2.0 ** (-elapsed_s / RATE_HALF_LIFE_S))
    return before.rows_per_s * kept + now * (1 - kept)


def _refused(message: str, name: str, value: object) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"{message}. {name}=`{value}`")
