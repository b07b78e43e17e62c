"""Gates: windows of offsets that are reserved for history, and the Parquet files that fill them. No I/O.

Theory of operation::

    open      every lead of the topic has skipped the window's offsets; readers stop at it, writers continue after it
      -> filled     the files of all partitions were committed in one edit; readers read them
      -> released   given up by hand, or because no client renewed it; readers pass it

The lead of a partition chooses its window in memory, before the gate is in the manifest (`PartitionLog.hold`). If a partition
has another lead by the time of the commit that opens the gate, the commit is refused, and the new lead is asked. The offsets
that the first lead had reserved stay empty for ever, and belong to no gate. From the commit on, no lead begins before the
window's end, so offsets never go back. A window at the front of a topic needs no lead, because no client can write there
(`history.room`).

The same id can be opened again after its release. The older gate is then listed as `<id>~<number>`.
"""

from __future__ import annotations

import hashlib
import heapq
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.steps import Steps

GATE_ID_MAX = 100
DEFINITION_CHARS_MAX = 1024
OWNER_CHARS_MAX = 100
_GATE_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,100}", re.ASCII)
TTL_MS_MIN = 1000
TTL_MS_MAX = 7 * 24 * 3600 * 1000
OPEN_GATES_MAX = 400
"""Open gates of one topic: a run of a flood opens one for each of its days, and a year of them is a usual run. Each reader of a
partition may take some 100 bytes at each one."""
GATES_MAX = 10_000
"""Remembered gates of one topic; above it, the oldest ones without readable files are dropped."""
ROWS_MAX = 1 << 48
"""Offsets of one window."""
OFFSET_MAX = 1 << 62
FILES_MAX = 200_000
"""Files of one gate."""
STEP_FILES = 200
"""Files in one step of work on the files of a gate: less than a millisecond."""
TIMESTAMP_MS_MAX = 1 << 53

Place = Literal["now", "front", "end"]
State = Literal["open", "filled", "released"]
FRONT_EPOCH = 0
"""The leader epoch of records in front of all others."""


