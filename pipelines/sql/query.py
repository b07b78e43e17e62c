"""`sql`: runs one query. Topics are tables under their own names."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from headgate.broker.runtime.extras import require

require("sql", "headgate.sql")

import duckdb  # noqa: E402
import pyarrow as pa  # noqa: E402

from headgate.broker.client.types import DEFAULT_CLUSTER, Topic  # noqa: E402
from headgate.broker.runtime.clock import Clock  # noqa: E402
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason  # noqa: E402
from headgate.broker.schemas.decoder import Decoder  # noqa: E402
from headgate.pipelines.connection import Connection  # noqa: E402
from headgate.pipelines.sql.cut import AsOf, Cut, parse_as_of, take_cuts  # noqa: E402
from headgate.pipelines.sql.scan import Reader, Reads, Scan  # noqa: E402
from headgate.pipelines.sql.table import TopicTable  # noqa: E402

BATCH_ROWS = 1 << 16
"""Rows of one batch of a result."""
NAMES = re.compile(r"[a-zA-Z0-9._-]+")
"""What may be a topic's name in a query."""
LISTING = re.compile(r"\b(show|information_schema|duckdb_(tables|views|columns))\b", re.IGNORECASE)
"""A query about all tables."""


class SqlResult:
    """The rows of a query, as Arrow. They come while they are read, so a result may be larger than memory.

    Iterate over it for record batches, call `read_all` for a table, or give it to any library that takes Arrow streams (pandas,
    Polars, DuckDB). A context manager; a result that is read to its end closes itself.

    Attributes:
        reads: what was read so far of files and from brokers.
        cuts: for each topic of the query the offsets [start, end) of its partitions: the records that the query sees.
    """

    def __init__(self, query: str, cluster: str, as_of: AsOf, memory_bytes: int | None, registry: str | None = None) -> None:
        if not query.strip(" \n\t;"):
            raise InvalidError(Reason.INVALID_REQUEST, "the query is empty")
        self._closing = threading.Lock()
        self._closed = False
        self._spill = tempfile.mkdtemp(prefix="headgate-sql-")
        self._duck = duckdb.connect(config={"temp_directory": self._spill, "python_enable_replacements": "false"})
        self._connection = Connection(cluster)
        self._query = query
        self._rows: pa.RecordBatchReader | None = None
        self._error: HeadgateError | None = None
        self._reader: Reader | None = None
        try:
            self._connection.__enter__()
            self._reader = self._connection.call(_opened(cluster))
            self.cuts: dict[str, Cut] = {}
            if registry is not None:
                self._add_decoded(Decoder.of(registry))
            self._prepare(query, parse_as_of(as_of, Clock().now_ms()), memory_bytes)
        except BaseException:
            self.close()
            raise

    def _add_decoded(self, decoder: Decoder) -> None:
        """Give queries the function `decoded`: a key or a value in the registry's frame as the text of its JSON, any other text as
        it is, and NULL for other bytes."""

        def decoded(messages: Any) -> Any:
            try:
                return pa.array(map(decoder.shown, messages.to_pylist()), pa.string())
            except HeadgateError as error:
                self._failed(error)
                raise

        duck: Any = self._duck  # its stub knows no names of types
        duck.create_function("decoded", decoded, ["BLOB"], "VARCHAR", type="arrow")

    def _prepare(self, query: str, as_of: Any, memory_bytes: int | None) -> None:
        if memory_bytes is not None:
            self._duck.execute(f"SET memory_limit = '{memory_bytes}B'")
        # Times look the same on every machine, and the order of records without ORDER BY is not promised.
        self._duck.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        topics = self._connection.call(self._connection.admin.list_topics())
        named = named_topics(query, topics, _tables(self._duck, query))
        self.cuts = self._connection.call(take_cuts(self._connection.admin, named, as_of))
        for name, cut in self.cuts.items():
            self._duck.register(name, TopicTable(partial(self._begin, cut)))
        if LISTING.match(query):
            listed = {topic.name.lower() for topic in named}
            for topic in topics:
                if topic.name.lower() not in listed and not topic.is_internal:
                    listed.add(topic.name.lower())
                    self._duck.register(topic.name, TopicTable(partial(self._begin_later, topic, as_of)))

    def _begin(self, cut: Cut, columns: Sequence[str], filter: Any) -> Scan:
        scan = Scan(self.reader, cut, columns, filter, self._failed)
        self._connection.call(self.reader.start(scan))
        return scan

    def _begin_later(self, topic: Topic, as_of: Any, columns: Sequence[str], filter: Any) -> Scan:
        cuts = self._connection.call(take_cuts(self._connection.admin, (topic,), as_of))
        return self._begin(cuts[topic.name], columns, filter)

    def _failed(self, error: HeadgateError) -> None:
        """Keep the first error of a scan: DuckDB passes on its text only."""
        self._error = self._error or error

    def _told(self, error: Exception) -> HeadgateError:
        """The error of a scan, or DuckDB's message on one line."""
        text = one_line(str(error))
        if isinstance(error, duckdb.CatalogException) and text.startswith("Catalog Error: Table with name"):
            # DuckDB proposes a table of its own.
            text = f"{text.partition(' Did you mean')[0]} Tables are topics: `headgate topic list` shows them"
        return self._error or InvalidError(Reason.INVALID_REQUEST, text)

    # -- for callers

    def begin(self) -> pa.RecordBatchReader:
        """Run the query up to its first rows, if it does not run yet. Raises HeadgateError."""
        if self._rows is None:
            try:
                answer: Any = self._duck.execute(self._query)
                self._rows = answer.fetch_record_batch(BATCH_ROWS)
            except duckdb.Error as error:
                self.close()
                raise self._told(error) from error
        return self._rows

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return self.begin().schema

    @property
    def reader(self) -> Reader:
        assert self._reader is not None
        return self._reader

    @property
    def reads(self) -> Reads:
        return self.reader.reads

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        rows = self.begin()
        try:
            while True:
                try:
                    batch = rows.read_next_batch()
                except StopIteration:
                    return
                except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
                    raise self._told(error) from error
                yield batch
        finally:
            self.close()

    def read_all(self) -> pa.Table:
        """The rest of the rows. Raises HeadgateError."""
        return pa.Table.from_batches(list(self), self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader: Any = pa.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """End the query, and close its connections. May be repeated."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._duck.interrupt()
        try:
            if self._reader is not None:
                # DuckDB's threads may wait for batches: the end of the scans wakes them.
                self._connection.call(self._reader.close())
            self._duck.close()
        finally:
            if self._reader is not None:
                self._connection.__exit__(None, None, None)
            shutil.rmtree(self._spill, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def sql(
    query: str, *, cluster: str = DEFAULT_CLUSTER, as_of: AsOf = None, memory_bytes: int | None = None, registry: str | None = None
) -> SqlResult:
    """Run a query over topics with DuckDB. Each topic is a table under its name, with the columns `partition`, `offset`,
    `timestamp`, `timestamp_type`, `key`, `value` and `headers`.

    All tables are seen at one cut: exactly the records that a consumer of committed records can read when the query starts.

        for batch in headgate.sql('SELECT key, count(*) AS n FROM clicks WHERE partition = 1 GROUP BY key'): ...

    Args:
        query: SQL of DuckDB. A name with other characters than letters, digits and `_` stands in double quotes, as does "offset".
        cluster: ``host:grpc_port`` of any broker; with TLS and users as ``tls://...`` (`headgate.broker.client.address`).
        as_of: end the cut earlier: at an offset, at offsets by partition, or at a time; see `headgate.pipelines.sql.cut.AsOf`.
        memory_bytes: most memory of DuckDB, which then writes to temporary files; None: 80 % of the machine's.
        registry: URL of a schema registry. The function `decoded` then gives the JSON of a key or value in its frame.

    Raises:
        InvalidError: INVALID_REQUEST with DuckDB's message; UNKNOWN_TOPIC for a topic that is deleted meanwhile.
        RetryError: a broker or the store does not answer.
        ModuleNotFoundError: DuckDB is not installed; the message says how to install it.
    """
    result = SqlResult(query, cluster, as_of, memory_bytes, registry)
    result.begin()
    return result


def named_topics(query: str, topics: Sequence[Topic], tables: Set[str] | None = None) -> list[Topic]:
    """The topics that a query names; perhaps others whose name is another word of it. DuckDB's names have no case.

    Args:
        tables: the tables of the query, as it spells them; None if that is not known.

    Raises:
        InvalidError: the query names two topics whose names differ in case only, or spells their name in a third way.
    """
    words = frozenset(NAMES.findall(query))
    # In `orders.value`, the table is a part of a word.
    words |= {part for word in words for part in word.split(".")}
    folded = {word.lower() for word in words}
    found: dict[str, list[Topic]] = {}
    for topic in topics:
        if topic.name.lower() in folded:
            found.setdefault(topic.name.lower(), []).append(topic)
    return [table for name, some in found.items() for table in _spelled(name, some, words if tables is None else tables)]


def _spelled(name: str, topics: list[Topic], tables: Set[str]) -> list[Topic]:
    """Of some topics whose names differ in case only, the one that a query names, if any. Raises InvalidError."""
    if len(topics) == 1:
        return topics
    spellings = {table for table in tables if table.lower() == name}
    chosen = [topic for topic in topics if spellings == {topic.name}]
    if spellings and not chosen:
        names = ", ".join(topic.name for topic in topics)
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"names of tables have no case, so these topics have the same name: spell that of one of them. topics=`{names}`",
        )
    return chosen


def _tables(duck: Any, query: str) -> frozenset[str] | None:
    """The tables of a query, as it spells them; None if DuckDB cannot tell."""
    try:
        return frozenset(duck.get_table_names(query))
    except duckdb.Error:
        return None


def one_line(text: str) -> str:
    """DuckDB's message without the copy of the query behind it."""
    return " ".join(text.split("\n\nLINE ", 1)[0].split())


async def _opened(cluster: str) -> Reader:
    return Reader(cluster)
