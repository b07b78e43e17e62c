"""An Iceberg table as the source of a flood: one snapshot of it, as Parquet files that columns and Spark can read.

The catalog and the metadata are read with PyIceberg. The data files are read like any other Parquet source, so a snapshot whose
rows are not simply those of its files is refused: one with delete files, one with files of another format, and one whose files call
a column by another name than the table does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from headgate.broker.runtime.extras import require

require("iceberg", "format iceberg")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError, ValidationError  # noqa: E402
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow  # noqa: E402
from pyiceberg.table import StaticTable, Table  # noqa: E402

from headgate.broker.runtime.errors import InvalidError, Reason, RetryError  # noqa: E402

OWN = ("catalog", "snapshot-id", "tag", "branch")
"""Options that are ours. All others are properties of the catalog."""
FIELD_ID = b"PARQUET:field_id"
THREADS = 16
FILES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pinned snapshot of a table. `files`: the URLs or local paths of its data files, by path. `name`: for certificates."""

    name: str
    schema: pa.Schema
    files: tuple[str, ...]
    rows: int
    size_bytes: int


def read_snapshot(source: str, options: Mapping[str, str]) -> Snapshot:
    """The snapshot that a flood reads.

    Args:
        source: ``namespace.table`` of a catalog, or the URL of a table's ``...metadata.json``.
        options: `catalog`: name of a catalog in PyIceberg's configuration (default: `default`); `snapshot-id`, `tag` or `branch`:
            default is the table's current snapshot; all others are properties of the catalog, such as `uri`.

    Raises:
        InvalidError: no such table or snapshot; its rows are not simply those of Parquet files. RetryError: the catalog does not
            answer.
    """
    try:
        table = _table(source, options)
        named, snapshot_id = _snapshot_id(table, source, options)
        if snapshot_id is None:
            return Snapshot(f"{source} without a snapshot", _arrow_schema(table, None), (), 0, 0)
        tasks = list(table.scan(snapshot_id=snapshot_id).plan_files())
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise InvalidError(Reason.NOT_FOUND, f"table does not exist. source=`{source}` error=`{_line(error)}`") from error
    except (RESTError, OSError) as error:
        raise RetryError(
            Reason.STORE_UNAVAILABLE, f"the catalog or its metadata cannot be read. source=`{source}` error=`{_line(error)}`"
        ) from error
    except (ValueError, ValidationError) as error:
        raise InvalidError(Reason.INVALID_CONFIG, f"the table cannot be read. source=`{source}` error=`{_line(error)}`") from error
    schema = _arrow_schema(table, snapshot_id)
    name = f"{source} snapshot {snapshot_id}{named}"
    check_tasks(name, tasks)
    files = sorted((task.file for task in tasks), key=lambda one: str(one.file_path))
    _check_names(name, table, schema, [str(one.file_path) for one in files])
    return Snapshot(
        name,
        pa.schema([field.remove_metadata() for field in schema]),
        tuple(local_or_url(str(one.file_path)) for one in files),
        sum(one.record_count for one in files),
        sum(one.file_size_in_bytes for one in files),
    )


def local_or_url(path: str) -> str:
    """The path of a file on this machine, or the URL of any other."""
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme == "file" else path


def _table(source: str, options: Mapping[str, str]) -> Table:
    properties = {name: value for name, value in options.items() if name not in OWN}
    if source.endswith(".metadata.json"):
        return StaticTable.from_metadata(source, properties)
    return load_catalog(options.get("catalog"), **properties).load_table(source)


def _snapshot_id(table: Table, source: str, options: Mapping[str, str]) -> tuple[str, int | None]:
    """How the snapshot was named, for its name, and its id; None for a table without snapshots."""
    given = [name for name in OWN[1:] if name in options]
    if len(given) > 1:
        raise InvalidError(Reason.INVALID_CONFIG, f"give one of snapshot-id, tag and branch. source=`{source}`")
    if not given:
        current = table.current_snapshot()
        return "", None if current is None else current.snapshot_id
    kind, text = given[0], options[given[0]]
    if kind == "snapshot-id":
        found = table.snapshot_by_id(int(text)) if text.isascii() and text.isdigit() else None
        known = [str(one.snapshot_id) for one in table.snapshots()[-5:]]
    else:
        reference = table.metadata.refs.get(text)
        if reference is not None and str(reference.snapshot_ref_type) != kind:
            reference = None
        found = None if reference is None else table.snapshot_by_id(reference.snapshot_id)
        known = sorted(name for name, one in table.metadata.refs.items() if str(one.snapshot_ref_type) == kind)
    if found is None:
        raise InvalidError(
            Reason.NOT_FOUND, f"table has no such {kind}. source=`{source}` {kind}=`{text}` known=`{', '.join(known)}`"
        )
    return "" if kind == "snapshot-id" else f" ({kind} {text})", found.snapshot_id


def _arrow_schema(table: Table, snapshot_id: int | None) -> pa.Schema:
    schema = table.schema() if snapshot_id is None else table.scan(snapshot_id=snapshot_id).projection()
    return schema_to_pyarrow(schema, include_field_ids=True)


def check_tasks(name: str, tasks: Iterable[Any]) -> None:
    """Raise InvalidError if the rows of the snapshot are not those of Parquet files."""
    for count, task in enumerate(tasks, 1):
        if task.delete_files:
            raise InvalidError(
                Reason.UNSUPPORTED,
                "the snapshot has delete files: rewrite its data files (Spark: CALL system.rewrite_data_files), or read it with "
                f"Spark's Iceberg runtime and the format query. table=`{name}` file=`{task.file.file_path}`",
            )
        if str(task.file.file_format).upper().rpartition(".")[2] != "PARQUET":
            raise InvalidError(Reason.UNSUPPORTED, f"a data file is not Parquet. table=`{name}` file=`{task.file.file_path}`")
        if count > FILES_MAX:
            raise InvalidError(Reason.UNSUPPORTED, f"the snapshot has too many files. table=`{name}` max=`{FILES_MAX}`")


def _check_names(name: str, table: Table, schema: pa.Schema, files: list[str]) -> None:
    """Raise InvalidError unless each file has the table's columns under their names. A column that was added later may be missing.

    Iceberg knows columns by their ids, and Parquet readers by name.
    """
    ids = _ids(schema)
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    identities = {
        ids.get(field.source_id) for spec in table.specs().values() for field in spec.fields if str(field.transform) == "identity"
    }

    def look(path: str) -> str | None:
        file: Any = io.new_input(path).open()
        with file:
            found = pq.read_schema(file)
        known = _ids(found)
        for number, column in ids.items():
            if known.get(number, column) != column:
                return f"column `{column}` is `{known[number]}`"
            if number not in known and known and column in found.names:
                return f"column `{column}` is another column of that name"
            if column not in found.names and column in identities:
                return f"column `{column}` is in the table's partitions only"
        return None

    with ThreadPoolExecutor(THREADS, "headgate-iceberg") as pool:
        for path, problem in zip(files, pool.map(look, files), strict=True):
            if problem is not None:
                raise InvalidError(
                    Reason.UNSUPPORTED,
                    f"a data file has other columns than the table: {problem} there. Rewrite the data files, or read the table "
                    f"with Spark's Iceberg runtime and the format query. table=`{name}` file=`{path}`",
                )


def _ids(schema: pa.Schema) -> dict[int, str]:
    """The names of columns by Iceberg's ids."""
    marked = [(field.metadata or {}, field.name) for field in schema]
    return {int(metadata[FIELD_ID]): name for metadata, name in marked if FIELD_ID in metadata}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
