"""Finds the beginnings of records in batches, which only the length of each preceding record tells.

The chain is followed at many places at once. A batch is cut into *lanes*; the first record of a lane is guessed from the bytes
around it, and all lanes are followed in lock-step, one record of each with a few calls of numpy. A lane that ends exactly where
the next one begins proves that guess, if its own beginning is right, and the first lane of a batch begins with the batch: a
wrong guess is always detected. Then, and when records are too few or too large to pay, the chain is followed in Python.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headgate.broker.log.column_schema import Int64s

Pairs: TypeAlias = npt.NDArray[np.uint16]

ROWS_MIN = 1000
"""Fewer records are followed in Python: this many steps cost as much as numpy's fixed costs."""
LANES = 256
"""Target number of lanes in a group of batches. With more, guessing their beginnings takes longer than lock-step saves."""
LANE_ROWS_MIN = 16
WINDOW_RECORDS = 2
"""A lane's first record is searched in as many bytes as this number of records has on average."""
WINDOW_BYTES_MAX = 8 << 10
CANDIDATES_MAX = 64
"""Bound of guesses per lane, on average: values full of zeros would make guessing expensive."""
STEP_ROWS_MIN = 40
"""One step of all lanes takes as long as this many records in Python; with fewer records per step, Python is used."""
TRIES = 2
"""After a failure, the chain is tried again without the wrongly guessed lanes."""
STEPS = 8
"""Records of each lane between two checks whether all lanes are done."""

RECORD_BYTES_MIN = 7
_TIME_BYTES_MAX = 9


def _tables() -> tuple[Int64s, Int64s, Int64s]:
    pairs = np.arange(1 << 16)
    low, high = pairs & 0xFF, pairs >> 8
    widths = np.where(low < 0x80, 1, np.where(high < 0x80, 2, 0))
    zigzag = np.where(widths == 1, low, low & 0x7F | high << 7)
    values = (zigzag >> 1) ^ -(zigzag & 1)
    advance = np.where((widths > 0) & (values + widths >= RECORD_BYTES_MIN), values + widths, 0)
    return values, widths, advance


_VALUES, _WIDTHS, _ADVANCE = _tables()
"""By the two bytes at a position, little-endian: the zigzag varint there; its width, 0 if it has more bytes; and the distance to
the next record if this is a record's length, 0 if it cannot be one or is longer."""

_NEXT = [((byte & 0x7F) >> 1) + 2 for byte in range(256)]
"""Behind a record whose length has two bytes, without the second byte's part of it."""


def _pairs_of(data: bytes) -> Pairs:
    """The two bytes at each position but the last."""
    return np.ndarray((max(len(data) - 1, 0),), "<u2", data, 0, (1,))


def find_records(data: bytes, firsts: Int64s, ends: Int64s, counts: Int64s) -> Int64s | None:
    """The beginning of each record of some batches.

    Args:
        data: contains all batches.
        firsts, ends: the beginning and end of each batch's records, in ascending order.
        counts: number of records of each batch, at least one.

    Returns:
        Shape (sum of `counts`,), or None when a record is cut off. The result is right for well-formed records; the caller checks
        that each record ends where the next one begins.
    """
    rows = int(counts.sum())
    if rows >= ROWS_MIN:
        found = _in_lanes(data, firsts, ends, counts)
        if found is not None:
            return found
    starts = np.empty(rows, np.int64)
    row = 0
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        walked = _walk(data, first, count)
        if len(walked) < count:
            return None
        starts[row : row + count] = walked
        row += count
    return starts


