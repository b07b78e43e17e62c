"""Words of the verdict: the kinds of violation, the rules that decide which of them are errors, and the counts of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    DUPLICATED_PLAIN = "duplicated, producer without idempotence"
    REORDERED = "reordered"
    REORDERED_PLAIN = "reordered, producer without idempotence"
    OVERTOOK = "written before an earlier one"
    VANISHED = "vanished"
    TWO_VALUES = "offset with two values"
    MOVED = "moved"
    CHANGED = "changed"
    NEVER_SENT = "never sent"
    REFUSED = "refused, but written"
    READ_BACKWARDS = "read backwards"
    STEPPED_OVER = "stepped over"
    GROUP_MISSED = "missed by a group"
    GAP = "gap"
    POSITION_BACK = "group position went back"
    POSITION_UNKNOWN = "group position never committed"
    WATERMARK_BACK = "high watermark went back"


RULES: dict[Kind, str] = {
    Kind.LOST: "A record that was acknowledged must be in the final read, unless retention has deleted its offset.",
    Kind.DUPLICATED: "A record of an idempotent producer stands in the log at most once.",
    Kind.DUPLICATED_PLAIN: "A producer without idempotence may repeat a record when it retries.",
    Kind.REORDERED: "Acknowledged records of one idempotent producer in one partition stand in the order in which they were sent.",
    Kind.REORDERED_PLAIN: "A producer without idempotence may send later records first when it retries at another broker.",
    Kind.OVERTOOK: "A record that was sent after another one had been acknowledged, by any producer, stands behind it.",
    Kind.VANISHED: "A record that any consumer was shown must be in the final read, unless retention has deleted its offset.",
    Kind.TWO_VALUES: "One offset has one record: in every acknowledgement and for every reader.",
    Kind.MOVED: "A record stands at the offset that its acknowledgement named.",
    Kind.CHANGED: "Key, value and partition of a record are those that were sent.",
    Kind.NEVER_SENT: "A record in the log was sent by a producer of this run.",
    Kind.REFUSED: "A record that the broker refused for good is not in the log.",
    Kind.READ_BACKWARDS: "Within one assignment the offsets that a consumer is shown grow.",
    Kind.STEPPED_OVER: "Within one assignment a consumer is shown every record between its first and its last one.",
    Kind.GROUP_MISSED: "Every record before a group's committed position was shown to a member of the group.",
    Kind.GAP: "Offsets may be missing: transactions and compaction leave gaps.",
    Kind.POSITION_BACK: "OffsetFetch answers the last committed position, or one whose commit was still under way.",
    Kind.POSITION_UNKNOWN: "OffsetFetch answers a position that a member has committed.",
    Kind.WATERMARK_BACK: "A high watermark does not go back; a leader that is cut off may answer an old one for a while.",
}
"""A record without an acknowledgement may be in the log or not; neither is an error."""

STRICT_ONLY = frozenset({Kind.DUPLICATED_PLAIN, Kind.REORDERED_PLAIN, Kind.GAP, Kind.WATERMARK_BACK})
"""Always counted, but errors only with `--strict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One violation. -1 stands for a field that does not apply."""

    kind: Kind
    place: int
    text: str
    offset: int = -1
    producer: int = -1
    sequence: int = -1
    time_us: int = -1


@dataclass(slots=True)
class Findings:
    """All violations of a run: how many of each kind, and the first ones of each kind and place in full."""

    counts: Counter[Kind] = field(default_factory=Counter)
    examples: list[Violation] = field(default_factory=list)

    def add(self, kind: Kind, count: int, examples: list[Violation]) -> None:
        if count:
            self.counts[kind] += count
            self.examples.extend(examples)

    def wrong(self, *, strict: bool) -> Counter[Kind]:
        """The counts of the kinds that are errors."""
        return Counter({kind: count for kind, count in self.counts.items() if strict or kind not in STRICT_ONLY})
