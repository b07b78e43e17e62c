"""The judge of one place: compares the answers to producers and the messages of readers with the final read.

Pure, and vectorised: a place may have millions of rows. A record's identity is its producer and sequence in one 64-bit number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.broker.verify.history import Outcome, PlaceHistory, ProducerInfo, Rows, Session, SessionKind
from headgate.broker.verify.value import SEQUENCES_MAX, Unread
from headgate.broker.verify.verdict import Findings, Kind, Violation

Numbers = npt.NDArray[np.int64]
EXAMPLES_MAX = 20
"""Violations of one kind and place that are listed in full. All are counted."""
LATENCY_BOUNDS_US = np.concatenate([[0.0], np.geomspace(100, 1e10, 801), [np.inf]])
"""Bounds of the classes of the latency histogram: 100 us to 10,000 s, each 2.3 % wider than the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceCounts:
    sent: int
    acked: int
    refused: int
    unknown: int
    unknown_written: int
    """Records without an acknowledgement that are in the log."""
    deleted: int
    """Acknowledged records with offsets before the log's start: retention has deleted them."""
    in_log: int
    foreign: int
    read: int
    latencies: Numbers
    """Acknowledgements by class of latency."""
    latency_us_max: int
    unavailable_us: int
    """Longest time without an acknowledgement while producers wrote."""
    unavailable_from_us: int
    is_complete: bool


def judge_place(
    history: PlaceHistory,
    producers: Mapping[int, ProducerInfo],
    sessions: Mapping[int, Session],
    positions: Mapping[str, int],
    writing_us: tuple[int, int],
) -> tuple[Findings, PlaceCounts]:
    """All violations of one place, and its counts.

    Args:
        positions: by group, its last known committed position here.
        writing_us: when producers began and ended, for the longest time without an acknowledgement.
    """
    case = _Case(history, producers, sessions, positions)
    findings = Findings()
    for kind, found in case.judge():
        findings.add(kind, len(found), list(_in_order(found))[:EXAMPLES_MAX])
    return findings, _counts(case, writing_us)


def _in_order(found: Iterable[Violation]) -> list[Violation]:
    return sorted(found, key=lambda violation: (violation.offset, violation.producer, violation.sequence))


def _identity(rows: Rows) -> Numbers:
    numbers: Numbers = rows["producer"].astype(np.int64) * SEQUENCES_MAX + rows["sequence"]
    return numbers


