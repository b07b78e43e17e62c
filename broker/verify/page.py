"""The page about a run: the verdict in plain words, the counts, each violation, times. As text, and as data for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from headgate.broker.verify.history import Event, Run
from headgate.broker.verify.judge import EXAMPLES_MAX, LATENCY_BOUNDS_US, PlaceCounts
from headgate.broker.verify.verdict import RULES, STRICT_ONLY, Findings, Kind, Violation

EVENTS_MAX = 20
"""Most client errors that the page lists; the directory has all."""
EXIT_RIGHT, EXIT_WRONG, EXIT_UNKNOWN = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The judge's findings of a whole run."""

    run: Run
    findings: Findings
    counts: Mapping[int, PlaceCounts]
    commits: int
    position_answers: int
    watermark_answers: int
    events: Sequence[Event]
    event_count: int
    strict: bool
    directory: str

    @property
    def unread(self) -> list[int]:
        """Places with a final read that did not reach the end. A record that is missing there cannot be called lost."""
        return [place for place, counts in self.counts.items() if not counts.is_complete]

    @property
    def acked(self) -> int:
        return sum(counts.acked for counts in self.counts.values())

    @property
    def exit_code(self) -> int:
        """Exit code. 1: an invariant is violated. 2: no violation, but a part could not be judged. 0: all was judged and is
        right."""
        if self.findings.wrong(strict=self.strict):
            return EXIT_WRONG
        return EXIT_UNKNOWN if self.unread or not self.acked else EXIT_RIGHT


def latency_ms(counts: Sequence[PlaceCounts], quantile: float) -> float:
    """A quantile of all acknowledgements' latencies: the upper bound of its class."""
    total = np.sum([count.latencies for count in counts], axis=0)
    longest = max(count.latency_us_max for count in counts)
    if not total.sum():
        return 0.0
    at = int(np.searchsorted(np.cumsum(total), quantile * total.sum()))
    return float(min(LATENCY_BOUNDS_US[at + 1], longest)) / 1000


def verdict(result: Result) -> str:
    wrong = result.findings.wrong(strict=result.strict)
    if wrong:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in wrong.most_common())
        return f"WRONG: the endpoint broke its promises: {kinds}."
    if not result.acked:
        return "NOT JUDGED: no record was acknowledged."
    if result.unread:
        unread = f"{len(result.unread)} of {len(result.counts)} partitions could not be read to their end"
        return f"NOT JUDGED: {unread}. Nothing wrong was seen."
    return f"RIGHT: all {result.acked:,} acknowledged records are there, once and in order. No reader was shown anything else."


def as_data(result: Result) -> dict[str, Any]:
    counts = list(result.counts.values())
    wrong = result.findings.wrong(strict=result.strict)
    return {
        "verdict": ("right", "wrong", "not judged")[result.exit_code],
        "summary": verdict(result),
        "strict": result.strict,
        "endpoint": result.run.endpoint,
        "run": f"{result.run.run:016x}",
        "history": result.directory,
        "sent": sum(count.sent for count in counts),
        "acked": result.acked,
        "refused": sum(count.refused for count in counts),
        "unknown": sum(count.unknown for count in counts),
        "unknown_written": sum(count.unknown_written for count in counts),
        "deleted": sum(count.deleted for count in counts),
        "in_log": sum(count.in_log for count in counts),
        "foreign": sum(count.foreign for count in counts),
        "read_live": sum(count.read for count in counts),
        "commits": result.commits,
        "position_answers": result.position_answers,
        "watermark_answers": result.watermark_answers,
        "client_errors": result.event_count,
        "ack_ms": {
            "p50": latency_ms(counts, 0.5),
            "p99": latency_ms(counts, 0.99),
            "max": max(count.latency_us_max for count in counts) / 1000,
        },
        "longest_without_ack_ms": max(count.unavailable_us for count in counts) / 1000,
        "partitions_not_read_to_the_end": [_place(result.run, place) for place in result.unread],
        "counts": {kind.value: result.findings.counts[kind] for kind in Kind},
        "errors": {kind.value: wrong[kind] for kind in Kind if wrong[kind]},
        "violations": [
            {**asdict(example), "topic": result.run.places[example.place][0], "partition": result.run.places[example.place][1]}
            for example in result.findings.examples
        ],
    }


