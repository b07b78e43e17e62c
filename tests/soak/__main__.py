"""Run the soak: `python -m tests.soak [--hours H] [--store URL] [--output DIR]`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.curves import judge_all, lines, svg, write_csv
from tests.soak.life import Lived, Plan, Say, live

HOURS = 4.0


def main() -> int:
    """Returns 0 if no curve grows and the verifier found everything right, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="A long run that must not grow.")
    parser.add_argument("--hours", type=float, default=HOURS, help=f"duration of the rounds ({HOURS:g})")
    parser.add_argument("--rate", type=int, default=500, help="records of 4 KB per second that the verifier writes (500)")
    parser.add_argument("--store", help="URL of an empty store; default: a temporary directory")
    parser.add_argument("--output", type=Path, default=Path("soak"), help="directory of soak.csv and soak.svg (./soak)")
    parser.add_argument("--no-spark", action="store_true", help="without floods through Spark")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="headgate-soak-"))
    plan = Plan(duration_s=given.hours * 3600, directory=directory, store=given.store, rate=given.rate, spark=not given.no_spark)
    say(f"{given.hours:g} h with a retention of {plan.retention_s:.0f} s; in {directory}")
    problems = report(live(plan, say), given.output, plan, say)
    if problems:
        say(f"{'; '.join(problems)}: kept in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


def report(lived: Lived, output: Path, plan: Plan, say: Say) -> list[str]:
    """Write the CSV file and the picture, say what was measured, and return the problems."""
    output.mkdir(parents=True, exist_ok=True)
    write_csv(output / "soak.csv", lived.rows)
    judged = judge_all(lived.rows)
    page = lived.page
    title = f"{plan.duration_s / 60:.0f} min, {page['acked']:,} records, {lived.floods} floods, {lived.kills} kills"
    (output / "soak.svg").write_text(svg(lived.rows, judged, title))
    say(f"{page['summary']} {page['deleted']:,} of them were deleted by retention.")
    say(
        f"{lived.floods} floods by reference, {lived.spark_floods} by Spark, {lived.kills} kills, "
        f"{lived.folded} folded chunks, {lived.files} files of live records"
    )
    for line in lines(judged):
        say(line)
    problems = [f"{name} grows" for name, one in judged.items() if one.grows]
    if page["verdict"] != "right":
        problems.append(page["summary"])
    # Without them the run proves nothing about what they do.
    for name, count in (
        ("records deleted by retention", page["deleted"]),
        ("folded chunks", lived.folded),
        ("files of live records", lived.files),
    ):
        if not count:
            problems.append(f"there were no {name}")
    return problems


def say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