class GateWindow(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [base_offset, end_offset) of one partition, and the leader epoch of their records."""

    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int

    @property
    def rows(self) -> int:
        return self.end_offset - self.base_offset


class ParquetExtent(msgspec.Struct, frozen=True, array_like=True):
    """A run of consecutive offsets [base_offset, end_offset) of one partition in one Parquet file, one row each.

    `path`: a key in the store, or a URL (`is_url`). `footer_crc32c`: CRC-32C of the file from its metadata to its end.

    A folded file (`cluster/folded_files.py`) has `records` rows, and its column `offset` tells their offsets. `appended_ms`: the
    wall-clock time in ms at which the newest of them was appended, `oldest_ms`: the oldest one. `history`: they came with gates,
    not from producers. A gate's file has none of these.

    Adopted rows: `path` names a recipe (`log/recipe.py`), which many partitions share, and `adopted_bytes` is this partition's
    share of the files that the recipe names. `first_row`: the rows of the partition in the recipe before these. A fold that takes
    only some units leaves the rest as pieces of whole units.
    """

    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    path: str
    size_bytes: int
    footer_crc32c: int
    timestamp_min_ms: int
    timestamp_max_ms: int
    records: int = -1
    appended_ms: int = 0
    history: bool = False
    oldest_ms: int = 0
    adopted_bytes: int = 0
    first_row: int = 0

    @property
    def rows(self) -> int:
        return self.records if self.folded else self.end_offset - self.base_offset

    @property
    def folded(self) -> bool:
        """True if a fold made the file."""
        return self.records >= 0

    @property
    def adopted(self) -> bool:
        """True if the rows lie in adopted files."""
        return self.adopted_bytes > 0

    @property
    def dense(self) -> bool:
        """True if every offset has a row, so that a row's number tells its offset."""
        return self.rows == self.end_offset - self.base_offset

    @property
    def data_bytes(self) -> int:
        """Its size for statistics: the stored size."""
        return self.adopted_bytes or self.size_bytes


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gate. `windows`: one for each partition that the topic had, by number. `renewals` counts the restarts of `ttl_ms`.
    `definition` and `owner` are the opener's: the expected content, and the opener's name.

    `extents`: by partition and offset, without unreadable ones. `digest`, `rows`, `size_bytes`, `files` describe the files that
    filled it.

    `live`: when the gate was opened, the topic had live records, and the place was `now`. Then a reader that had read everything
    continues behind the window, and does not see the gate's records (`engine/partition/windows.py`, `groups/positions.py`).
    """

    id: str
    topic_id: uuid.UUID
    place: Place
    windows: list[GateWindow]
    ttl_ms: int
    opened_ms: int
    state: State = "open"
    renewals: int = 0
    filled_ms: int = 0
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    digest: str = ""
    released_by: str = ""
    extents: list[ParquetExtent] = []
    definition: str = ""
    owner: str = ""
    live: bool = False


def is_url(path: str) -> bool:
    """True if a path is not a key in the cluster's own store."""
    return "://" in path


def data_prefix(topic_id: uuid.UUID) -> str:
    """The prefix of the files of a topic's gates."""
    return f"topics/{topic_id.hex}/data/"


def topic_of(key: str) -> uuid.UUID | None:
    """The topic to which an object belongs; None for any other object."""
    parts = key.split("/", 3)
    if len(parts) < 3 or parts[0] != "topics" or len(parts[1]) != 32:
        return None
    try:
        return uuid.UUID(hex=parts[1])
    except ValueError:
        return None


def gate_of(key: str, ids: Iterable[str]) -> str | None:
    """The gate, among these ids, for which a file was written, according to the file's name."""
    name = key.rsplit("/", 1)[-1]
    return next((gate_id for gate_id in ids if name.startswith(f"{gate_id}-")), None)


def check_gate_id(gate_id: str) -> None:
    """Raise InvalidError(INVALID_REQUEST) for an illegal id of a gate."""
    if _GATE_ID.fullmatch(gate_id) is None:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"a gate's id is 1 to {GATE_ID_MAX} letters, digits, `.`, `_` and `-`. gate=`{gate_id[: GATE_ID_MAX + 1]!a}`",
        )


def check_ttl(ttl_ms: int) -> None:
    """Raise InvalidError(INVALID_REQUEST) if a time-to-live is out of range."""
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"a gate's time-to-live is from a second to 7 days. ttl_ms=`{ttl_ms}` min=`{TTL_MS_MIN}` max=`{TTL_MS_MAX}`",
        )


def check_words(definition: str, owner: str) -> None:
    """Raise InvalidError(INVALID_REQUEST) if the opener's texts are too long."""
    for name, text, most in (("definition", definition, DEFINITION_CHARS_MAX), ("owner", owner, OWNER_CHARS_MAX)):
        if len(text) > most:
            raise InvalidError(Reason.INVALID_REQUEST, f"a gate's {name} is too long. characters=`{len(text)}` max=`{most}`")


def check_rows(topic: str, rows: Sequence[int], partitions: int) -> None:
    """Raise InvalidError(INVALID_REQUEST) unless there is a valid number for every partition."""
    if len(rows) != partitions:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"a gate needs the rows of every partition. topic=`{topic}` partitions=`{partitions}` given=`{len(rows)}`",
        )
    for partition, count in enumerate(rows):
        if not 0 <= count <= ROWS_MAX:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"number of rows is out of range. topic=`{topic}` partition=`{partition}` rows=`{count}` max=`{ROWS_MAX}`",
            )


def digest_of(extents: Sequence[ParquetExtent]) -> Steps[str]:
    """Digest of files, independent of their order; of their references, with offsets counted from the beginning of the window."""
    rows = yield from _in_order(extents, _reference)
    digest = hashlib.sha256(b"[")
    for start in range(0, len(rows), STEP_FILES):
        yield STEP_FILES
        comma = ", " if start else ""
        digest.update((comma + ", ".join(repr(_reference(row)) for row in rows[start : start + STEP_FILES])).encode())
    digest.update(b"]")
    return digest.hexdigest()[:32]


