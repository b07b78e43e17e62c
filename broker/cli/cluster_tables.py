"""The tables of brokers, segments and decisions that `headgate status` and `headgate segment` show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.broker.cli import output
from headgate.broker.client.control import ClusterView, Control, Decision, DesiredBrokers, Member, Segment

SEGMENT_COLUMNS = ("segment", "topic", "partitions", "lead", "epoch", "in/s", "out/s", "requests/s")
SEGMENT_NUMERIC = ("segment", "epoch", "in/s", "out/s", "requests/s")
DECISION_COLUMNS = ("ago", "decision", "topic", "result", "why")

TOPICS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    view: ClusterView
    desired: DesiredBrokers


async def look(control: Control) -> Look:
    """Ask the leader. Raises HeadgateError."""
    return Look(await control.describe(), await control.desired_brokers())


def headline(found: Look) -> str:
    """The cluster in one line."""
    view, desired = found.view, found.desired
    total_in = sum(segment.bytes_in_per_s for segment in view.segments)
    total_out = sum(segment.bytes_out_per_s for segment in view.segments)
    return (
        f"{output.plural(len(view.members), 'broker')} of {desired.brokers} desired, leader {view.leader_broker_id}, "
        f"{output.plural(len(view.segments), 'segment')}, {output.size(total_in)}/s in, {output.size(total_out)}/s out"
    )


def segment_rows(segments: Sequence[Segment]) -> list[tuple[object, ...]]:
    """A row per segment."""
    return [
        (
            segment.id,
            segment.topic,
            segment.span,
            f"broker {segment.broker_id}",
            segment.leader_epoch,
            output.size(segment.bytes_in_per_s),
            output.size(segment.bytes_out_per_s),
            f"{segment.requests_per_s:,.0f}",
        )
        for segment in segments
    ]


def decision_rows(decisions: Sequence[Decision]) -> list[tuple[object, ...]]:
    """A row per decision."""
    return [
        (output.duration(decision.age_ms), decision.kind, _topics(decision), _result(decision), decision.why)
        for decision in decisions
    ]


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


def lane_lines(view: ClusterView) -> list[str]:
    """A line for each lane."""
    return [
        f"lane {lane.broker_id} serves history at {lane.host}:{lane.kafka_port}: cpu {lane.cpu_share:.0%}, "
        f"{output.size(lane.memory_bytes)}, {output.plural(lane.connections, 'connection')}"
        + (f"; {lane.trouble}" if lane.trouble else "")
        for lane in view.lanes
    ]


def starvation(view: ClusterView) -> str:
    """The warning about machines that give brokers too little processor time; empty without such a machine."""
    starved = [member for member in view.members if member.starved]
    if not starved:
        return ""
    late = ", ".join(f"broker {broker.broker_id} runs up to {broker.late_ms / 1000:.1f} s late" for broker in starved)
    longest_ms = max(member.silence_ms_max for member in view.members)
    patience = f"; a silent broker is replaced after up to {longest_ms / 1000:.1f} s" if longest_ms else ""
    return f"machine starved: {late}{patience}"


def _topics(decision: Decision) -> str:
    more = len(decision.topics) - TOPICS_SHOWN
    return ", ".join(decision.topics[:TOPICS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _result(decision: Decision) -> str:
    if decision.error:
        return f"failed: {decision.error}"
    if decision.under_way:
        return "under way"
    return f"done, writers waited {decision.pause_ms} ms" if decision.pause_ms else "done"
