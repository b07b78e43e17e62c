"""An Iceberg table as the source of a flood: one snapshot of it, as Parquet files that columns and Spark can read.

The catalog and the metadata are read with PyIceberg. The data files are read by columns or by Spark, each as its `Reading` says
(`iceberg_columns.py`). A snapshot whose rows are not those of Parquet files is refused: one with delete files, and one with files
of another format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headgate.broker.runtime.extras import require

require("iceberg", "format iceberg")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError, ValidationError  # noqa: E402
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow  # noqa: E402
from pyiceberg.schema import Schema  # noqa: E402
from pyiceberg.table import StaticTable, Table  # noqa: E402

from headgate.broker.runtime.errors import InvalidError, Reason, RetryError  # noqa: E402
from headgate.pipelines.iceberg_columns import Reading, as_text, id_of, reading_of  # noqa: E402

OWN = ("catalog", "snapshot-id", "tag", "branch")
"""Options that are ours. All others are properties of the catalog."""
PINS = frozenset(("snapshot-id", "tag"))
"""Those of them that name a state of the past; a branch has a state of now."""
THREADS = 16
FILES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a table. `path`: on this machine, or its URL, with the characters that the table's metadata have for it."""

    path: str
    reading: Reading


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pinned snapshot of a table. `schema`: its columns, with ids. `files`: its data files, by path. `name`: for certificates."""

    name: str
    schema: pa.Schema
    files: tuple[TableFile, ...]
    rows: int
    size_bytes: int

    @property
    def columns(self) -> pa.Schema:
        """The columns as a flood has them."""
        return columns_as_text(self.schema)


def columns_as_text(schema: pa.Schema) -> pa.Schema:
    """The columns of a table with text in place of UUIDs."""
    arrow: Any = pa
    return pa.schema([arrow.field(field.name, as_text(field.type)) for field in schema])


def read_snapshot(source: str, options: Mapping[str, str], judge: Callable[[pa.Schema], object] | None = None) -> Snapshot:
    """The snapshot that a flood reads.

    Args:
        source: ``namespace.table`` of a catalog, or the URL of a table's ``...metadata.json``.
        options: `catalog`: name of a catalog in PyIceberg's configuration (default: `default`); `snapshot-id`, `tag` or `branch`:
            default is the table's current snapshot; all others are properties of the catalog, such as `uri`.
        judge: sees the columns as a flood has them, before any file is looked at; its errors end the look.

    Raises:
        InvalidError: no such table or snapshot; its rows are not simply those of Parquet files. RetryError: the catalog does not
            answer.
    """
    try:
        table = _table(source, options)
        named, snapshot_id = _snapshot_id(table, source, options)
        schema = _reading_schema(table, snapshot_id, is_pinned=bool(options.keys() & PINS))
        columns = schema_to_pyarrow(schema, include_field_ids=True)
        if judge is not None:
            judge(columns_as_text(columns))
        if snapshot_id is None:
            return Snapshot(f"{source} without a snapshot", columns, (), 0, 0)
        tasks = list(table.scan(snapshot_id=snapshot_id).plan_files())
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise InvalidError(Reason.NOT_FOUND, f"table does not exist. source=`{source}` error=`{_line(error)}`") from error
    except (RESTError, OSError) as error:
        raise RetryError(
            Reason.STORE_UNAVAILABLE, f"the catalog or its metadata cannot be read. source=`{source}` error=`{_line(error)}`"
        ) from error
    except (ValueError, ValidationError) as error:
        raise InvalidError(Reason.INVALID_CONFIG, f"the table cannot be read. source=`{source}` error=`{_line(error)}`") from error
    name = f"{source} snapshot {snapshot_id}{named}"
    check_tasks(name, tasks)
    files = sorted((task.file for task in tasks), key=lambda task: str(task.file_path))
    return Snapshot(
        name,
        columns,
        tuple(_readings(name, table, schema, columns, files)),
        sum(file.record_count for file in files),
        sum(file.file_size_in_bytes for file in files),
    )


def local_or_url(path: str) -> str:
    """The path of a file on this machine, or the URL of any other.

    Iceberg's locations are not encoded: ``%C3%B6`` in one is six characters of a directory's name.
    """
    if not path.startswith("file:"):
        return path
    path = path.removeprefix("file:")
    return "/" + path.removeprefix("//").partition("/")[2] if path.startswith("//") else path


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
        known = [str(snapshot.snapshot_id) for snapshot in table.snapshots()[-5:]]
    else:
        reference = table.metadata.refs.get(text)
        if reference is not None and str(reference.snapshot_ref_type) != kind:
            reference = None
        found = None if reference is None else table.snapshot_by_id(reference.snapshot_id)
        known = sorted(name for name, ref in table.metadata.refs.items() if str(ref.snapshot_ref_type) == kind)
    if found is None:
        raise InvalidError(
            Reason.NOT_FOUND, f"table has no such {kind}. source=`{source}` {kind}=`{text}` known=`{', '.join(known)}`"
        )
    return "" if kind == "snapshot-id" else f" ({kind} {text})", found.snapshot_id


def _reading_schema(table: Table, snapshot_id: int | None, *, is_pinned: bool) -> Schema:
    """The schema that rows are read with: the snapshot's own for a tag or an id, and the table's for its current state and for a
    branch, as in Spark. A column that was dropped is not in the table's, even if no snapshot followed."""
    return table.scan(snapshot_id=snapshot_id).projection() if is_pinned and snapshot_id is not None else table.schema()


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


def _readings(name: str, table: Table, schema: Schema, columns: pa.Schema, files: Iterable[Any]) -> Iterator[TableFile]:
    """The files, with how each is read: by its footer. Raises InvalidError, RetryError."""
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    mapping = table.name_mapping() or schema.name_mapping
    mapped = {name: field.field_id for field in mapping for name in field.names if field.field_id is not None}
    specs = table.specs()
    kinds = {id_of(column): column.type for column in columns}
    defaults = {field.field_id: pa.scalar(field.initial_default, kinds[field.field_id]) for field in schema.fields}

    def look(file: Any) -> TableFile:
        path = str(file.file_path)
        given = {
            field.source_id: pa.scalar(file.partition[place], kinds[field.source_id])
            for place, field in enumerate(specs[file.spec_id].fields)
            if str(field.transform) == "identity" and field.source_id in kinds
        }
        try:
            handle: Any = io.new_input(path).open()
            with handle:
                found = pq.read_schema(handle)
            return TableFile(local_or_url(path), reading_of(found, columns, given, defaults, mapped))
        except InvalidError as error:
            raise InvalidError(error.reason, f"{error.message} table=`{name}` file=`{path}`") from error
        except pa.ArrowInvalid as error:
            raise InvalidError(
                Reason.INVALID_CONFIG, f"a data file is not Parquet: {_line(error)} table=`{name}` file=`{path}`"
            ) from error
        except FileNotFoundError as error:
            raise InvalidError(Reason.NOT_FOUND, f"a data file of the table is not there. table=`{name}` file=`{path}`") from error
        except OSError as error:
            text = f"a data file cannot be read now: {_line(error)} table=`{name}` file=`{path}`"
            raise RetryError(Reason.STORE_UNAVAILABLE, text) from error

    with ThreadPoolExecutor(THREADS, "headgate-iceberg") as pool:
        yield from pool.map(look, files)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
