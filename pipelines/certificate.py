"""The certificate of a flood: the records of the source, the records of the topic, and whether they are equal.

Sums are order-independent (`headgate.broker.log.history_columns.checksum`: time in ms, key, value, headers of every record), so two
sides are compared without ever standing in one place. The certificate is plain JSON. It can be kept beside the data and compared
with the topic again at any later time (`headgate.pipelines.verify`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.broker.runtime.errors import InvalidError, Reason

if TYPE_CHECKING:
    from headgate.broker.client.file_ref import FileRef
    from headgate.broker.client.gate_admin import Gate

FORMAT_VERSION = 1
MASK = (1 << 64) - 1
PROBLEMS_MAX = 20

_T = TypeVar("_T", "Tally", "PartitionCertificate", "Certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A count of records. `data_bytes`: bytes of keys, values and headers. It and `checksum` are None when they were not computed:
    a flood that adopts files reads no values."""

    rows: int = 0
    data_bytes: int | None = 0
    checksum: int | None = 0

    def __add__(self, other: Tally) -> Tally:
        sums = None if self.checksum is None or other.checksum is None else (self.checksum + other.checksum) & MASK
        size = None if self.data_bytes is None or other.data_bytes is None else self.data_bytes + other.data_bytes
        return Tally(rows=self.rows + other.rows, data_bytes=size, checksum=sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCertificate:
    """One partition: its window, and both sides.

    `source`: the rows that the job gave to this partition; None when only the topic was read. `topic`: the records that a client
    reads from the window; None before `verify`. `gap_rows`, `duplicate_rows`, `disordered_rows`: offsets of the window without a
    record, offsets that came twice, records with an earlier time than the record before; None before `verify`.
    """

    partition: int
    base_offset: int
    end_offset: int
    source: Tally | None = None
    topic: Tally | None = None
    timestamp_min_ms: int | None = None
    timestamp_max_ms: int | None = None
    gap_rows: int | None = None
    duplicate_rows: int | None = None
    disordered_rows: int | None = None

    @classmethod
    def without_rows(cls, partition: int) -> PartitionCertificate:
        """A partition to which a source without rows added nothing."""
        return cls(partition=partition, base_offset=0, end_offset=0, source=Tally())

    def problems(self) -> list[str]:
        """The problems of this partition, one sentence each."""
        found = []
        at = f"partition=`{self.partition}`"
        window = self.end_offset - self.base_offset
        if self.source is not None and self.source.rows != window:
            found.append(f"the window has another size than the source. {at} window=`{window}` source=`{self.source.rows}`")
        if self.topic is not None and self.source is not None:
            for name, style in (("rows", "d"), ("data_bytes", "d"), ("checksum", "016x")):
                ours, theirs = getattr(self.source, name), getattr(self.topic, name)
                if ours != theirs and ours is not None and theirs is not None:
                    sides = f"source=`{ours:{style}}` topic=`{theirs:{style}}`"
                    found.append(f"{name} of the topic are not those of the source. {at} {sides}")
        for name, count in (
            ("missing", self.gap_rows),
            ("duplicate", self.duplicate_rows),
            ("out of time order", self.disordered_rows),
        ):
            if count:
                found.append(f"offsets are {name}. {at} rows=`{count}`")
        return found


def partitions_of(gate: Gate, files: Iterable[FileRef], sources: Mapping[int, Tally] | None) -> tuple[PartitionCertificate, ...]:
    """The partitions of a filled gate, not yet compared with the topic.

    Args:
        files: that fill the gate.
        sources: the rows that the job gave to each partition; None when it gave none.
    """
    spans: dict[int, list[int]] = {}
    for file in files:
        spans.setdefault(file.partition, []).extend((file.timestamp_min_ms, file.timestamp_max_ms))
    return tuple(
        PartitionCertificate(
            partition=window.partition,
            base_offset=window.base_offset,
            end_offset=window.end_offset,
            source=None if sources is None else sources.get(window.partition, Tally()),
            timestamp_min_ms=min(spans.get(window.partition, []), default=None),
            timestamp_max_ms=max(spans.get(window.partition, []), default=None),
        )
        for window in gate.windows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The facts about one flood in one topic.

    `added_rows`: rows that this run added; 0 when the flood had been committed before, and then `already_filled` is True.
    `size_bytes`, `files`: of the Parquet files. `seconds`: duration of each phase. `engine`: ``arrow`` when tasks worked on
    columns, ``spark`` when Spark moved the rows, and then `engine_reason` says why; both empty when this run wrote nothing.
    `snapshot`: of an Iceberg table: the snapshot that this run read; empty for other sources, and when it read nothing.
    `adopted_rows`: rows that lie in the source's own files.
    """

    cluster: str
    topic: str
    flood_id: str
    gate_id: str
    place: str
    added_rows: int = 0
    already_filled: bool = False
    files: int = 0
    size_bytes: int = 0
    digest: str = ""
    keyless_rows: int = 0
    engine: str = ""
    engine_reason: str = ""
    snapshot: str = ""
    adopted_rows: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    partitions: tuple[PartitionCertificate, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def work(self) -> str:
        """The way that the rows took, for people; empty if this run wrote nothing."""
        if self.engine_reason:
            return f"Spark moved the rows: {self.engine_reason}"
        if self.adopted_rows and self.engine:
            return "the source's files were adopted"
        return "on columns, with Arrow" if self.engine else ""

    @property
    def rows(self) -> int:
        """The flood's records, including those that an earlier run added."""
        return sum(partition.end_offset - partition.base_offset for partition in self.partitions)

    @property
    def source(self) -> Tally | None:
        """The sum of the source; None when it was not read."""
        return _sum([partition.source for partition in self.partitions])

    @property
    def in_topic(self) -> Tally | None:
        """The sum of the records that a client reads; None before `verify`."""
        return _sum([partition.topic for partition in self.partitions])

    @property
    def timestamp_min_ms(self) -> int | None:
        """The time of the earliest record; None without records."""
        return min(
            (partition.timestamp_min_ms for partition in self.partitions if partition.timestamp_min_ms is not None), default=None
        )

    @property
    def timestamp_max_ms(self) -> int | None:
        """The time of the latest record; None without records."""
        return max(
            (partition.timestamp_max_ms for partition in self.partitions if partition.timestamp_max_ms is not None), default=None
        )

    @property
    def gap_rows(self) -> int | None:
        return _sum_if_known([partition.gap_rows for partition in self.partitions])

    @property
    def duplicate_rows(self) -> int | None:
        return _sum_if_known([partition.duplicate_rows for partition in self.partitions])

    @property
    def disordered_rows(self) -> int | None:
        return _sum_if_known([partition.disordered_rows for partition in self.partitions])

    @property
    def complete(self) -> bool:
        """True when no checked record is missing, duplicated, or different from the source."""
        return not self.problems()

    @property
    def verified(self) -> bool:
        """True when the flood is complete, and all of it was read from the topic and compared with the source."""
        return self.complete and all(partition.source is not None and partition.topic is not None for partition in self.partitions)

    def problems(self) -> list[str]:
        """The problems, at most twenty sentences; empty without problems."""
        return [problem for partition in self.partitions for problem in partition.problems()][:PROBLEMS_MAX]

    def with_partitions(self, partitions: tuple[PartitionCertificate, ...]) -> Certificate:
        """The same certificate with other partitions."""
        return replace(self, partitions=partitions)

    def with_proof_of(self, earlier: Certificate) -> Certificate:
        """This certificate, completed from an earlier certificate of the same gate: with the source's side, which only the
        adding run sees, and with the topic's side where this run did not read the topic. A certificate of another gate adds
        nothing.

        The addresses of the cluster may differ: the digest covers paths, which no other topic has.
        """
        if (self.topic, self.gate_id, self.digest, self.windows) != (
            earlier.topic,
            earlier.gate_id,
            earlier.digest,
            earlier.windows,
        ):
            return self
        parts = []
        for partition, before in zip(self.partitions, earlier.partitions, strict=True):
            part = partition if partition.topic is not None else before
            parts.append(replace(part, source=before.source if partition.source is None else partition.source))
        return replace(
            self,
            keyless_rows=self.keyless_rows or earlier.keyless_rows,
            engine=self.engine or earlier.engine,
            engine_reason=self.engine_reason or earlier.engine_reason,
            snapshot=self.snapshot or earlier.snapshot,
            partitions=tuple(parts),
        )

    @property
    def windows(self) -> list[tuple[int, int, int]]:
        """(partition, base offset, end offset) of the whole flood."""
        return [(partition.partition, partition.base_offset, partition.end_offset) for partition in self.partitions]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object. Checksums are text, because most JSON readers cannot hold 64 bits."""
        row = asdict(self)
        row["partitions"] = [_checksums_as_text(partition) for partition in row["partitions"]]
        for name in ("source", "in_topic"):
            total = getattr(self, name)
            row[name] = None if total is None else _text(asdict(total))
        row |= {name: getattr(self, name) for name in _COMPUTED}
        row["problems"] = self.problems()
        return row

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """Read a certificate that `to_json` wrote. Raises InvalidError for any other text."""
        try:
            row = json.loads(text)
            if row["format_version"] != FORMAT_VERSION:
                raise InvalidError(Reason.UNSUPPORTED, f"certificate is of another version. version=`{row['format_version']}`")
            for name in (*_COMPUTED, "source", "in_topic", "problems"):
                row.pop(name, None)
            parts = tuple(
                _numbered(PartitionCertificate(**{**part, "source": _tally(part["source"]), "topic": _tally(part["topic"])}))
                for part in row.pop("partitions")
            )
            return _numbered(cls(**row, partitions=parts))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidError(Reason.INVALID_REQUEST, f"not a certificate: {error}") from error


_COMPUTED = (
    "rows",
    "timestamp_min_ms",
    "timestamp_max_ms",
    "gap_rows",
    "duplicate_rows",
    "disordered_rows",
    "complete",
    "verified",
)


def _sum(parts: list[Tally | None]) -> Tally | None:
    total = Tally()
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _sum_if_known(parts: list[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _checksums_as_text(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, **{side: None if part[side] is None else _text(part[side]) for side in ("source", "topic")}}


def _text(tally: dict[str, Any]) -> dict[str, Any]:
    return {**tally, "checksum": None if tally["checksum"] is None else f"{tally['checksum']:016x}"}


def _tally(row: dict[str, Any] | None) -> Tally | None:
    if row is None:
        return None
    return _numbered(Tally(**{**row, "checksum": None if row["checksum"] is None else int(row["checksum"], 16)}))


def _numbered(item: _T) -> _T:
    """Returns the object, or raises TypeError when one of its numbers is not a number."""
    for known in fields(item):
        value = getattr(item, known.name)
        if str(known.type).startswith("int") and not isinstance(value, int) and not (value is None and "None" in str(known.type)):
            raise TypeError(f"{known.name} is no number")
    return item
