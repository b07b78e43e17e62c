"""Records the answers that clients got, and checks them. The checkers carry the names of the design's invariants.

The checkers know nothing of brokers. They check these invariants:

1. An acked record is never lost.
2. One offset has one record for ever, and offsets never go back.
3. Per partition, records stand in the order of sending.
4. A retry of an idempotent producer never duplicates a record.
5. A fenced broker never acks again.
6. A gate is filled completely or not at all.
7. A reader from the beginning gets history first, then live records.

`scenario.py` and `fleet.py` check invariant 9 (capacity ends), `clients.py` that leads send no reader in circles between them and a
lane. Two more rules hold whatever a broker's clock says: retention removes no record before its retention time has passed, and no
producer is refused because of its timestamps. An answer about the end of a log, or about a group's position, covers everything that
was acked before the question.
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
    """All answers of one run; filled while the simulation runs."""

    sent: dict[Partition, dict[int, list[bytes]]] = field(default_factory=dict)
    """By partition and producer: values in the order of their first send."""
    acked: dict[Partition, dict[int, bytes]] = field(default_factory=dict)
    """By partition: the value at each offset that a producer's ack named."""
    seen: dict[Partition, dict[int, bytes]] = field(default_factory=dict)
    """By partition: the value at each offset, from every answer of any kind."""
    starts: dict[Partition, int] = field(default_factory=dict)
    """By partition: records below this offset may be gone, because a client asked to delete them."""
    history: dict[Partition, dict[int, tuple[str, bytes]]] = field(default_factory=dict)
    """By partition: (gate, value) at each offset of a gate's window. It holds only if the gate is filled."""
    filled: set[tuple[bytes, str]] = field(default_factory=set)
    """Gates (topic id, gate) that are filled, from the journal."""
    told_filled: set[tuple[bytes, str]] = field(default_factory=set)
    """Gates that an answer reported as filled."""
    windows: bool = False
    """True if a client opened a gate: offsets may have gaps, because a window that was reserved may stay unfilled."""
    thinned: set[bytes] = field(default_factory=set)
    """Topics whose aborted records leave with a fold: offsets have gaps, and records that a reader saw may be gone."""
    skipped: list[tuple[Partition, int, int]] = field(default_factory=list)
    """Offset ranges that readers from the beginning skipped: (partition, first, end)."""
    deleted: set[bytes] = field(default_factory=set)
    """Topics that a client asked to delete."""
    sealed_ends: dict[str, dict[Partition, int]] = field(default_factory=dict)
    """By ended incarnation: per partition, the end offset of all records that it can have acked."""

    ends: dict[Partition, int] = field(default_factory=dict)
    """By partition: the end offset of the records that were acked to a producer."""
    positions: dict[str, int] = field(default_factory=dict)
    """By group: the last position whose commit was acked; no earlier commit can take effect after it."""

    def send(self, partition: Partition, producer: int, values: Iterable[bytes]) -> None:
        self.sent.setdefault(partition, {}).setdefault(producer, []).extend(values)

    def ack(self, partition: Partition, base_offset: int, values: Iterable[bytes]) -> None:
        """Note an ack to a producer, and check it."""
        acked = self.acked.setdefault(partition, {})
        for offset, value in enumerate(values, base_offset):
            self.see(partition, offset, value, "an ack")
            acked[offset] = value
            self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)

    def answered(self, about: str, known: int, answer: int) -> None:
        """Check an answer about an end or a position. `known`: the end or position that had been acked when the client asked."""
        if answer < known:
            raise Violation("answers are current", f"{about} was acked before the question. acked=`{known}` answer=`{answer}`")

    def see(self, partition: Partition, offset: int, value: bytes, by: str) -> None:
        """Note and check an answer that shows the value at an offset."""
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
        """Check that a broker may ack, at this moment."""
        ends = self.sealed_ends.get(incarnation_id)
        if ends is not None and base_offset + count > ends.get(partition, 0):
            raise Violation(
                "a fenced broker never acks",
                f"its log was sealed before these. incarnation=`{incarnation_id}` {_shown(partition)} offset=`{base_offset}` "
                f"count=`{count}` sealed_end=`{ends.get(partition)}`",
            )

    def seal(self, incarnation_id: str, ends: dict[Partition, int]) -> None:
        """Note that an incarnation is over, at this moment."""
        self.sealed_ends.setdefault(incarnation_id, {}).update(ends)

    def remove_by_age(self, topic_id: bytes, starts: Mapping[int, int]) -> None:
        """Fail because retention removes records by age, at this moment: a run is shorter than any retention time."""
        for number, start in starts.items():
            if any(offset < start for offset in self.seen.get((topic_id, number), ())):
                raise Violation("records live as long as retention says", f"{_shown((topic_id, number))} removed_below=`{start}`")

    def judge(self, final: dict[Partition, tuple[int, dict[int, bytes]]]) -> None:
        """Compare everything with the records of a fresh broker at the end: by partition (log start, records). Raises Violation."""
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
        if lost and partition[0] not in self.thinned:
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
