"""What clients were told, and the checkers that judge it. Named after the invariants of the design; they know no brokers.

1. an acked record is never lost; 2. one offset has one record for ever, and offsets never go back; 3. per partition, order is send
order; 4. an idempotent producer's retry never duplicates; 5. a broker that was fenced never acks again; 6. a gate is filled wholly
or not at all; 7. who reads from the beginning has history, then live. (9, capacity ends: `scenario.py`, `fleet.py`.) And
whatever a broker's clock says, no record is removed before its retention time has passed, and no producer is refused for its time.
Answers about the end of a log, and about a group's position, leave out nothing that was acked before they were asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Partition = tuple[bytes, int]
"""(topic id, number)"""


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, checker: str, message: str) -> None:
        super().__init__(f"{checker}: {message}")
        self.checker = checker


@dataclass(slots=True)
class Ledger:
    """Filled while the simulation runs."""

    sent: dict[Partition, dict[int, list[bytes]]] = field(default_factory=dict)
    """By partition and producer: values in the order in which they were sent first."""
    acked: dict[Partition, dict[int, bytes]] = field(default_factory=dict)
    """What producers were told: the value at an offset."""
    seen: dict[Partition, dict[int, bytes]] = field(default_factory=dict)
    """What anybody was told stands at an offset."""
    starts: dict[Partition, int] = field(default_factory=dict)
    """Records below may be gone: somebody asked for it."""
    history: dict[Partition, dict[int, tuple[str, bytes]]] = field(default_factory=dict)
    """What gates are filled with, if they are: (gate, value) at an offset."""
    filled: set[tuple[bytes, str]] = field(default_factory=set)
    """Gates (topic id, gate) that are filled, as the journal says."""
    told_filled: set[tuple[bytes, str]] = field(default_factory=set)
    """Gates of which somebody was told so."""
    windows: bool = False
    """Somebody asked for gates: offsets may have gaps, for windows that were held and came to nothing."""
    skipped: list[tuple[Partition, int, int]] = field(default_factory=list)
    """What readers from the beginning went past: (partition, first, end)."""
    deleted: set[bytes] = field(default_factory=set)
    """Topics that somebody asked to delete."""
    sealed_ends: dict[str, dict[Partition, int]] = field(default_factory=dict)
    """By incarnation that is over: behind the last record that it may ever have acked."""

    ends: dict[Partition, int] = field(default_factory=dict)
    """Behind the last record that a producer was told of."""
    positions: dict[str, int] = field(default_factory=dict)
    """By group: the last position whose commit was acked; no commit before it can come late."""

    def send(self, partition: Partition, producer: int, values: Iterable[bytes]) -> None:
        self.sent.setdefault(partition, {}).setdefault(producer, []).extend(values)

    def ack(self, partition: Partition, base_offset: int, values: Iterable[bytes]) -> None:
        """A producer was told."""
        acked = self.acked.setdefault(partition, {})
        for offset, value in enumerate(values, base_offset):
            self.see(partition, offset, value, "an ack")
            acked[offset] = value
            self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)

    def answered(self, about: str, known: int, answer: int) -> None:
        """Somebody was told of an end, or of a position. `known`: what had been acked when it was asked."""
        if answer < known:
            raise Violation("answers are current", f"{about} was acked before the question. acked=`{known}` answer=`{answer}`")

    def see(self, partition: Partition, offset: int, value: bytes, by: str) -> None:
        """Somebody was told what stands at an offset."""
        gate_id, row = self.history.get(partition, {}).get(offset, ("", b""))
        if gate_id:
            if (partition[0], gate_id) not in self.filled:
                raise Violation("a gate is filled whole", f"{by} has a row of a gate that is not filled. gate=`{gate_id}`")
            if row != value:
                raise Violation("a gate is filled whole", f"{by} has another row. {_shown(partition)} offset=`{offset}`")
        before = self.seen.setdefault(partition, {}).setdefault(offset, value)
        if before != value:
            raise Violation(
                "one record per offset",
                f"{by} has another record than was told before. {_shown(partition)} offset=`{offset}` "
                f"before=`{before[:24]!r}` now=`{value[:24]!r}`",
            )

    def broker_acks(self, incarnation_id: str, partition: Partition, base_offset: int, count: int) -> None:
        """A broker acks, in this moment."""
        ends = self.sealed_ends.get(incarnation_id)
        if ends is not None and base_offset + count > ends.get(partition, 0):
            raise Violation(
                "a fenced broker never acks",
                f"its log was sealed before these. incarnation=`{incarnation_id}` {_shown(partition)} offset=`{base_offset}` "
                f"count=`{count}` sealed_end=`{ends.get(partition)}`",
            )

    def seal(self, incarnation_id: str, ends: dict[Partition, int]) -> None:
        """An incarnation is over, in this moment."""
        self.sealed_ends.setdefault(incarnation_id, {}).update(ends)

    def remove_by_age(self, topic_id: bytes, starts: Mapping[int, int]) -> None:
        """Retention removes records because of their age, in this moment: a run is shorter than any retention time."""
        for number, start in starts.items():
            if any(offset < start for offset in self.seen.get((topic_id, number), ())):
                raise Violation("records live as long as retention says", f"{_shown((topic_id, number))} removed_below=`{start}`")

    def judge(self, final: dict[Partition, tuple[int, dict[int, bytes]]]) -> None:
        """Compare everything with what a fresh broker has at the end: by partition (log start, records). Raises Violation."""
        for partition, (start, records) in final.items():
            if start > self.starts.get(partition, 0):
                raise Violation(
                    "acked records are there", f"records are gone that nobody deleted. {_shown(partition)} start=`{start}`"
                )
            self._judge_offsets(partition, start, records)
            self._judge_acked(partition, start, records)
            self._judge_order(partition, records)
            self._judge_history(partition, start, records)
        for partition, first, end in self.skipped:
            start, records = final.get(partition, (0, {}))
            missed = [offset for offset in range(max(first, start), end) if offset in records]
            if missed:
                raise Violation(
                    "history, then live",
                    f"a reader from the beginning went past records. {_shown(partition)} offsets=`{missed[:10]}`",
                )
        if not self.told_filled <= self.filled:
            raise Violation(
                "a gate is filled whole", f"somebody was told so, and it is not. gates=`{self.told_filled - self.filled}`"
            )
        for partition in self.acked:
            if partition not in final and partition[0] not in self.deleted:
                raise Violation("acked records are there", f"the whole partition is gone. {_shown(partition)}")

    def _judge_offsets(self, partition: Partition, start: int, records: dict[int, bytes]) -> None:
        offsets = list(records)
        if offsets != sorted(offsets):
            raise Violation("one record per offset", f"offsets go back. {_shown(partition)}")
        for offset, value in records.items():
            self.see(partition, offset, value, "the final log")

    def _judge_acked(self, partition: Partition, start: int, records: dict[int, bytes]) -> None:
        lost = [offset for offset in self.acked.get(partition, {}) if offset >= start and offset not in records]
        if lost:
            raise Violation(
                "acked records are there", f"lost. {_shown(partition)} offsets=`{sorted(lost)[:10]}` count=`{len(lost)}`"
            )
        lost = [offset for offset in self.seen.get(partition, {}) if offset >= start and offset not in records]
        if lost:
            raise Violation(
                "acked records are there", f"a reader saw them, now they are lost. {_shown(partition)} offsets=`{lost[:10]}`"
            )

    def _judge_history(self, partition: Partition, start: int, records: dict[int, bytes]) -> None:
        for offset, (gate_id, value) in self.history.get(partition, {}).items():
            if offset < start:
                continue
            if (records.get(offset) == value) is not ((partition[0], gate_id) in self.filled):
                raise Violation(
                    "a gate is filled whole",
                    f"a row is there, or not, against what the gate says. {_shown(partition)} offset=`{offset}` gate=`{gate_id}` "
                    f"there=`{offset in records}`",
                )

    def _judge_order(self, partition: Partition, records: dict[int, bytes]) -> None:
        place = {
            value: (producer, at) for producer, values in self.sent.get(partition, {}).items() for at, value in enumerate(values)
        }
        last: dict[int, int] = {}
        first_seen: dict[bytes, int] = {}
        history = self.history.get(partition, {})
        for offset, value in records.items():
            if offset in history:
                continue
            if value not in place:
                raise Violation(
                    "one record per offset", f"nobody sent it. {_shown(partition)} offset=`{offset}` value=`{value[:24]!r}`"
                )
            if value in first_seen:
                raise Violation(
                    "retries never duplicate",
                    f"a record is there twice. {_shown(partition)} value=`{value[:24]!r}` offsets=`{first_seen[value]}, {offset}`",
                )
            first_seen[value] = offset
            producer, at = place[value]
            if at < last.get(producer, -1):
                raise Violation("order is send order", f"{_shown(partition)} offset=`{offset}` value=`{value[:24]!r}`")
            last[producer] = at


def _shown(partition: Partition) -> str:
    return f"topic=`{partition[0].hex()[:6]}` partition=`{partition[1]}`"
