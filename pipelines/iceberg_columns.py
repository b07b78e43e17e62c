"""How the columns of a data file become those of an Iceberg table, by the ids of fields. Pure.

The rules are those of the specification ("Column Projection"): a column of the table is the file's field of the same id, under any
name; without one it is the value of the file's partition, else the column's initial default, else null. A field of the file that
the table does not have is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.broker.runtime.errors import InvalidError, Reason

FIELD_ID = b"PARQUET:field_id"
_types: Any = pa.types
_arrow: Any = pa


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is read as rows of the table.

    `fields`: the file's field of each of the table's columns that it has. `values`: the other columns, each with the value of all
    rows. `nested`: columns of which parts within were added, removed, renamed or reordered.
    """

    fields: Mapping[str, Any]
    values: Mapping[str, Any]
    nested: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """(column of the table, column of the file)."""
        return tuple((name, field.name) for name, field in self.fields.items())

    @property
    def shape(self) -> bytes:
        """Equal for files that are read alike."""
        values = repr([(name, value) for name, value in self.values.items()]).encode()
        return bytes(pa.schema(list(self.fields.values())).serialize().to_pybytes()) + repr(self.names).encode() + values


def reading_of(
    file: pa.Schema, table: pa.Schema, given: Mapping[int, Any], defaults: Mapping[int, Any], mapped: Mapping[str, int]
) -> Reading:
    """How a file of these columns is read.

    Args:
        file, table: with the ids of fields.
        given: the value of each identity field of the file's partition, by the id of its column.
        defaults: the initial default of columns, by id.
        mapped: the ids of columns, by their names in files that have no ids.

    Raises InvalidError when a file without ids has other parts within a column than the table.
    """
    known = {number: field for field in file if (number := id_of(field)) is not None}
    has_ids = bool(known)
    if not has_ids:
        known = {number: field for field in file if (number := mapped.get(field.name)) is not None}
    fields: dict[str, Any] = {}
    values: dict[str, Any] = {}
    nested = set()
    for column in table:
        number = id_of(column)
        assert number is not None, "a table's columns have ids"
        found = known.get(number)
        if found is None:
            values[column.name] = given.get(number, defaults.get(number))
            continue
        fields[column.name] = found
        if not _same(found.type, column.type):
            nested.add(column.name)
            if not has_ids:
                raise InvalidError(
                    Reason.UNSUPPORTED,
                    f"a file without ids of fields has other parts within a column than the table. column=`{column.name}` "
                    f"type=`{found.type}`",
                )
    return Reading(fields, values, frozenset(nested))


def id_of(field: Any) -> int | None:
    """The id of a field, None without one."""
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)


def parts_of(kind: Any) -> list[Any]:
    """The fields within a type: of a struct, or those of the members of a list or a map."""
    if _types.is_struct(kind):
        return list(kind)
    if _types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if _types.is_list(kind) or _types.is_large_list(kind) else []


def _same(file: Any, table: Any) -> bool:
    """True if the parts within a file's type are those of the table's, under the same names."""
    have, want = parts_of(file), parts_of(table)
    if len(have) != len(want):
        return False
    is_struct = _types.is_struct(table)
    for field, other in zip(have, want, strict=True):
        if is_struct and (field.name != other.name or id_of(field) not in (None, id_of(other))):
            return False
        if not _same(field.type, other.type):
            return False
    return True


def is_uuid(kind: Any) -> bool:
    """True for the type of UUIDs."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def has_uuid(kind: Any) -> bool:
    """True for the type of UUIDs, and for one that has it within."""
    return is_uuid(kind) or any(has_uuid(field.type) for field in parts_of(kind))


def has_time(kind: Any) -> bool:
    """True for the type of times of day, and for one that has it within."""
    return bool(_types.is_time(kind)) or any(has_time(field.type) for field in parts_of(kind))


def as_text(kind: Any) -> Any:
    """A type with text in place of UUIDs, which Spark does not have; parts keep their names and lose their ids."""
    if is_uuid(kind):
        return pa.string()
    if _types.is_struct(kind):
        return _arrow.struct([_arrow.field(field.name, as_text(field.type)) for field in kind])
    if _types.is_map(kind):
        return _arrow.map_(as_text(kind.key_type), as_text(kind.item_type))
    if _types.is_list(kind) or _types.is_large_list(kind):
        return _arrow.list_(as_text(kind.value_type))
    return kind
