"""The shape of every topic's table: columns, partition specs, sort order, and the Avro schemas of manifests and their lists.

Field ids of columns are those in `log/folded_file.py`; all other ids are Iceberg's own (https://iceberg.apache.org/spec/).
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "partition", "required": True, "type": "int"},
        {"id": 2, "name": "offset", "required": True, "type": "long"},
        {"id": 3, "name": "timestamp", "required": True, "type": "timestamptz"},
        {"id": 4, "name": "timestamp_type", "required": True, "type": "int"},
        {"id": 5, "name": "key", "required": False, "type": "binary"},
        {"id": 6, "name": "value", "required": False, "type": "binary"},
        {
            "id": 7,
            "name": "headers",
            "required": False,
            "type": {
                "type": "list",
                "element-id": 8,
                "element-required": True,
                "element": {
                    "type": "struct",
                    "fields": [
                        {"id": 9, "name": "key", "required": True, "type": "string"},
                        {"id": 10, "name": "value", "required": False, "type": "binary"},
                    ],
                },
            },
        },
    ],
}
LAST_COLUMN_ID = 10

_PARTITION: Json = {"source-id": 1, "field-id": 1000, "name": "partition", "transform": "identity"}
_DAY: Json = {"source-id": 3, "field-id": 1001, "name": "timestamp_day", "transform": "day"}
BY_DAY = 0
"""The spec of files whose records are all of one day (UTC)."""
BY_PARTITION = 1
"""The spec of files with records of several days."""
SPECS: list[Json] = [
    {"spec-id": BY_DAY, "fields": [_PARTITION, _DAY]},
    {"spec-id": BY_PARTITION, "fields": [_PARTITION]},
]
LAST_PARTITION_ID = 1001
SORT_ORDER: Json = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first"}],
}


def _optional(name: str, kind: object, field_id: int) -> Json:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _required(name: str, kind: object, field_id: int) -> Json:
    return {"name": name, "type": kind, "field-id": field_id}


def _map(name: str, kind: str, field_id: int, key_id: int, value_id: int) -> Json:
    """A map with integer keys, as Iceberg stores it in Avro."""
    item = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_required("key", "int", key_id), _required("value", kind, value_id)],
    }
    return _optional(name, {"type": "array", "logicalType": "map", "items": item}, field_id)


def _entry(partition: list[Json]) -> Json:
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _required("content", "int", 134),
            _required("file_path", "string", 100),
            _required("file_format", "string", 101),
            _required("partition", {"type": "record", "name": "r102", "fields": partition}, 102),
            _required("record_count", "long", 103),
            _required("file_size_in_bytes", "long", 104),
            _map("null_value_counts", "long", 110, 121, 122),
            _map("lower_bounds", "bytes", 125, 126, 127),
            _map("upper_bounds", "bytes", 128, 129, 130),
            _optional("sort_order_id", "int", 140),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _required("status", "int", 0),
            _optional("snapshot_id", "long", 1),
            _optional("sequence_number", "long", 3),
            _optional("file_sequence_number", "long", 4),
            _required("data_file", data_file, 2),
        ],
    }


_PARTITION_FIELDS = [
    _optional("partition", "int", 1000),
    _optional("timestamp_day", {"type": "int", "logicalType": "date"}, 1001),
]
ENTRY: dict[int, Json] = {BY_DAY: _entry(_PARTITION_FIELDS), BY_PARTITION: _entry(_PARTITION_FIELDS[:1])}
"""The Avro schema of manifest entries, by partition spec."""

_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _required("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ],
}
MANIFEST_FILE: Json = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _required("manifest_path", "string", 500),
        _required("manifest_length", "long", 501),
        _required("partition_spec_id", "int", 502),
        _required("content", "int", 517),
        _required("sequence_number", "long", 515),
        _required("min_sequence_number", "long", 516),
        _required("added_snapshot_id", "long", 503),
        _required("added_files_count", "int", 504),
        _required("existing_files_count", "int", 505),
        _required("deleted_files_count", "int", 506),
        _required("added_rows_count", "long", 512),
        _required("existing_rows_count", "long", 513),
        _required("deleted_rows_count", "long", 514),
        _optional("partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}, 507),
    ],
}
"""The Avro schema of the entries of a manifest list."""
