"""``headgate sql``: runs a query, shows its progress on a terminal, and writes its rows.

The query runs in a thread of its own, so that Ctrl-C ends it at any moment. Rows are written as they come.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, Full, Queue
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from headgate.broker.cli import output
from headgate.pipelines.sql.query import SqlResult

pc: Any = pyarrow.compute

DRAWN_ROWS_MAX = 1000
"""Rows of a table that is drawn on a terminal: its columns are as wide as the widest value of all rows."""
PROGRESS_S = 0.25
END_S = 10.0
"""Longest wait for the end of a query that was interrupted."""
CYCLE_DAYS = 146_097
"""Days after which the Gregorian calendar repeats: 400 years."""
PYTHON_DAYS = (-719_162, 2_932_896)
"""The days of the years from 1 to 9999, counted from 1970. All nanoseconds of 64 bits lie within them."""
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
WAITING_BATCHES = 2
"""Batches that wait to be written."""


def run(
    query: str,
    cluster: str,
    *,
    as_of: str | None,
    memory_bytes: int | None,
    registry: str | None,
    form: str,
    target: Path | None,
    stats: bool,
) -> None:
    """Run a query and write its rows. Raises HeadgateError."""
    with SqlResult(query, cluster, as_of, memory_bytes, registry) as result:
        _write(result, form, target)
        reads = result.reads
        for topic in sorted(reads.open_gates):
            output.fail(f"a flood into this topic is under way: its records are not in the result. topic=`{topic}`", "headgate sql")
        if stats:
            output.fail(read_line(result), "headgate sql")


def read_line(result: SqlResult) -> str:
    """What a query has read, for people."""
    reads = result.reads
    return (
        f"read {reads.file_rows:,} records from {reads.files:,} of {output.plural(reads.files_known, 'file')} "
        f"({output.size(reads.file_bytes)}) and {reads.broker_rows:,} from brokers ({output.size(reads.broker_bytes)})"
    )


def _write(result: SqlResult, form: str, target: Path | None) -> None:
    """Write the rows to a file, which appears when it is complete, or to stdout."""
    with ExitStack() as opened:
        part = None
        if target is not None:
            part = target.with_name(f".{target.name}.{os.getpid()}.part")
            sink: IO[bytes] = opened.enter_context(open(part, "wb"))
            opened.callback(part.unlink, missing_ok=True)
        else:
            sink = sys.stdout.buffer
        batches = _batches(result)
        schema = next(batches)
        writer = _WRITERS[form](schema, sink, target is None and sys.stdout.isatty())
        for batch in batches:
            writer.write(batch)
        writer.close()
        sink.flush()
        if target is not None and part is not None:
            os.replace(part, target)


def _batches(result: SqlResult) -> Iterator[Any]:
    """The schema of a result, then its batches. Shows the progress meanwhile. Closing it ends the query."""
    waiting: Queue[Any] = Queue(WAITING_BATCHES)
    stopped = threading.Event()

    def put(what: object) -> None:
        while not stopped.is_set():
            with suppress(Full):
                waiting.put(what, timeout=PROGRESS_S)
                break

    def work() -> None:
        try:
            put(result.schema)
            for batch in result:
                put(batch)
            put(None)
        except BaseException as error:
            put(error)
            if not isinstance(error, Exception):
                raise

    worker = threading.Thread(target=work, name="headgate-sql", daemon=True)
    worker.start()
    show = sys.stderr.isatty()
    try:
        while True:
            try:
                found = waiting.get(timeout=PROGRESS_S)
            except Empty:
                if show:
                    _show(f"{read_line(result)}, of about {result.reads.rows_planned:,}")
                continue
            if show:
                _show("")
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        stopped.set()
        result.close()
        worker.join(END_S)  # the end of Python's process under a thread of DuckDB is an abort


def _show(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


# -- forms


class Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """Comma-separated values with a line of names (RFC 4180), or lines of JSON, as `headgate consume --json` prints them."""

    def __init__(self, schema: pa.Schema, sink: IO[bytes], form: str) -> None:
        self._names = schema.names
        self._sink = sink
        self._form = form
        if form == "csv":
            self._csv([self._names])

    def write(self, batch: pa.RecordBatch) -> None:
        columns = columns_of(batch)
        if self._form == "csv":
            self._csv(zip(*([_text(value, null="") for value in column] for column in columns), strict=True))
        else:
            rows = (dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True))
            self._sink.write("".join(f"{json.dumps(_json(row), ensure_ascii=False)}\n" for row in rows).encode())
        self._sink.flush()

    def _csv(self, rows: Any) -> None:
        lines = _Text()
        csv.writer(lines, lineterminator="\n").writerows(rows)
        self._sink.write("".join(lines.parts).encode())

    def close(self) -> None:
        pass


class _Text:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


class _Table:
    """A drawn table on a terminal, and tab-separated lines elsewhere."""

    def __init__(self, schema: pa.Schema, sink: IO[bytes], drawn: bool) -> None:
        self._names = schema.names
        self._numeric = [field.name for field in schema if _is_number(field.type)]
        self._sink = sink
        self._drawn: list[list[str]] | None = [] if drawn else None
        self._more = False
        if not drawn:
            self._lines([self._names])

    def write(self, batch: pa.RecordBatch) -> None:
        rows = zip(*([_text(value) for value in column] for column in columns_of(batch)), strict=True)
        if self._drawn is None:
            self._lines(rows)
            self._sink.flush()
            return
        room = DRAWN_ROWS_MAX - len(self._drawn)
        self._drawn.extend([list(row) for row, _ in zip(rows, range(room), strict=False)])
        self._more |= batch.num_rows > room

    def _lines(self, rows: Any) -> None:
        self._sink.write("".join("\t".join(output.escaped(cell) for cell in row) + "\n" for row in rows).encode())

    def close(self) -> None:
        if self._drawn is None:
            return
        output.print_table(self._names, self._drawn, numeric=self._numeric)
        if self._more:
            output.fail(f"only the first {DRAWN_ROWS_MAX:,} rows are shown: --format csv prints all of them", "headgate sql")


class _Parquet:
    """A Parquet file."""

    def __init__(self, schema: pa.Schema, sink: IO[bytes]) -> None:
        self._writer: Any = pq.ParquetWriter(sink, schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


_WRITERS: dict[str, Any] = {
    "table": _Table,
    "csv": lambda schema, sink, drawn: _Lines(schema, sink, "csv"),
    "json": lambda schema, sink, drawn: _Lines(schema, sink, "json"),
    "parquet": lambda schema, sink, drawn: _Parquet(schema, sink),
}


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def columns_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """The values by column. Times and dates are text, because Python's have fewer years."""
    return [
        _times(column) if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type) else column.to_pylist()
        for column in batch.columns
    ]