def _place(run: Run, place: int) -> str:
    topic, partition = run.places[place]
    return f"{topic}/{partition}"


def as_text(result: Result) -> str:
    data = as_data(result)
    counts = list(result.counts.values())
    ack_ms = data["ack_ms"]
    wrote_us = result.run.writing_ended_us - result.run.writing_began_us
    longest = max(result.counts.items(), key=lambda pair: pair[1].unavailable_us)
    lines = [
        verdict(result),
        "",
        f"endpoint            {result.run.endpoint}",
        f"began               {_clock(result.run, 0)}, wrote for {wrote_us / 1e6:.1f} s",
        f"records             {data['sent']:,} sent, {data['acked']:,} acknowledged, {data['refused']:,} refused",
        f"                    {data['unknown']:,} without an answer, {data['unknown_written']:,} of them in the log",
        f"final read          {data['in_log']:,} records in {len(counts)} partitions, {data['foreign']:,} of other programs",
        f"                    {data['deleted']:,} acknowledged ones before the start of the log: deleted by retention",
        f"live reads          {data['read_live']:,} records",
        f"groups              {data['commits']:,} commits, {data['position_answers']:,} positions asked for",
        f"watermarks          {data['watermark_answers']:,} asked for",
        f"acknowledged after  p50 {ack_ms['p50']:.1f} ms, p99 {ack_ms['p99']:.1f} ms, max {ack_ms['max']:.1f} ms",
        f"longest silence     {longest[1].unavailable_us / 1e6:.2f} s without an acknowledgement, {_place(result.run, longest[0])}",
        f"                    from {_clock(result.run, longest[1].unavailable_from_us)}",
        f"client errors       {result.event_count:,}",
        f"history             {result.directory} (`python -m headgate.broker.verify judge DIR` judges it again)",
        "",
        "found       rule",
    ]
    for kind, rule in RULES.items():
        count = result.findings.counts[kind]
        allowed = " (allowed without --strict)" if kind in STRICT_ONLY and not result.strict else ""
        lines.append(f"{count:>8,}    {kind}{allowed}: {rule}")
    lines.append("            A record without an acknowledgement may be in the log or not: neither is an error.")
    for kind in Kind:
        examples = [example for example in result.findings.examples if example.kind is kind]
        if examples:
            lines += ["", f"{kind}: {result.findings.counts[kind]:,}"]
            lines += [f"  {_violation(result.run, example)}" for example in examples[:EXAMPLES_MAX]]
            if (more := result.findings.counts[kind] - len(examples[:EXAMPLES_MAX])) > 0:
                lines.append(f"  and {more:,} more")
    if result.events:
        lines += ["", f"errors of clients: {result.event_count:,}"]
        lines += [f"  {_clock(result.run, event.time_us)}  {event.client}: {event.text}" for event in result.events[:EVENTS_MAX]]
    return "\n".join(lines)


def _violation(run: Run, violation: Violation) -> str:
    where = [_place(run, violation.place)]
    where += [f"offset {violation.offset}"] if violation.offset >= 0 else []
    where += [f"producer {violation.producer} sequence {violation.sequence}"] if violation.producer >= 0 else []
    where += [_clock(run, violation.time_us)] if violation.time_us >= 0 else []
    return f"{', '.join(where)}: {violation.text}"


def _clock(run: Run, time_us: int) -> str:
    """A time of the run, as the wall clock's time at the start of the run plus the elapsed seconds."""
    at = datetime.fromtimestamp(run.began_unix_ms / 1000, UTC) + timedelta(microseconds=time_us)
    return f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"Z (+{time_us / 1e6:.3f} s)"
