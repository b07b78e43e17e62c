"""Reads of many ranges of one file, for all readers that wait for it.

The batches of one partition lie apart in a chunk, and between them lie those of other partitions, which the same consumer often
wants as well. Ranges that follow one another in the file are read by one system call, whoever wants them, each into its place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import itemgetter

from headgate.broker.store.interface import Ranges

GAP_BYTES_MAX = 8 << 10
"""Largest gap between two ranges, in bytes, that one system call reads and drops. Copying 8 KiB takes as long as another call."""
VECTORS_MAX = 1024
"""Buffers of one system call (IOV_MAX of Linux)."""
LONG_BYTES_MIN = 512 << 10
DENSE_SHARE = 2
"""A part of a file of at least so many bytes, of which one of DENSE_SHARE is wanted, is left to the kernel's own reading ahead. It
takes memory in large pieces for that, and in single pages for what is announced: 0.28 against 0.55 CPU-seconds per GB."""

_Piece = tuple[int, memoryview, int]
"""Position in the file, place of the bytes, number of the reader."""


def read_ranges(fd: int, wanted: Sequence[Ranges], targets: Sequence[memoryview]) -> list[memoryview]:
    """Read the ascending ranges of each reader, one behind the other, into its target.

    Returns the part of each target that was filled: all of it, unless the file ends earlier. Raises OSError.
    """
    pieces: list[_Piece] = []
    for number, ranges in enumerate(wanted):
        at = 0
        for start, length in ranges:
            if length:
                pieces.append((start, targets[number][at : at + length], number))
                at += length
    if len(wanted) > 1:
        pieces.sort(key=itemgetter(0))
    runs = _runs(pieces)
    _announce(fd, runs)
    dropped = memoryview(bytearray(GAP_BYTES_MAX))
    filled = [0] * len(wanted)
    for run in runs:
        _read_run(fd, run, dropped, filled)
    return [target[:count] for target, count in zip(targets, filled, strict=True)]


def _runs(pieces: list[_Piece]) -> list[list[_Piece]]:
    """The pieces, divided at gaps of more than GAP_BYTES_MAX, and where two readers want the same bytes. One system call reads a
    run."""
    runs: list[list[_Piece]] = []
    end = -1
    for piece in pieces:
        start = piece[0]
        if not runs or not 0 <= start - end <= GAP_BYTES_MAX or len(runs[-1]) * 2 >= VECTORS_MAX:
            runs.append([])
        runs[-1].append(piece)
        end = start + len(piece[1])
    return runs


def _announce(fd: int, runs: list[list[_Piece]]) -> None:
    """Tell the kernel what will be read, before the first read.

    Runs that lie apart are announced one by one: the disk works on them at once. Where most bytes of a long part are wanted, the
    kernel reads ahead by itself, and what lies between the runs is wanted by the next reads.
    """
    if not runs:
        return
    ends = [(run[0][0], run[-1][0] + len(run[-1][1])) for run in runs]
    span = ends[-1][1] - ends[0][0]
    if span >= LONG_BYTES_MIN and sum([end - start for start, end in ends]) * DENSE_SHARE >= span:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return
    for start, end in ends:
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_WILLNEED)


def _read_run(fd: int, run: list[_Piece], dropped: memoryview, filled: list[int]) -> None:
    """Read the pieces of a run, and the gaps between them into `dropped`. Counts the bytes of each reader in `filled`."""
    buffers: list[memoryview] = []
    begin = end = run[0][0]
    for start, target, _ in run:
        if start > end:
            buffers.append(dropped[: start - end])
        buffers.append(target)
        end = start + len(target)
    if os.preadv(fd, buffers, begin) == end - begin:
        for _, target, number in run:
            filled[number] += len(target)
        return
    # The file ends, or the call was interrupted.
    for start, target, number in run:
        done = 0
        while done < len(target) and (count := os.preadv(fd, [target[done:]], start + done)):
            done += count
        filled[number] += done