class _Case:
    def __init__(
        self,
        history: PlaceHistory,
        producers: Mapping[int, ProducerInfo],
        sessions: Mapping[int, Session],
        positions: Mapping[str, int],
    ) -> None:
        self.history, self.producers, self.sessions, self.positions = history, producers, sessions, positions
        numbers = [session.number for session in sessions.values() if session.kind is SessionKind.FINAL]
        is_final = np.isin(history.reads["session"], numbers)
        self.final = history.reads[is_final]
        self.shown = history.reads[~is_final]
        self.ours = self.final[self.final["producer"] >= 0]
        self.ours_ids = _identity(self.ours)
        self.acked = history.operations[history.operations["outcome"] == Outcome.OK]
        self.acked_ids = _identity(self.acked)
        self.final_offsets: Numbers = np.unique(self.final["offset"])
        self.low = history.low or 0

    def judge(self) -> Iterator[tuple[Kind, list[Violation]]]:
        yield Kind.CHANGED, self._changed()
        yield Kind.TWO_VALUES, self._two_values()
        yield Kind.READ_BACKWARDS, self._read_backwards()
        numbers = [producer.number for producer in self.producers.values() if producer.idempotent]
        is_idempotent = np.isin(self.ours["producer"], numbers)
        yield Kind.DUPLICATED, self._duplicated(Kind.DUPLICATED, self.ours[is_idempotent])
        yield Kind.DUPLICATED_PLAIN, self._duplicated(Kind.DUPLICATED_PLAIN, self.ours[~is_idempotent])
        yield Kind.REORDERED, self._reordered(Kind.REORDERED, self.ours[is_idempotent])
        yield Kind.REORDERED_PLAIN, self._reordered(Kind.REORDERED_PLAIN, self.ours[~is_idempotent])
        yield Kind.OVERTOOK, self._overtook()
        yield Kind.NEVER_SENT, self._never_sent()
        yield Kind.REFUSED, self._refused()
        yield Kind.STEPPED_OVER, self._stepped_over()
        yield Kind.GROUP_MISSED, self._group_missed()
        if self.history.is_complete:
            yield Kind.LOST, self._lost()
            yield Kind.MOVED, self._moved()
            yield Kind.VANISHED, self._vanished()
            yield Kind.GAP, self._gaps()

    def _violation(self, kind: Kind, row: Rows, text: str, time: str = "time_us") -> Violation:
        return Violation(
            kind=kind,
            place=self.history.place,
            offset=int(row["offset"]),
            producer=int(row["producer"]),
            sequence=int(row["sequence"]),
            time_us=int(row[time]),
            text=text,
        )

    def _name(self, session: int) -> str:
        return self.sessions[session].name if session in self.sessions else str(session)

    def _changed(self) -> list[Violation]:
        rows = self.history.reads[self.history.reads["producer"] == Unread.CHANGED]
        return [
            self._violation(Kind.CHANGED, row, f"the record is not as it was written. reader=`{self._name(int(row['session']))}`")
            for row in _first_by(rows, rows["offset"])
        ]

    def _two_values(self) -> list[Violation]:
        """Every acknowledgement and every read says which record stands at an offset; all must say the same."""
        read = self.history.reads[self.history.reads["producer"] >= 0]
        told = self.acked[self.acked["offset"] >= 0]
        offsets = np.concatenate([told["offset"], read["offset"]])
        ids = np.concatenate([_identity(told), _identity(read)])
        order = np.lexsort((ids, offsets))
        offsets, ids = offsets[order], ids[order]
        differs = (offsets[1:] == offsets[:-1]) & (ids[1:] != ids[:-1])
        found = []
        for offset in np.unique(offsets[1:][differs]):
            said = [f"acked to producer {row['producer']} as its {row['sequence']}" for row in told[told["offset"] == offset][:2]]
            rows = read[read["offset"] == offset]
            said += [
                f"{self._name(int(row['session']))} read {row['sequence']} of producer {row['producer']}"
                for row in _first_by(rows, _identity(rows))[:3]
            ]
            found.append(
                Violation(
                    kind=Kind.TWO_VALUES,
                    place=self.history.place,
                    offset=int(offset),
                    time_us=int(rows["time_us"].max(initial=-1)),
                    text="one offset was said to have different records: " + "; ".join(said),
                )
            )
        return found

    def _read_backwards(self) -> list[Violation]:
        found = []
        for number, rows in _by(self.history.reads, "session"):
            back = np.flatnonzero(np.diff(rows["offset"]) <= 0)
            found += [
                self._violation(
                    Kind.READ_BACKWARDS,
                    rows[at + 1],
                    f"a reader was shown an offset that is not above the one before. reader=`{self._name(number)}` "
                    f"before=`{rows[at]['offset']}`",
                )
                for at in back
            ]
        return found

    def _duplicated(self, kind: Kind, rows: Rows) -> list[Violation]:
        ids = _identity(rows)
        order = np.lexsort((rows["offset"], ids))
        rows, ids = rows[order], ids[order]
        again = np.flatnonzero((ids[1:] == ids[:-1]) & (rows["offset"][1:] != rows["offset"][:-1]))
        return [
            self._violation(kind, rows[at + 1], f"the record stands in the log more than once. also_at=`{rows[at]['offset']}`")
            for at in again
        ]

    def _reordered(self, kind: Kind, rows: Rows) -> list[Violation]:
        """The positions at which a later-sent record stands before the first copy of an acknowledged record that was sent
        earlier."""
        rows = _first_by(rows, _identity(rows))
        rows = rows[np.isin(_identity(rows), self.acked_ids)]
        found = []
        for _, mine in _by(rows, "producer"):
            mine = mine[np.argsort(mine["sequence"], kind="stable")]
            highest = np.maximum.accumulate(mine["offset"]) if len(mine) else mine["offset"]
            found += [
                self._violation(
                    kind,
                    mine[at + 1],
                    f"the record stands before one that was sent earlier. the_earlier_one_at=`{highest[at]}`",
                )
                for at in np.flatnonzero(mine["offset"][1:] < highest[:-1])
            ]
        return found

    def _overtook(self) -> list[Violation]:
        """Records with an acknowledged offset below that of a record that had been acknowledged before they were sent."""
        told = self.acked[self.acked["offset"] >= 0]
        ended = told[np.argsort(told["ended_us"], kind="stable")]
        highest = np.concatenate([[-1], np.maximum.accumulate(ended["offset"])])
        before = highest[np.searchsorted(ended["ended_us"], told["invoked_us"], side="left")]
        return [
            self._violation(
                Kind.OVERTOOK,
                row,
                f"the record stands before one that had been acknowledged when it was sent. acked_before=`{offset}` "
                f"sent_us=`{row['invoked_us']}`",
                "ended_us",
            )
            for row, offset in zip(told[before > told["offset"]], before[before > told["offset"]], strict=True)
        ]

    def _never_sent(self) -> list[Violation]:
        rows = _first_by(self.ours, self.ours_ids)
        rows = rows[~np.isin(_identity(rows), _identity(self.history.operations))]
        return [self._violation(Kind.NEVER_SENT, row, "no producer has sent this record") for row in rows]

    def _refused(self) -> list[Violation]:
        refused = self.history.operations[self.history.operations["outcome"] == Outcome.FAILED]
        rows = _first_by(self.ours, self.ours_ids)
        rows = rows[np.isin(_identity(rows), _identity(refused))]
        return [self._violation(Kind.REFUSED, row, "the producer was told for good that this record was refused") for row in rows]

    def _lost(self) -> list[Violation]:
        rows = self.acked[~np.isin(self.acked_ids, self.ours_ids)]
        rows = rows[(rows["offset"] < 0) | (rows["offset"] >= self.low)]
        return [
            self._violation(
                Kind.LOST,
                row,
                f"an acknowledged record is not in the log. sent_us=`{row['invoked_us']}` acked_us=`{row['ended_us']}`",
                "ended_us",
            )
            for row in rows
        ]

    def _moved(self) -> list[Violation]:
        """Records that were acknowledged at an empty offset and stand at another one."""
        told = self.acked[np.isin(self.acked_ids, self.ours_ids)]
        told = told[(told["offset"] >= self.low) & ~np.isin(told["offset"], self.final_offsets)]
        return [
            self._violation(Kind.MOVED, row, "the record does not stand at the offset that was acknowledged", "ended_us")
            for row in told
        ]

    def _vanished(self) -> list[Violation]:
        rows = self.shown[(self.shown["offset"] >= self.low) & ~np.isin(self.shown["offset"], self.final_offsets)]
        return [
            self._violation(Kind.VANISHED, row, f"a record that was read is gone. reader=`{self._name(int(row['session']))}`")
            for row in _first_by(rows, rows["offset"])
        ]

    def _stepped_over(self) -> list[Violation]:
        found = []
        for number, rows in _by(self.shown, "session"):
            between = self.final_offsets[(self.final_offsets > rows["offset"].min()) & (self.final_offsets < rows["offset"].max())]
            missed = np.setdiff1d(between, rows["offset"])
            found += [
                self._violation(
                    Kind.STEPPED_OVER, row, f"a reader was shown later records, but not this one. reader=`{self._name(number)}`"
                )
                for row in _at(self.final, missed)
            ]
        return found

    def _group_missed(self) -> list[Violation]:
        found = []
        for group, position in self.positions.items():
            members = [session.number for session in self.sessions.values() if session.group == group]
            seen = self.shown["offset"][np.isin(self.shown["session"], members)]
            missed = np.setdiff1d(self.final_offsets[self.final_offsets < position], seen)
            found += [
                self._violation(
                    Kind.GROUP_MISSED,
                    row,
                    f"the group's position is past a record that no member was shown. group=`{group}` position=`{position}`",
                )
                for row in _at(self.final, missed)
            ]
        return found

    def _gaps(self) -> list[Violation]:
        if self.history.high is None:
            return []
        edges = np.concatenate([[self.low - 1], self.final_offsets, [max(self.history.high, self.low)]])
        at = np.flatnonzero(np.diff(edges) > 1)
        return [
            Violation(
                kind=Kind.GAP,
                place=self.history.place,
                offset=int(edges[index]) + 1,
                text=f"no record stands at these offsets. from=`{edges[index] + 1}` to=`{edges[index + 1] - 1}`",
            )
            for index in at
        ]


