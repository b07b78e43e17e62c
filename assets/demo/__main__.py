"""``headgate demo``: Headgate in two minutes, on real data. Exit code 0: every check passed."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headgate.assets.demo.play import BACK, BROKERS_MAX, Demo, Facts, Options, choose_ports, environment
from headgate.assets.demo.processes import Processes
from headgate.broker.runtime.errors import HeadgateError

GOALS = {"during": 1.5, BACK: 2.0}
"""Greatest median and p99 of live acks in a span of time, as a multiple of those before the flood. Brokers, lanes, Spark, Dagster
and all clients share this machine's cores and disk here; where brokers have theirs, less is left of the difference."""


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="headgate demo", description=__doc__)
    parser.add_argument("--days", type=int, default=Options.days, help="days of history that come in")
    parser.add_argument("--grown", type=int, default=Options.grown, help="how often each flight of the history is there")
    parser.add_argument("--rate", type=float, default=Options.rate, help="live flights per second")
    parser.add_argument("--quiet", type=float, default=Options.quiet_s, help="seconds to measure without a flood, before and after")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C, also after a failure")
    given = parser.parse_args(arguments)
    if not (1 <= given.days <= 20 and 1 <= given.grown <= 1000 and 1 <= given.rate <= 5000 and 1 <= given.quiet <= 600):
        parser.error("days: 1 to 20, grown: 1 to 1000, rate: 1 to 5000, quiet: 1 to 600")
    options = Options(days=given.days, grown=given.grown, rate=given.rate, quiet_s=given.quiet, keep=given.keep)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False)
    try:
        return _run(console, options)
    except HeadgateError as error:
        console.print(f"[bold red]{escape(error.message)}[/bold red]")
        if not options.keep:
            console.print("headgate demo --keep leaves everything running, with its logs")
        return 1
    except KeyboardInterrupt:
        return 130


def _run(console: Console, options: Options) -> int:
    began = time.monotonic()
    console.print("[bold]Headgate[/bold]: history comes in ahead of live flights, brokers come and go", soft_wrap=True)

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s[/dim]  {text}", soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as name:
        directory, ports = Path(name), choose_ports()
        with Processes(directory, environment(directory, ports)) as processes:
            demo = Demo(directory, processes, options, ports, say)
            try:
                facts = demo.play()
            except HeadgateError as error:
                if not options.keep:
                    raise
                console.print(f"[bold red]{escape(error.message)}[/bold red]")
                console.print(
                    f"What still runs stays. Dagster: {demo.dagster.url}, logs: {directory} (Ctrl-C ends)", soft_wrap=True
                )
                _until_interrupt()
                return 1
            _show(console, facts, options, time.monotonic() - began)
            if options.keep:
                console.print(f"Everything runs on; launch other days of June 2013 at {demo.dagster.url} (Ctrl-C ends it)")
                _until_interrupt()
        return 1 if facts.problems else 0


def _until_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


def _show(console: Console, facts: Facts, options: Options, seconds: float) -> None:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    live = facts.readers.get("latest", {})
    saved = 1 - facts.broker_seconds / facts.always_on_seconds if facts.always_on_seconds else 0.0
    what = f"{facts.days[0]} to {facts.days[-1]}, each flight {options.grown} times"
    always = f"{BROKERS_MAX} always on: {facts.always_on_seconds:,.0f} ({saved:.0%} less)"
    rows: list[tuple[str, str]] = [
        ("history", f"{facts.history_rows:,} rows by reference (planned {facts.planned_rows:,}): {what}"),
        ("live", f"{facts.live_rows:,} flights at {options.rate:g}/s, all acked"),
        ("seconds", f"{facts.flood_s:.0f} for the flood, {facts.backfill_s:.0f} of them Spark; {seconds:.0f} for the whole demo"),
        ("brokers", " -> ".join(map(str, facts.brokers))),
        ("broker-seconds", f"{facts.broker_seconds:,.0f}; {always}"),
        ("live p50", _latencies(facts, 0)),
        ("live p99", _latencies(facts, 1)),
        ("read back", _read_back(facts)),
        ("certificate", f"{sum(proof['verified'] for proof in facts.certificates)} of {len(facts.days)} days complete: rows, bytes "
                        "and checksums of the source are those that a client reads"),
        ("checks", ", ".join(f"{name} {'passed' if passed else 'FAILED'}" for name, passed in facts.checks.items())),
        ("from earliest", _verdict(facts.readers.get("earliest", {}))),
        ("from latest", f"{_verdict(live)}; none came later than {live.get('delay_ms_max', 0) / 1000:.1f} s after it was sent"),
    ]  # fmt: skip
    for name, text in rows:
        table.add_row(name, text)
    console.print(table)
    for name, url in facts.urls.items() if options.keep else ():
        # Outside of the table: a folded URL cannot be followed.
        console.print(f" [dim]{name:14}[/dim]   {url}", soft_wrap=True)
    if not options.keep:
        console.print("headgate demo --keep leaves everything running: Dagster's page, the brokers' page, and the topic")
    for problem in facts.problems:
        console.print(f"[bold red]{escape(problem)}[/bold red]")
    if not facts.problems:
        console.print("[bold green]History, then live: each record once and in order. The brokers that came are gone.[/bold green]")


def _latencies(facts: Facts, which: int) -> str:
    """How long acks of live records took, by span of time, against the goals. `which`: 0 for the median, 1 for p99."""
    parts, quiet = [], facts.acks_ms.get("before")
    for name, span in facts.acks_ms.items():
        text, goal = f"{name} {span[which]:.1f} ms", GOALS.get(name)
        if goal is not None and quiet is not None:
            ratio = span[which] / max(quiet[which], 0.001)
            text += f" ({ratio:.1f}x, goal {goal:g}x {'met' if ratio <= goal else 'MISSED'})"
        parts.append(text)
    return ", ".join(parts)


def _read_back(facts: Facts) -> str:
    megabytes = {where: size / 1e6 for where, size in facts.back_bytes.items()}
    return (
        f"{facts.back_rounds} times the whole history, each record once and in order; "
        f"{megabytes.get('lanes', 0.0):,.0f} MB of it from lanes, {megabytes.get('brokers', 0.0):,.0f} MB from brokers"
    )


def _verdict(verdict: dict[str, Any]) -> str:
    if not verdict:
        return "no verdict"
    what = "each once and in order" if verdict["clean"] else "NOT each once and in order"
    return f"{verdict['history']:,} history, then {verdict['live']:,} live; {what}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