def _times(column: Any) -> list[str | None]:
    """Times or dates as text, of any year. Arrow prints years after 32,767 as other ones. The calendar repeats every 400 years, so
    times outside of Python's years are printed as of the years from 1970 to 2369."""
    is_date = pa.types.is_date32(column.type)
    numbers = column.view(pa.int32() if is_date else pa.int64())
    second = 0 if is_date else _PER_SECOND[column.type.unit]
    first, last = (day * 86_400 * second if second else day for day in PYTHON_DAYS)
    found = pc.min_max(numbers).as_py()
    if found["min"] is None or (first <= found["min"] and found["max"] <= last):
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
        return texts
    cycle = CYCLE_DAYS * 86_400 * second if second else CYCLE_DAYS
    parts = [(0, None) if number is None else divmod(number, cycle) for number in numbers.to_pylist()]
    near = pa.array([rest for _, rest in parts], numbers.type).view(column.type).cast(pa.string()).to_pylist()
    return [
        None if text is None else f"{_year(int(text[:4]) + 400 * cycles)}{text[4:]}"
        for text, (cycles, _) in zip(near, parts, strict=True)
    ]


def _year(year: int) -> str:
    return f"-{-year:04d}" if year < 0 else f"{year:04d}"


def _text(value: Any, null: str = "NULL") -> str:
    """A value as a cell. Bytes that are no UTF-8 are shown as ``\\xff``."""
    if value is None:
        return null
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | dict):
        return json.dumps(_json(value), ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _json(value: Any) -> Any:
    """A value for JSON. In objects, bytes that are no UTF-8 stand under ``<name>_base64``."""
    if isinstance(value, dict):
        row: dict[str, Any] = {}
        for name, member in value.items():
            found = _json(member)
            row[f"{name}_base64" if isinstance(member, bytes) and not _is_text(member) else name] = found
        return row
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode() if _is_text(value) else base64.b64encode(value).decode()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    whole = getattr(value, "to_integral_value", None)
    if whole is not None:
        return int(value) if value == whole() else float(value)
    return str(value)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