def _by(rows: Rows, field: str) -> Iterator[tuple[int, Rows]]:
    """Rows of each value of a field, in their order."""
    for number in np.unique(rows[field]):
        yield int(number), rows[rows[field] == number]


def _first_by(rows: Rows, keys: Numbers) -> Rows:
    """The first row of each key, in the order of the keys."""
    _, first = np.unique(keys, return_index=True)
    return rows[first]


def _at(rows: Rows, offsets: Numbers) -> Rows:
    """The first row of each of these offsets."""
    found = rows[np.isin(rows["offset"], offsets)]
    return _first_by(found, found["offset"])


def _counts(case: _Case, writing_us: tuple[int, int]) -> PlaceCounts:
    operations = case.history.operations
    unknown = operations[operations["outcome"] == Outcome.UNKNOWN]
    latency_us = case.acked["ended_us"] - case.acked["invoked_us"]
    began_us, ended_us = writing_us
    acks_us = np.sort(case.acked["ended_us"])
    edges = np.concatenate([[began_us], acks_us[(acks_us > began_us) & (acks_us < ended_us)], [max(ended_us, began_us)]])
    pauses = np.diff(edges)
    longest = int(np.argmax(pauses))
    gone = ~np.isin(case.acked_ids, case.ours_ids)
    return PlaceCounts(
        sent=len(operations),
        acked=len(case.acked),
        refused=int((operations["outcome"] == Outcome.FAILED).sum()),
        unknown=len(unknown),
        unknown_written=int(np.isin(_identity(unknown), case.ours_ids).sum()),
        deleted=int((gone & (case.acked["offset"] >= 0) & (case.acked["offset"] < case.low)).sum()),
        in_log=len(case.final),
        foreign=int((case.final["producer"] == Unread.FOREIGN).sum()),
        read=len(case.shown),
        latencies=np.histogram(latency_us, LATENCY_BOUNDS_US)[0],
        latency_us_max=int(latency_us.max(initial=0)),
        unavailable_us=int(pauses[longest]),
        unavailable_from_us=int(edges[longest]),
        is_complete=case.history.is_complete,
    )
