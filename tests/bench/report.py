"""Results and verdicts. Pure: takes measurements, gives rows and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich import box
from rich.table import Table


class Verdict(StrEnum):
    """The verdict of a row about its goal."""

    MET = "met"
    MISSED = "missed"
    WRONG = "benchmark is wrong"
    INFO = ""
    UNMEASURED = "not measured"


class Goal(StrEnum):
    """The good side of the goal."""

    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report.

    `ratio` is compared with `goal`, in the goal's `unit` ("%" means that both are fractions). `of_ceiling` says that the ratio's
    denominator is a ceiling, which no result can exceed. `low` and `high` are the extremes of the single measurements.
    `disturbed`: other processes used a part of the machine meanwhile, and may have caused the verdict.
    """

    group: str
    case: str
    measured: str = ""
    ceiling: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "%"
    goal: float | None = None
    side: Goal = Goal.AT_LEAST
    of_ceiling: bool = False
    disturbed: bool = False
    note: str = ""
    details: dict[str, Any] | None = None

    @property
    def verdict(self) -> Verdict:
        return judge(self.ratio, self.goal, self.side, of_ceiling=self.of_ceiling)


def judge(ratio: float | None, goal: float | None, side: Goal = Goal.AT_LEAST, *, of_ceiling: bool = False) -> Verdict:
    """The verdict of one number. A share of a ceiling above 1 can only come from a faulty measurement, whatever the goal."""
    if ratio is None:
        return Verdict.UNMEASURED if goal is not None else Verdict.INFO
    if of_ceiling and ratio > 1:
        return Verdict.WRONG
    if goal is None:
        return Verdict.INFO
    good = ratio >= goal if side is Goal.AT_LEAST else ratio <= goal
    return Verdict.MET if good else Verdict.MISSED


@dataclass(frozen=True, slots=True)
class Paired:
    """Ratios of adjacent pairs: each compares two runs that were next to each other in time, on the same noisy machine."""

    median: float
    low: float
    high: float


def paired(measured: Sequence[float], ceiling: Sequence[float]) -> Paired:
    """The median of the pairs' ratios. Both sequences in the order of the run and of one length; the ceiling not zero."""
    if len(measured) != len(ceiling) or not measured:
        raise ValueError(f"pairs are incomplete. measured=`{len(measured)}` ceiling=`{len(ceiling)}`")
    ratios = [m / c for m, c in zip(measured, ceiling, strict=True)]
    return Paired(statistics.median(ratios), min(ratios), max(ratios))


def format_ratio(value: float | None, unit: str) -> str:
    """Text for the reader: a fraction as a percentage, any other number with its unit."""
    if value is None:
        return ""
    if unit == "%":
        return f"{value * 100:.0f} %"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}".strip()


def format_rate(bytes_per_s: float) -> str:
    """A rate in decimal megabytes."""
    return f"{bytes_per_s / 1e6:,.0f} MB/s"


_STYLES = {
    Verdict.MET: "green",
    Verdict.MISSED: "red",
    Verdict.WRONG: "bold magenta",
    Verdict.UNMEASURED: "yellow",
    Verdict.INFO: "",
}


def table(group: str, rows: Sequence[Row]) -> Table:
    """One group's rows as a table."""
    out = Table(title=group, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    out.add_column("case", no_wrap=True)
    for name in ("measured", "ceiling"):
        out.add_column(name)
    for name in ("ratio", "range", "goal"):
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("verdict", no_wrap=True)
    out.add_column("note", style="dim")
    for row in rows:
        spread = ""
        if row.low is not None and row.high is not None and row.ratio is not None:
            low, high = (v * 100 if row.unit == "%" else v for v in (row.low, row.high))
            spread = f"{low:.0f}-{high:.0f}" if row.unit == "%" else f"{low:.2f}-{high:.2f}"
        goal = f"{row.side.value} {format_ratio(row.goal, row.unit)}" if row.goal is not None else ""
        verdict = row.verdict
        out.add_row(
            row.case,
            row.measured,
            row.ceiling,
            format_ratio(row.ratio, row.unit),
            spread,
            goal,
            (f"[{_STYLES[verdict]}]{verdict}[/]" if _STYLES[verdict] else verdict.value)
            + ("?" if row.disturbed and verdict else ""),
            row.note,
        )
    return out


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain data, verdict included."""
    return [{**asdict(row), "side": row.side.value, "verdict": row.verdict.value} for row in rows]
