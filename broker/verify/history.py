"""The recorded history of one run: operations, reads, positions and watermarks, each with monotonic times.

A *place* is one partition of one topic, as a number. Times are microseconds of the monotonic clock since the run began. An
operation begins (`invoked_us`) before its request is sent and ends (`ended_us`) after its answer has come, so it took effect in
between; one with an unknown outcome may take effect at any time after it began, or never.
Rows of records are numpy arrays, because a run of hours has tens of millions of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

OPERATION = np.dtype(
    [
        ("producer", "<i4"),
        ("outcome", "<i4"),
        ("sequence", "<i8"),
        ("offset", "<i8"),
        ("invoked_us", "<i8"),
        ("ended_us", "<i8"),
    ]
)
"""One record that a producer sent. `sequence`: 0, 1, 2 ... of this producer at this place, in send order. `offset`: -1 = not
told."""

READ = np.dtype([("session", "<i4"), ("producer", "<i4"), ("offset", "<i8"), ("sequence", "<i8"), ("time_us", "<i8")])
"""One record shown to a consumer. `producer`: the number, or one of `value.Unread`."""

Rows = npt.NDArray[Any]
NEVER_US = -1
"""End time of an operation without an answer."""
NO_POSITION = -1
"""Answer of OffsetFetch for a group without a committed position."""


class Outcome(IntEnum):
    OK = 0
    FAILED = 1
    """Refused for good: the record must not be in the log."""
    UNKNOWN = 2


class SessionKind(StrEnum):
    LIVE = "live"
    GROUP = "group"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One uninterrupted read of one place or of all: a consumer from an assignment to its end. Offsets must grow within it."""

    number: int
    kind: SessionKind
    name: str
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    number: int
    idempotent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """An OffsetCommit of a group for one place."""

    group: str
    place: int
    position: int
    outcome: Outcome
    invoked_us: int
    ended_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionAnswer:
    """An answer to OffsetFetch."""

    group: str
    place: int
    position: int
    invoked_us: int
    ended_us: int
    asker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkAnswer:
    """An answer to ListOffsets: the log's first offset and its high watermark."""

    place: int
    low: int
    high: int
    invoked_us: int
    ended_us: int
    asker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A notable event of a client: an error, a restart."""

    time_us: int
    client: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceHistory:
    """All recorded rows of one place.

    Args:
        low, high: the watermarks when the final read began; None: the endpoint did not answer the query.
        is_complete: the final read reached `high`. Only then can a missing record be called lost.
    """

    place: int
    operations: Rows
    reads: Rows
    low: int | None
    high: int | None
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The whole run except the rows of its places."""

    run: int
    began_unix_ms: int
    places: Sequence[tuple[str, int]]
    """By place number: topic and partition."""
    producers: Mapping[int, ProducerInfo]
    sessions: Mapping[int, Session]
    writing_began_us: int = 0
    writing_ended_us: int = 0
    final_read: Mapping[int, tuple[int, int, bool]] = field(default_factory=dict)
    """By place: low and high watermark when the final read began, and whether the read reached `high`. A place may be missing."""
    endpoint: str = ""


def operations(rows: Sequence[tuple[int, int, int, int, int, int]]) -> Rows:
    """Rows of (producer, outcome, sequence, offset, invoked_us, ended_us)."""
    return np.array(list(rows), dtype=OPERATION)


def reads(rows: Sequence[tuple[int, int, int, int, int]]) -> Rows:
    """Rows of (session, producer, offset, sequence, time_us)."""
    return np.array(list(rows), dtype=READ)
