"""The history of a run with kills (acks, live reads, and the final log), and the checkers that judge it.

The checkers know nothing of brokers or clients: a unit test feeds them wrong histories and proves that each is caught.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_STAMP = struct.Struct(">HHI")  # writer number, partition, sequence


def payload(writer: int, partition: int, sequence: int) -> bytes:
    """The value of one record: its writer, and filler that follows from it, 20 to 4,000 bytes, 60,000 for one in 200."""
    stamp = _STAMP.pack(writer, partition, sequence)
    digest = hashlib.blake2b(stamp, digest_size=16).digest()
    draw = int.from_bytes(digest[:4], "big")
    size = 60_000 if draw % 200 == 0 else 20 + draw % 2_000 * (1 + draw % 2)
    return stamp + (digest * (size // len(digest) + 1))[:size]


def parse(value: bytes) -> tuple[int, int, int]:
    """(writer number, partition, sequence) of a value. Raises ValueError if any byte of it has changed."""
    if len(value) < _STAMP.size:
        raise ValueError(f"a value is too short. bytes=`{len(value)}`")
    writer, partition, sequence = _STAMP.unpack_from(value)
    if value != payload(writer, partition, sequence):
        raise ValueError(f"a value was changed. writer=`{writer}` partition=`{partition}` sequence=`{sequence}`")
    return writer, partition, sequence


def _parsed(value: bytes) -> tuple[int, int, int] | None:
    try:
        return parse(value)
    except ValueError:  # check_log reports it
        return None


@dataclass
class Sent:
    """The records that one producer sent to one topic, and its acks. The writer's threads fill it; checkers read it when they
    have ended."""

    name: str
    number: int
    idempotent: bool
    sent: dict[int, int] = field(default_factory=dict)
    """By partition: number of records passed to the client's library. Their sequences are 0, 1, …"""
    acks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By partition: (sequence, offset) in the order of the acks."""
    failures: list[str] = field(default_factory=list)
    """The library's final errors, one per record, and any other error."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_sequence(self, partition: int) -> int:
        sequence = self.sent.get(partition, 0)
        self.sent[partition] = sequence + 1
        return sequence

    def acked(self, partition: int, sequence: int, offset: int) -> None:
        with self._lock:
            self.acks.setdefault(partition, []).append((sequence, offset))

    def failed(self, error: object) -> None:
        with self._lock:
            self.failures.append(repr(error))

    @property
    def sent_count(self) -> int:
        return sum(self.sent.values())

    @property
    def acked_count(self) -> int:
        return sum(len(acks) for acks in list(self.acks.values()))


Log = Mapping[int, list[tuple[int, bytes]]]
"""By partition: (offset, value) in the order of reading."""


def check_log(log: Log) -> list[str]:
    """Check a log by itself: changed bytes, records in a foreign partition, offsets that do not grow."""
    wrong = []
    for partition, records in log.items():
        last = -1
        for offset, value in records:
            if offset <= last:
                wrong.append(f"offsets do not grow. partition=`{partition}` offset=`{offset}` after=`{last}`")
            last = offset
            try:
                _, written_to, _ = parse(value)
            except ValueError as error:
                wrong.append(f"{error} partition=`{partition}` offset=`{offset}`")
                continue
            if written_to != partition:
                wrong.append(
                    f"a record is in a foreign partition. partition=`{partition}` offset=`{offset}` written_to=`{written_to}`"
                )
    return wrong


def check_writer(sent: Sent, log: Log) -> list[str]:
    """Check one producer's acks against the log: an acked record that is missing, elsewhere, repeated or out of order."""
    wrong = [f"{sent.name}: {failure}" for failure in sent.failures]
    for partition in sorted(sent.sent):
        at = {offset: _parsed(value) for offset, value in log.get(partition, [])}
        mine = [stamp[2] for stamp in at.values() if stamp is not None and stamp[0] == sent.number]
        where = f"writer=`{sent.name}` partition=`{partition}`"
        for sequence, offset in sent.acks.get(partition, []):
            if offset not in at:
                wrong.append(f"an acked record is lost. {where} sequence=`{sequence}` offset=`{offset}`")
            elif at[offset] != (sent.number, partition, sequence):
                wrong.append(
                    f"another record stands at an acked offset. {where} sequence=`{sequence}` offset=`{offset}` is=`{at[offset]}`"
                )
        by_sequence = [offset for _, offset in sorted(sent.acks.get(partition, []))]
        if by_sequence != sorted(set(by_sequence)):
            wrong.append(f"acked offsets are not in send order. {where}")
        first_seen = list(dict.fromkeys(mine))
        if first_seen != sorted(first_seen):
            wrong.append(f"records are not in send order. {where}")
        if sent.idempotent and len(mine) != len(first_seen):
            repeated = [sequence for sequence, count in Counter(mine).items() if count > 1][:5]
            wrong.append(f"an idempotent producer's records are repeated. {where} sequences=`{repeated}`")
        if any(not 0 <= sequence < sent.sent[partition] for sequence in first_seen):
            wrong.append(f"a record was never sent. {where}")
    return wrong


def check_reader(name: str, seen: Log, log: Log) -> list[str]:
    """Check a live consumer against the final log: it must have got every record of the log, once and in order."""
    wrong = []
    for partition, records in log.items():
        shown = seen.get(partition, [])
        if shown != records:
            differing = next(
                (index for index, (one, other) in enumerate(zip(shown, records, strict=False)) if one != other),
                min(len(shown), len(records)),
            )
            at = (
                (shown[differing : differing + 1] or [(None, b"")])[0][0],
                (records[differing : differing + 1] or [(None, b"")])[0][0],
            )
            wrong.append(
                f"a live reader saw another history. reader=`{name}` partition=`{partition}` index=`{differing}` "
                f"offset_seen=`{at[0]}` offset_in_log=`{at[1]}` seen=`{len(shown)}` in_log=`{len(records)}`"
            )
    return wrong


def gaps(log: Log) -> int:
    """Number of offsets that no record has."""
    return sum(offset - before - 1 for records in log.values() for (before, _), (offset, _) in _pairs(records))


def _pairs(records: list[tuple[int, bytes]]) -> Iterable[tuple[tuple[int, bytes], tuple[int, bytes]]]:
    return zip([(-1, b""), *records], records, strict=False)
