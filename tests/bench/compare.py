"""Compare the benchmark of another checkout, such as the commit before a change, with this one: `python -m tests.bench.compare
OTHER [GROUP ...] [--rounds N] [--quick] [--only PATTERN]`.

Both benchmarks run alternately in one run, so that a disturbance of the machine meets both. OTHER is a checkout with its own
`.venv` (`make install` there). Each row gives the medians of the rounds and their ratio, turned such that more than 100 % means
that this checkout is better.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench.brokers import ROOT
from tests.bench.report import Goal, format_ratio

Key = tuple[str, str]
"""A row's group and case."""

ABSOLUTE = re.compile(r"(?P<value>[0-9][0-9,]*(?:\.[0-9]+)?) (?P<unit>µs|ms|s|kB|MB|B)\b(?!/)")
"""The text of a row that measures no ratio: a time or a size. Less is better."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one row. `side` says on which side of a goal it is good."""

    value: float
    unit: str
    side: Goal


@dataclass(frozen=True, slots=True)
class Compared:
    """Medians of both checkouts. `ratio` above 1: this checkout is better."""

    case: Key
    other: float
    here: float
    unit: str
    ratio: float


def figure(row: Mapping[str, Any]) -> Figure | None:
    """The number to compare in a row of `--json`: its ratio, or the time or size that its text begins with. None: it has none."""
    if row["ratio"] is not None:
        return Figure(row["ratio"], row["unit"], Goal(row["side"]))
    found = ABSOLUTE.match(row["measured"])
    return Figure(float(found["value"].replace(",", "")), found["unit"], Goal.AT_MOST) if found else None


def compare(other: Sequence[Mapping[Key, Figure]], here: Sequence[Mapping[Key, Figure]]) -> list[Compared]:
    """The rows that all rounds of both checkouts measured, in this checkout's order. A row with a zero is left out."""
    found = []
    for case, one in here[0].items():
        if all(case in rows for rows in (*other, *here)):
            before, now = (statistics.median(rows[case].value for rows in rounds) for rounds in (other, here))
            if before and now:
                found.append(Compared(case, before, now, one.unit, now / before if one.side is Goal.AT_LEAST else before / now))
    return found


def _measure(checkout: Path, arguments: Sequence[str]) -> dict[Key, Figure]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "rows.json"
        subprocess.run(
            [checkout / ".venv" / "bin" / "python", "-m", "tests.bench", *arguments, "--json", report],
            cwd=checkout,
            stdout=subprocess.DEVNULL,
            check=False,  # 1: a goal was missed
        )
        if not report.exists():
            raise SystemExit(f"the benchmark of this checkout gave no result. checkout=`{checkout}`")
        rows = json.loads(report.read_text())["rows"]
    return {(row["group"], row["case"]): measured for row in rows if (measured := figure(row)) is not None}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description="Two checkouts, alternately in one run.")
    parser.add_argument("other", type=Path, metavar="OTHER", help="the other checkout, with its .venv")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", metavar="PATTERN")
    options = parser.parse_args()
    arguments = [*options.groups, *(["--quick"] if options.quick else []), *(["--only", options.only] if options.only else [])]
    console = Console(width=160)
    other: list[dict[Key, Figure]] = []
    here: list[dict[Key, Figure]] = []
    for number in range(1, options.rounds + 1):
        for checkout, rows in ((options.other.resolve(), other), (ROOT, here)):
            console.print(f"round {number} of {options.rounds}: {checkout}", highlight=False)
            rows.append(_measure(checkout, arguments))
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("case", "other", "here", "here, of other"):
        table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    for one in compare(other, here):
        ratio = format_ratio(one.ratio, "%")
        table.add_row(": ".join(one.case), format_ratio(one.other, one.unit), format_ratio(one.here, one.unit), ratio)
    console.print(table)


if __name__ == "__main__":
    main()
