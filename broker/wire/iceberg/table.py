"""One topic's Iceberg table in the making: from changes of its files to the objects that describe the new state.

Each change makes the table's next version: a metadata file, a manifest list, and those manifests that changed. A manifest has up to
`MANIFEST_FILES_MAX` files, and a change that adds files writes the last manifest of their spec again, with them. So the cost of a
change depends on its own files, and the list grows by one row for several hundred files.

A version's number is also the id and the sequence number of its snapshot. The caller writes the objects, the metadata file last and
only if no file of that version exists; the new state counts only after that.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headgate.broker.wire.iceberg.avro import container, encode
from headgate.broker.wire.iceberg.schemas import (
    BY_DAY,
    BY_PARTITION,
    ENTRY,
    LAST_COLUMN_ID,
    LAST_PARTITION_ID,
    MANIFEST_FILE,
    SCHEMA,
    SORT_ORDER,
    SPECS,
    Json,
)

MANIFEST_FILES_MAX = 500
"""Files of one manifest. A change writes one manifest for each spec again, which takes milliseconds."""
SNAPSHOTS_KEPT = 20
"""Snapshots that a table lists. Readers that began with an older one go on while its objects are there."""
DAY_MS = 86_400_000

_EXISTING, _ADDED = 0, 1
_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A folded file. `path`: its address for readers. Times in ms, both ends inclusive, as the offsets."""

    path: str
    partition: int
    first_offset: int
    last_offset: int
    timestamp_min_ms: int
    timestamp_max_ms: int
    rows: int
    size_bytes: int

    @property
    def spec_id(self) -> int:
        return BY_DAY if self.timestamp_min_ms // DAY_MS == self.timestamp_max_ms // DAY_MS else BY_PARTITION

    @property
    def day(self) -> int:
        """Days since 1970, for a file of one day."""
        return self.timestamp_min_ms // DAY_MS


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file in a manifest, and the version that added it."""

    file: DataFile
    version: int


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A manifest as it is written. `version`: that wrote it. `row`: its entry in manifest lists, encoded once."""

    name: str
    size_bytes: int
    spec_id: int
    version: int
    entries: tuple[_Entry, ...]
    row: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A table's next version: objects by name, to be written before `metadata`; and the table as it is then."""

    objects: dict[str, bytes]
    metadata: bytes
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table after its version `version`; 0: it has none yet.

    `location`: address under which `manifest_url` finds the objects. `snapshots`: those listed, the newest last, each with the
    names of its objects.
    """

    id: uuid.UUID
    location: str
    version: int = 0
    manifests: tuple[_Manifest, ...] = ()
    snapshots: tuple[tuple[Json, frozenset[str]], ...] = field(default=())

    @property
    def objects(self) -> frozenset[str]:
        """The names of all objects that a listed snapshot needs."""
        return frozenset().union(*(names for _, names in self.snapshots))

    @property
    def paths(self) -> set[str]:
        """The paths of the table's files."""
        return {entry.file.path for manifest in self.manifests for entry in manifest.entries}

    def change(
        self, added: Sequence[DataFile], gone: set[str], properties: Mapping[str, str], now_ms: int, previous_ms: int = 0
    ) -> Written:
        """The next version: with these files, and without those under these paths.

        Args:
            properties: of the table, all of them.
            now_ms: the wall clock in ms. previous_ms: time of the last version; times never go back.
        """
        version = self.version + 1
        now_ms = max(now_ms, previous_ms)
        objects: dict[str, bytes] = {}
        manifests = [one for old in self.manifests if (one := self._without(old, gone, version, objects)) is not None]
        for spec_id in (BY_DAY, BY_PARTITION):
            fresh = [_Entry(entry, version) for entry in added if entry.spec_id == spec_id]
            if fresh:
                manifests = self._with(manifests, spec_id, fresh, version, objects)
        list_name = f"{version:020d}-list.avro"
        objects[list_name] = self._list(manifests, version)
        snapshot = self._snapshot(list_name, manifests, added, gone, version, now_ms)
        names = frozenset((list_name, *(manifest.name for manifest in manifests)))
        snapshots = (*self.snapshots, (snapshot, names))[-SNAPSHOTS_KEPT:]
        table = replace(self, version=version, manifests=tuple(manifests), snapshots=snapshots)
        return Written(objects=objects, metadata=table.metadata(properties, now_ms), table=table)

    def metadata(self, properties: Mapping[str, str], now_ms: int) -> bytes:
        """The content of the metadata file."""
        found: Json = {
            "format-version": 2,
            "table-uuid": str(self.id),
            "location": self.location,
            "last-sequence-number": self.version,
            "last-updated-ms": now_ms,
            "last-column-id": LAST_COLUMN_ID,
            "current-schema-id": 0,
            "schemas": [SCHEMA],
            "default-spec-id": BY_DAY,
            "partition-specs": SPECS,
            "last-partition-id": LAST_PARTITION_ID,
            "default-sort-order-id": SORT_ORDER["order-id"],
            "sort-orders": [SORT_ORDER],
            "properties": dict(properties),
            "snapshots": [snapshot for snapshot, _ in self.snapshots],
            "snapshot-log": [
                {"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]} for snapshot, _ in self.snapshots
            ],
            "metadata-log": [],
            "refs": {},
        }
        if self.snapshots:
            found["current-snapshot-id"] = self.version
            found["refs"] = {"main": {"snapshot-id": self.version, "type": "branch"}}
        return json.dumps(found).encode()

    def manifest_url(self, name: str) -> str:
        """The address of a manifest or a manifest list."""
        return f"{self.location}/manifests/{name}"

    # -- manifests

    def _without(self, old: _Manifest, gone: set[str], version: int, objects: dict[str, bytes]) -> _Manifest | None:
        kept = tuple(entry for entry in old.entries if entry.file.path not in gone) if gone else old.entries
        if len(kept) == len(old.entries):
            return old
        return self._write(old.spec_id, kept, version, objects) if kept else None

    def _with(
        self, manifests: list[_Manifest], spec_id: int, fresh: list[_Entry], version: int, objects: dict[str, bytes]
    ) -> list[_Manifest]:
        """The manifests with further files: in the last one of their spec, as far as it has room, and in new ones."""
        last = next((manifest for manifest in reversed(manifests) if manifest.spec_id == spec_id), None)
        if last is not None and len(last.entries) < MANIFEST_FILES_MAX:
            manifests = [manifest for manifest in manifests if manifest is not last]
            objects.pop(last.name, None)
            fresh = [*last.entries, *fresh]
        made = [
            self._write(spec_id, tuple(fresh[at : at + MANIFEST_FILES_MAX]), version, objects)
            for at in range(0, len(fresh), MANIFEST_FILES_MAX)
        ]
        return [*manifests, *made]

    def _write(self, spec_id: int, entries: tuple[_Entry, ...], version: int, objects: dict[str, bytes]) -> _Manifest:
        name = f"{version:020d}-{len(objects)}-{entries[0].file.partition}-{entries[0].file.first_offset}.avro"
        spec = next(spec for spec in SPECS if spec["spec-id"] == spec_id)
        described = {
            "schema": json.dumps(SCHEMA),
            "schema-id": "0",
            "partition-spec": json.dumps(spec["fields"]),
            "partition-spec-id": str(spec_id),
            "format-version": "2",
            "content": "data",
        }
        rows = (encode(ENTRY[spec_id], _entry_row(entry, version)) for entry in entries)
        objects[name] = container(ENTRY[spec_id], rows, described)
        manifest = _Manifest(name, len(objects[name]), spec_id, version, entries, b"")
        return replace(manifest, row=encode(MANIFEST_FILE, _manifest_row(manifest, self.manifest_url(name))))

    def _list(self, manifests: Iterable[_Manifest], version: int) -> bytes:
        rows = (manifest.row for manifest in manifests)
        described = {"snapshot-id": str(version), "sequence-number": str(version), "format-version": "2"}
        return container(MANIFEST_FILE, rows, described)

    def _snapshot(
        self, list_name: str, manifests: Sequence[_Manifest], added: Sequence[DataFile], gone: set[str], version: int, now_ms: int
    ) -> Json:
        entries = [entry for manifest in manifests for entry in manifest.entries] if gone or not self.snapshots else []
        before = self.snapshots[-1][0]["summary"] if self.snapshots else {}
        files, rows = len(entries), sum(entry.file.rows for entry in entries)
        if not gone and self.snapshots:
            files = int(before["total-data-files"]) + len(added)
            rows = int(before["total-records"]) + sum(entry.rows for entry in added)
        found: Json = {
            "snapshot-id": version,
            "sequence-number": version,
            "timestamp-ms": now_ms,
            "manifest-list": self.manifest_url(list_name),
            "schema-id": 0,
            "summary": {
                "operation": "append" if not gone else "delete" if not added else "overwrite",
                "added-data-files": str(len(added)),
                "added-records": str(sum(entry.rows for entry in added)),
                "deleted-data-files": str(len(gone)),
                "total-data-files": str(files),
                "total-records": str(rows),
            },
        }
        if self.snapshots:
            found["parent-snapshot-id"] = self.snapshots[-1][0]["snapshot-id"]
        return found


def _entry_row(entry: _Entry, version: int) -> Json:
    file = entry.file
    partition: Json = {"partition": file.partition}
    if file.spec_id == BY_DAY:
        partition["timestamp_day"] = file.day
    return {
        "status": _ADDED if entry.version == version else _EXISTING,
        "snapshot_id": entry.version,
        "sequence_number": entry.version,
        "file_sequence_number": entry.version,
        "data_file": {
            "content": 0,
            "file_path": file.path,
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": file.rows,
            "file_size_in_bytes": file.size_bytes,
            "null_value_counts": [{"key": column, "value": 0} for column in (1, 2, 3, 4)],
            "lower_bounds": _bounds(file.partition, file.first_offset, file.timestamp_min_ms),
            "upper_bounds": _bounds(file.partition, file.last_offset, file.timestamp_max_ms),
            "sort_order_id": SORT_ORDER["order-id"],
        },
    }


def _bounds(partition: int, offset: int, timestamp_ms: int) -> list[Json]:
    values = {1: _INT.pack(partition), 2: _LONG.pack(offset), 3: _LONG.pack(timestamp_ms * 1000)}
    return [{"key": column, "value": value} for column, value in values.items()]


def _manifest_row(manifest: _Manifest, path: str) -> Json:
    added = [entry for entry in manifest.entries if entry.version == manifest.version]
    added_rows, rows = sum(entry.file.rows for entry in added), sum(entry.file.rows for entry in manifest.entries)
    numbers = [entry.file.partition for entry in manifest.entries]
    summaries = [_summary(min(numbers), max(numbers))]
    if manifest.spec_id == BY_DAY:
        days = [entry.file.day for entry in manifest.entries]
        summaries.append(_summary(min(days), max(days)))
    return {
        "manifest_path": path,
        "manifest_length": manifest.size_bytes,
        "partition_spec_id": manifest.spec_id,
        "content": 0,
        "sequence_number": manifest.version,
        "min_sequence_number": min(entry.version for entry in manifest.entries),
        "added_snapshot_id": manifest.version,
        "added_files_count": len(added),
        "existing_files_count": len(manifest.entries) - len(added),
        "deleted_files_count": 0,
        "added_rows_count": added_rows,
        "existing_rows_count": rows - added_rows,
        "deleted_rows_count": 0,
        "partitions": summaries,
    }


def _summary(low: int, high: int) -> Json:
    return {"contains_null": False, "contains_nan": False, "lower_bound": _INT.pack(low), "upper_bound": _INT.pack(high)}