def _reference(extent: ParquetExtent) -> tuple[int, int, int, str, int, int]:
    return (
        extent.partition,
        extent.base_offset,
        extent.end_offset,
        extent.path,
        extent.size_bytes,
        extent.footer_crc32c,
    )


def _place(extent: ParquetExtent) -> tuple[int, int]:
    return extent.partition, extent.base_offset


def _in_order(extents: Sequence[ParquetExtent], key: Callable[[ParquetExtent], Any]) -> Steps[list[ParquetExtent]]:
    """The extents sorted by `key`, in steps."""
    runs: list[list[ParquetExtent]] = []
    for start in range(0, len(extents), STEP_FILES):
        yield STEP_FILES
        runs.append(sorted(extents[start : start + STEP_FILES], key=key))
    merged = heapq.merge(*runs, key=key)
    ordered: list[ParquetExtent] = []
    while more := list(islice(merged, STEP_FILES)):
        ordered += more
        yield STEP_FILES
    return ordered


def moved(extents: Iterable[ParquetExtent], windows: Mapping[int, GateWindow]) -> list[ParquetExtent]:
    """Extents with offsets from 0, moved into their windows, with the windows' epochs."""
    return [
        msgspec.structs.replace(
            extent,
            base_offset=extent.base_offset + windows[extent.partition].base_offset,
            end_offset=extent.end_offset + windows[extent.partition].base_offset,
            leader_epoch=windows[extent.partition].leader_epoch,
        )
        for extent in extents
    ]


def check_extents(gate_id: str, extents: Sequence[ParquetExtent], windows: Mapping[int, GateWindow]) -> Steps[list[ParquetExtent]]:
    """The extents by partition and offset, if they can fill these windows.

    Raises:
        InvalidError(INVALID_REFERENCE): one lies outside its window, two overlap, or a number is impossible.
    """
    if len(extents) > FILES_MAX:
        raise InvalidError(
            Reason.INVALID_REFERENCE, f"too many files for one gate. gate=`{gate_id}` files=`{len(extents)}` max=`{FILES_MAX}`"
        )
    ordered = yield from _in_order(extents, _place)
    paths: set[str] = set()
    adopted: set[tuple[str, int]] = set()
    last: ParquetExtent | None = None
    for number, extent in enumerate(ordered):
        if number % STEP_FILES == 0:
            yield STEP_FILES
        window = windows.get(extent.partition)
        where = f"gate=`{gate_id}` partition=`{extent.partition}` path=`{extent.path[:300]}`"
        if window is None:
            raise InvalidError(Reason.INVALID_REFERENCE, f"the gate has no such partition. {where}")
        if extent.rows <= 0 or extent.size_bytes <= 0 or extent.adopted_bytes < 0:
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"a file has at least one row. rows=`{extent.rows}` size_bytes=`{extent.size_bytes}` {where}",
            )
        if not window.base_offset <= extent.base_offset < extent.end_offset <= window.end_offset:
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"rows lie outside the gate's window. base=`{extent.base_offset}` end=`{extent.end_offset}` "
                f"window=`{window.base_offset}..{window.end_offset}` {where}",
            )
        if not -TIMESTAMP_MS_MAX <= extent.timestamp_min_ms <= extent.timestamp_max_ms <= TIMESTAMP_MS_MAX:
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"timestamps make no sense. first_ms=`{extent.timestamp_min_ms}` last_ms=`{extent.timestamp_max_ms}` {where}",
            )
        if extent.path in paths or (extent.adopted and (extent.path, extent.partition) in adopted):
            raise InvalidError(Reason.INVALID_REFERENCE, f"a file is given twice. {where}")
        if extent.adopted:
            adopted.add((extent.path, extent.partition))
        else:
            paths.add(extent.path)
        if last is not None and last.partition == extent.partition and last.end_offset > extent.base_offset:
            raise InvalidError(
                Reason.INVALID_REFERENCE, f"files overlap. base=`{extent.base_offset}` before=`{last.end_offset}` {where}"
            )
        last = extent
    return ordered
