"""Run the benchmark: `python -m tests.bench [GROUP ...] [--quick] [--only PATTERN] [--json FILE] [--list]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.bench.brokers import ROOT
from tests.bench.cases import ALL
from tests.bench.harness import Bench, Case
from tests.bench.native import NO_COMPILER, Cores, Native
from tests.bench.report import Row, Verdict, as_json, table

TITLES = {
    "produce": "Produce, of the ceiling (a bare C peer, pinned, adjacent pairs)",
    "fetch": "Fetch, of the ceiling",
    "cold": "Cold reads of live records by librdkafka, of hot reads (wal.fsync=always; S3 is moto on this machine)",
    "durable": "Durable produce (wal.fsync=always), of the raw O_DSYNC stream of the same disk",
    "memory": "Memory",
    "start": "Start",
    "history": "History by reference: encoding of memcpy, decoding, and reading beside Apache Kafka",
    "lanes": "Live producers while history is replayed, at the lead and through a lane (p50, of quiet), and what lanes serve",
    "page": "Messages at the page of a topic with 10 M of them, and its live producer beside ten people who look at them",
    "folds": "Folds of live records to Parquet (local store, wal.fsync=never)",
    "tables": "Topics as tables: plans of queries and loads against the files that the topic has already",
    "flood": "Floods from Spark by reference (local store, wal.fsync=never)",
    "adopted": "Floods that adopt the source's files, against floods that write their own",
    "sink": "Floods against Spark's Kafka sink into Apache Kafka, in turn; both servers with their default durability",
    "security": "TLS, logins, permissions and attacks (store memory:; CPU is the broker's)",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="What a broker reaches of what this machine could.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"which to run, of: {', '.join(TITLES)} (all)")
    parser.add_argument("--quick", action="store_true", help="short samples: all of it in under 3 minutes")
    parser.add_argument("--only", metavar="PATTERN", help="only cases whose group/name contains or matches it")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the rows here")
    parser.add_argument("--list", action="store_true", help="name the cases and exit")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "bench", help="where stores lie: the disk measured")
    return parser


def chosen(groups: Sequence[str], only: str | None) -> list[Case]:
    """The cases that the command line selects, in order."""
    return [case for case in ALL if (not groups or case.group in groups) and (only is None or case.matches(only))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Returns 1 if a goal was missed or a measurement was wrong, 2 if there is nothing to run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console(width=None if os.isatty(1) else 220)
    unknown = [group for group in options.groups if group not in TITLES]
    if unknown:
        parser.error(f"unknown group. it is one of {', '.join(TITLES)}. group=`{unknown[0]}`")
    cases = chosen(options.groups, options.only)
    if not cases:
        parser.error(f"nothing matches. only=`{options.only}`")
    if options.list:
        for case in cases:
            console.print(f"{case.group}/{case.name}", markup=False, highlight=False)
        return 0
    # The default would leave behind brokers, Spark and Kafka, and their directories.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    options.directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        bench = _bench(Path(directory), quick=options.quick)
        _say_where(console, bench)
        for group in TITLES:
            rows += _run_group(console, bench, group, [case for case in cases if case.group == group])
    console.print(f"{_summary(rows)} in {time.monotonic() - started:.0f} s", highlight=False)
    if options.json:
        report = {"quick": options.quick, "machine": platform.platform(), "rows": as_json(rows)}
        options.json.write_text(json.dumps(report, indent=1))
    return 1 if any(row.verdict in (Verdict.MISSED, Verdict.WRONG) for row in rows) else 0


def _bench(directory: Path, *, quick: bool) -> Bench:
    cores = Cores.of_machine()
    return Bench(native=Native.build(directory, cores), directory=directory, cores=cores, quick=quick)


def _say_where(console: Console, bench: Bench) -> None:
    server, client = bench.cores.server, bench.cores.client
    pinned = "not pinned" if server is None else f"server on core {server}, client on core {client}"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    compiler = "" if bench.native else f"; {NO_COMPILER}"
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load}; {pinned}{compiler}", highlight=False)


def _run_group(console: Console, bench: Bench, group: str, cases: list[Case]) -> list[Row]:
    rows: list[Row] = []
    for number, case in enumerate(cases, 1):
        with console.status(f"{group} {number}/{len(cases)}: {case.name}"):
            rows += case.rows(bench)
    if rows:
        console.print()
        console.print(table(TITLES[group], rows))
    return rows


def _summary(rows: Sequence[Row]) -> str:
    counts = {verdict: sum(row.verdict is verdict for row in rows) for verdict in Verdict if verdict is not Verdict.INFO}
    text = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count) or "nothing to judge"
    disturbed = sum(row.disturbed for row in rows)
    return text + (f" ({disturbed} marked ? while other processes took a part of the machine: run them again)" if disturbed else "")


if __name__ == "__main__":
    raise SystemExit(main())