def _in_lanes(data: bytes, firsts: Int64s, ends: Int64s, counts: Int64s) -> Int64s | None:
    """The same by lanes, or None when the lanes do not work out."""
    pairs = _pairs_of(data)
    lanes = np.sort(np.concatenate([firsts, _guess(data, pairs, firsts, ends, int(counts.sum()))]))
    for _ in range(TRIES):
        last_of_batch = np.append(np.searchsorted(lanes, firsts[1:]), len(lanes)) - 1
        targets = np.append(lanes[1:], 0)
        targets[last_of_batch] = ends
        table = _lock_step(pairs, lanes, targets, int(counts.sum()) // STEP_ROWS_MIN)
        if table is None:
            return None
        within = table < targets[:, None]
        rows = within.sum(axis=1)
        missed = table[np.arange(len(lanes)), np.minimum(rows, table.shape[1] - 1)] != targets
        if not missed.any():
            agreed = np.array_equal(np.add.reduceat(rows, np.append(0, last_of_batch[:-1] + 1)), counts)
            return table[within] if agreed else None
        missed[last_of_batch] = False
        lanes = np.delete(lanes, np.flatnonzero(missed) + 1)
    return None


def _lock_step(pairs: Pairs, lanes: Int64s, targets: Int64s, steps_max: int) -> Int64s | None:
    """The positions that each lane passes, up to its target and beyond, or until it is stuck: shape (lanes, steps). None: it
    takes too long."""
    if len(lanes) < STEP_ROWS_MIN:
        return None
    last = len(pairs) - 1
    steps = [lanes]
    while len(steps) <= steps_max:
        for _ in range(STEPS):
            steps.append(steps[-1] + _ADVANCE[pairs[np.minimum(steps[-1], last)]])
        if not ((steps[-1] < targets) & (steps[-1] > steps[-2])).any():
            return np.stack(steps, axis=1)
    return None


def _guess(data: bytes, pairs: Pairs, firsts: Int64s, ends: Int64s, rows: int) -> Int64s:
    """Candidate positions of records in the middle of batches, each once."""
    sizes = ends - firsts
    average = int(sizes.sum()) // rows
    lane_bytes = max(int(sizes.sum()) // LANES, average * LANE_ROWS_MIN)
    window = min(max(average * WINDOW_RECORDS, 64), WINDOW_BYTES_MAX)
    lanes = np.maximum(sizes // lane_bytes, 1)
    batches = np.repeat(np.arange(len(firsts)), lanes - 1)
    if not len(batches) or len(data) <= window:
        return np.empty(0, np.int64)
    number = np.arange(len(batches)) - np.repeat(np.cumsum(lanes - 1) - (lanes - 1), lanes - 1) + 1
    wanted = np.minimum(firsts[batches] + sizes[batches] * number // lanes[batches], len(data) - window)
    octets = np.frombuffer(data, np.uint8)
    # A record's length is followed by its attributes, which are 0.
    zeros = np.flatnonzero(np.lib.stride_tricks.sliding_window_view(octets, window)[wanted].reshape(-1) == 0)
    if len(zeros) > CANDIDATES_MAX * len(wanted):
        return np.empty(0, np.int64)
    lane, at = np.divmod(zeros, window)
    at += wanted[lane]
    starts = at - np.where(octets[at - 2] < 0x80, 1, 2)
    following = starts + _ADVANCE[pairs[starts]]
    fine = (starts > np.maximum(wanted, firsts[batches])[lane]) & (following > starts)
    fine &= following + RECORD_BYTES_MIN <= ends[batches[lane]]
    lane, starts, following = lane[fine], starts[fine], following[fine]
    fine = octets[following + _WIDTHS[pairs[following]]] == 0
    lane, starts, following = lane[fine], starts[fine], following[fine]
    # One random position in a hundred looks like a record, but hardly one has the next offset too.
    fine = _offset_deltas(pairs, octets, starts) + 1 == _offset_deltas(pairs, octets, following)
    _, first_of_lane = np.unique(lane[fine], return_index=True)
    return np.unique(starts[fine][first_of_lane])


def _offset_deltas(pairs: Pairs, octets: npt.NDArray[np.uint8], starts: Int64s) -> Int64s:
    """The third field of candidate records, if it has at most two bytes."""
    last = len(pairs) - 1
    at = np.minimum(starts + _WIDTHS[pairs[starts]] + 1, last)
    for _ in range(_TIME_BYTES_MAX - 1):
        more = octets[at] >= 0x80
        if not more.any():
            break
        at = np.minimum(at + more, last)
    deltas: Int64s = _VALUES[pairs[np.minimum(at + 1, last)]]
    return deltas


def _walk(data: bytes, position: int, count: int) -> list[int]:
    """The beginnings of `count` records, the first one at `position`; fewer when one is cut off."""
    advance = _NEXT
    starts: list[int] = []
    note = starts.append
    try:
        for _ in range(count):
            note(position)
            first = data[position]
            second = data[position + 1]
            if first > 0x7F and second < 0x80:
                # The usual case, in as few interpreter steps as possible.
                position += advance[first] + (second << 6)
            elif first < 0x80:
                position += (first >> 1) + 1
            else:
                size, shift, position = first & 0x7F | (second & 0x7F) << 7, 14, position + 2
                while True:
                    byte = data[position]
                    position += 1
                    size |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                position += size >> 1
    except IndexError:
        starts.pop()
    return starts
