"""Windows of one partition on its lead: ranges at which readers wait, and ranges that readers pass.

A window is a range of offsets without live records: a gate's range, or a range that was reserved for a gate that never came.
States: `held` and `open`: history may come, so readers wait here. `filled`: its records are in `PartitionLog.sealed`.
`released`: readers pass it.

When a window opens, a reader directly before it is either at the end of the log, waiting for live records, or on its way through
the log. The offset does not show which; the reader's earlier requests do. If a reader had reached the end, or had asked for the
end, it passes the window until it goes back. Every other reader waits.

If the topic had live records when the gate was opened (`live`), such a reader is behind the window at once and for good: it never
gets the history. In a topic that only floods write to, it passes with the next live record. If none comes before the fill, it
reads the history, as every reader of that topic does. Positions that groups committed are judged by the same rule
(`groups/positions.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import count
from typing import Literal

from headgate.broker.cluster.gates import OPEN_GATES_MAX, ParquetExtent
from headgate.broker.engine.partition.extents import AnyExtent

State = Literal["held", "open", "filled", "released"]
AT_END_S_MAX = 10.0
"""Seconds after which a reader that reached the end of the log no longer counts as being there."""
READERS_MAX = 4096
"""Readers that one partition remembers at most. Beyond that, the oldest are dropped."""
NOBODY = 0
"""The number of a reader without remembered requests."""
new_reader = count(1).__next__
"""A new number for a connection or subscription that reads."""


class ReaderWindow:
    """One window, as readers of the partition meet it.

    `term`: epoch of the leader for which the offsets are reserved. `gate_id` "": the window belongs to no gate. `live`: see
    `Gate.live`.
    """

    __slots__ = ("base_offset", "end_offset", "gate_id", "live", "past", "state", "term")

    def __init__(
        self, base_offset: int, end_offset: int, gate_id: str, state: State, term: int = -1, *, live: bool = False
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.gate_id = gate_id
        self.state = state
        self.term = term
        self.live = live
        self.past: dict[int, int] = {}
        """Readers that may pass the window, with their largest offset: while it is empty, and for good if it is `live`. A request
        below that offset means that the reader went back."""

    @property
    def waits(self) -> bool:
        return self.state in ("held", "open")

    def fill(self) -> None:
        self.state = "filled"
        if not self.live:
            self.past.clear()

    def __repr__(self) -> str:
        return f"ReaderWindow({self.gate_id} {self.state} [{self.base_offset}, {self.end_offset}))"


class Windows:
    """The ranges of a partition that are not simply live records in batches: windows, deleted ranges and folded files."""

    __slots__ = ("_bases", "cuts", "end_of_all", "files_end", "rows")

    def __init__(self) -> None:
        self.rows: list[ReaderWindow] = []
        """The windows, by offset; they never overlap."""
        self._bases: list[int] = []
        self.cuts: list[tuple[int, int]] = []
        """Deleted ranges of offsets above the log's start, by offset."""
        self.files_end = 0
        """No folded file ends behind this offset."""
        self.end_of_all = 0
        """The end of the last window, cut or folded file. The records from here on are in batches, in memory or in chunks."""

    @property
    def end(self) -> int:
        """The end of the last window; 0 without windows."""
        return self.rows[-1].end_offset if self.rows else 0

    def add(self, window: ReaderWindow) -> None:
        at = bisect_right(self._bases, window.base_offset)
        assert at == 0 or self.rows[at - 1].end_offset <= window.base_offset, "windows overlap"
        assert at == len(self.rows) or window.end_offset <= self.rows[at].base_offset, "windows overlap"
        self.rows.insert(at, window)
        self._bases.insert(at, window.base_offset)
        self._note_end()

    def next(self, offset: int) -> ReaderWindow | None:
        """The window that contains `offset`, or the first one after it."""
        at = bisect_right(self._bases, offset) - 1
        if at >= 0 and offset < self.rows[at].end_offset:
            return self.rows[at]
        return self.rows[at + 1] if at + 1 < len(self.rows) else None

    def find(self, gate_id: str, *states: State) -> ReaderWindow | None:
        return next((row for row in reversed(self.rows) if row.gate_id == gate_id and row.state in states), None)

    def first_waiting(self) -> ReaderWindow | None:
        """The first window at which readers wait."""
        return next((row for row in self.rows if row.waits), None)

    def without(self, base_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The parts of a range of offsets outside all windows, by offset."""
        parts: list[tuple[int, int]] = []
        at = max(bisect_right(self._bases, base_offset) - 1, 0)
        for window in self.rows[at:]:
            if window.base_offset >= end_offset:
                break
            if window.base_offset > base_offset:
                parts.append((base_offset, window.base_offset))
            base_offset = max(base_offset, window.end_offset)
        if base_offset < end_offset:
            parts.append((base_offset, end_offset))
        return parts

    def forget_readers(self) -> None:
        """Bound the memory of readers: only the newest OPEN_GATES_MAX of the filled windows keep theirs. A reader of the others
        did not ask for records since long before; it then counts as a reader like any other."""
        remembered = [row for row in self.rows if row.state == "filled" and row.past]
        for window in remembered[:-OPEN_GATES_MAX]:
            window.past.clear()

    def rename(self, base_offset: int, gate_id: str) -> None:
        """Give the window of a released gate its new id."""
        for window in self.rows:
            if window.base_offset == base_offset:
                window.gate_id = gate_id

    def drop_holds(self, gate_id: str | None, but_of_term: int | None) -> bool:
        """Release reserved ranges: from now on they are gaps. The arguments are those of `PartitionLog.drop_holds`. Returns True if
        there were any."""
        dropped = False
        for window in self.rows:
            if window.state == "held" and (gate_id is None or window.gate_id == gate_id) and window.term != but_of_term:
                window.state, window.gate_id, dropped = "released", "", True
        return dropped

    def set_cuts(self, cuts: Iterable[tuple[int, int]]) -> None:
        self.cuts = list(cuts)
        self._note_end()

    def note_files(self, extents: Iterable[AnyExtent]) -> None:
        """Note the folded files among these extents."""
        ends = (extent.end_offset for extent in extents if isinstance(extent, ParquetExtent) and extent.folded)
        self.files_end = max(self.files_end, max(ends, default=0))
        self._note_end()

    def drop_below(self, log_start: int, first_open: int) -> None:
        """Forget deleted ranges that end at or below `log_start`, and windows that end at or below `first_open`, which is not
        greater."""
        count = 0
        while count < len(self.rows) and self.rows[count].end_offset <= first_open:
            count += 1
        del self.rows[:count], self._bases[:count]
        self.cuts = [cut for cut in self.cuts if cut[1] > log_start]
        self._note_end()

    def _note_end(self) -> None:
        self.end_of_all = max(self.end, self.files_end, max((high for _, high in self.cuts), default=0))


class Readers:
    """The readers at the end of a partition's log."""

    __slots__ = ("_asked", "_at_end")

    def __init__(self) -> None:
        self._at_end: dict[int, tuple[float, int]] = {}
        self._asked: dict[int, int] = {}

    def at_end(self, reader: int, offset: int, now_s: float) -> None:
        """Note that a reader asked for records from `offset` on, which is the end: the reader has all existing records."""
        self._at_end.pop(reader, None)
        self._at_end[reader] = now_s, offset
        if len(self._at_end) > READERS_MAX:
            del self._at_end[next(iter(self._at_end))]

    def was_at(self, reader: int, offset: int) -> bool:
        """True if a reader was last seen at the end at `offset` or behind it."""
        seen = self._at_end.get(reader)
        return seen is not None and seen[1] >= offset

    def asked_end(self, reader: int, offset: int) -> None:
        """Note that a reader asked for the end of the log, and received it."""
        self._asked.pop(reader, None)
        self._asked[reader] = offset
        if len(self._asked) > READERS_MAX:
            del self._asked[next(iter(self._asked))]

    def asked_start(self, reader: int) -> None:
        """Note that a reader asked for the beginning of the log."""
        self._asked.pop(reader, None)
        self._at_end.pop(reader, None)

    def standing(self, end_offset: int, base_offset: int, now_s: float, *, is_empty: bool) -> dict[int, int]:
        """Readers that wait for live records at the place of a new window, and their offsets.

        Args:
            end_offset: end of the readable records. base_offset: the window's; records between the two are on their way to the
                store.
            is_empty: the log never had a record: its end is its beginning, and only readers that asked for the end are at the
                end.
        """
        found = {reader: told for reader, told in self._asked.items() if end_offset <= told <= base_offset}
        if not is_empty:
            for reader, (seen_s, offset) in self._at_end.items():
                if now_s - seen_s <= AT_END_S_MAX:
                    found[reader] = min(offset, found.get(reader, offset))
        return found
