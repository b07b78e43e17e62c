"""``headgate top``: the cluster at work; and the tables that ``headgate status`` shares with it.

On a terminal each update draws the screen again. Otherwise each update is printed as tab-separated lines, with an empty line
between two updates.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headgate.broker.cli import output
from headgate.broker.client.control import ClusterView, Control, Decision, DesiredBrokers, Member, Segment
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError

_T = TypeVar("_T")

SEGMENT_COLUMNS = ("segment", "topic", "partitions", "lead", "epoch", "in/s", "out/s", "requests/s")
SEGMENT_NUMERIC = ("segment", "epoch", "in/s", "out/s", "requests/s")
MEMBER_COLUMNS = ("broker", "kafka", "cpu", "memory", "connections", "segments", "in/s", "out/s", "state")
MEMBER_NUMERIC = ("broker", "cpu", "memory", "connections", "segments", "in/s", "out/s")
DECISION_COLUMNS = ("ago", "decision", "topic", "result", "why")

SEGMENTS_SHOWN = 20
DECISIONS_SHOWN = 5
TOPICS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    view: ClusterView
    desired: DesiredBrokers | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the arguments of `output.print_table`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Sequence[str] = ()


async def look(control: Control) -> Look | None:
    """Ask the leader. None: these brokers have no segments yet. Raises HeadgateError."""
    view = await _supported(control.describe())
    return None if view is None else Look(view, await _supported(control.desired_brokers()))


async def _supported(asking: Awaitable[_T]) -> _T | None:
    """The answer; None if the brokers do not know the call."""
    try:
        return await asking
    except InvalidError as error:
        if error.reason is Reason.UNSUPPORTED:
            return None
        raise


async def watch(cluster: str, interval_ms: int, count: int | None) -> None:
    """Update until Ctrl-C, or `count` times."""
    live = _Live() if sys.stdout.isatty() else None
    number = 0
    try:
        async with Control(cluster, timeout_ms=10_000) as control:
            while True:
                number += 1
                try:
                    found = await look(control)
                except RetryError as error:
                    if count is not None and number >= count:
                        raise
                    # A change of the leader: the screen reports it, and the updates continue.
                    _say(live, error)
                else:
                    if found is None:
                        raise InvalidError(Reason.UNSUPPORTED, f"brokers are too old to tell about segments. cluster=`{cluster}`")
                    if live is not None:
                        live.show("\n".join(filter(None, (headline(found), starvation(found.view)))), tables(found))
                    else:
                        _print(found, first=number == 1)
                if count is not None and number >= count:
                    return
                await asyncio.sleep(interval_ms / 1000)
    finally:
        if live is not None:
            live.close()


def headline(found: Look) -> str:
    """The cluster in one line."""
    view, desired = found.view, found.desired
    total_in = sum(one.bytes_in_per_s for one in view.segments)
    total_out = sum(one.bytes_out_per_s for one in view.segments)
    wanted = "" if desired is None else f" of {desired.brokers} desired"
    return (
        f"{output.plural(len(view.members), 'broker')}{wanted}, leader {view.leader_broker_id}, "
        f"{output.plural(len(view.segments), 'segment')}, {output.size(total_in)}/s in, {output.size(total_out)}/s out"
    )


def tables(found: Look) -> list[Table]:
    """Brokers, the busiest segments, the last decisions."""
    view = found.view
    busiest = sorted(view.segments, key=lambda one: -(one.bytes_in_per_s + one.bytes_out_per_s))[:SEGMENTS_SHOWN]
    made = [
        Table(MEMBER_COLUMNS, member_rows(view), MEMBER_NUMERIC),
        Table(SEGMENT_COLUMNS, segment_rows(busiest), SEGMENT_NUMERIC),
    ]
    if view.decisions:
        made.append(Table(DECISION_COLUMNS, decision_rows(view.decisions[:DECISIONS_SHOWN])))
    return made


def member_rows(view: ClusterView) -> list[tuple[object, ...]]:
    """A row per broker."""
    rows: list[tuple[object, ...]] = []
    for one in view.members:
        led = [segment for segment in view.segments if segment.broker_id == one.broker_id]
        rows.append(
            (
                one.broker_id,
                f"{one.host}:{one.kafka_port}",
                f"{one.cpu_share:.0%}",
                output.size(one.memory_bytes),
                one.connections,
                len(led),
                output.size(sum(segment.bytes_in_per_s for segment in led)),
                output.size(sum(segment.bytes_out_per_s for segment in led)),
                state(one, len(led), view.leader_broker_id),
            )
        )
    return rows


def segment_rows(segments: Sequence[Segment]) -> list[tuple[object, ...]]:
    """A row per segment."""
    return [
        (
            one.id,
            one.topic,
            one.span,
            f"broker {one.broker_id}",
            one.leader_epoch,
            output.size(one.bytes_in_per_s),
            output.size(one.bytes_out_per_s),
            f"{one.requests_per_s:,.0f}",
        )
        for one in segments
    ]


def decision_rows(decisions: Sequence[Decision]) -> list[tuple[object, ...]]:
    """A row per decision."""
    return [(output.duration(one.age_ms), one.kind, _topics(one), _result(one), one.why) for one in decisions]


def state(member: Member, segments: int, leader_broker_id: int) -> str:
    """The broker's activity, in a word or two. `segments`: the number that it leads."""
    if member.trouble:
        return member.trouble
    word = "serves" if not member.draining else "drains" if segments else "drained"
    if member.broker_id == leader_broker_id:
        word += ", leader"
    if member.starved:
        word += ", starved"
    return word if member.follower_broker_id is None else f"{word}, copied to broker {member.follower_broker_id}"


def starvation(view: ClusterView) -> str:
    """The warning about machines that give brokers too little processor time; empty without such a machine."""
    starved = [one for one in view.members if one.starved]
    if not starved:
        return ""
    late = ", ".join(f"broker {one.broker_id} runs up to {one.late_ms / 1000:.1f} s late" for one in starved)
    longest_ms = max(one.silence_ms_max for one in view.members)
    patience = f"; a silent broker is replaced after up to {longest_ms / 1000:.1f} s" if longest_ms else ""
    return f"machine starved: {late}{patience}"


def _topics(one: Decision) -> str:
    more = len(one.topics) - TOPICS_SHOWN
    return ", ".join(one.topics[:TOPICS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _result(one: Decision) -> str:
    if one.error:
        return f"failed: {one.error}"
    if one.under_way:
        return "under way"
    return f"done, writers waited {one.pause_ms} ms" if one.pause_ms else "done"


def _print(found: Look, *, first: bool) -> None:
    if not first:
        output.print_line()
    output.print_line(headline(found))
    if starved := starvation(found.view):
        output.print_line(starved)
    for table in tables(found):
        output.print_table(table.columns, table.rows, numeric=table.numeric)
    sys.stdout.flush()


def _say(live: _Live | None, error: HeadgateError) -> None:
    if live is not None:
        live.show(f"no answer: {error.message}", [])
    else:
        output.fail(error.message, "headgate top")


class _Live:
    """A screen that is drawn in place."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False, screen=True)
        self._live.start()

    def show(self, line: str, shown: Sequence[Table]) -> None:
        from rich.console import Group
        from rich.text import Text

        drawn = [output.drawn_table(table.columns, table.rows, numeric=table.numeric) for table in shown]
        self._live.update(Group(Text(line, style="bold"), Text(""), *drawn), refresh=True)

    def close(self) -> None:
        self._live.stop()
