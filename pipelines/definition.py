"""The definition of a flood: which rows of which source become the records of which topic."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from headgate.broker.client import DEFAULT_CLUSTER
from headgate.broker.client.gate_admin import Gate, GateState, Place
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns.stand_ins import has_no_rows
from headgate.pipelines.framing.declared import Framing
from headgate.pipelines.identity import Identity, identity, parts_of
from headgate.pipelines.late import Loaded
from headgate.pipelines.part import Part
from headgate.pipelines.rows import rows_of
from headgate.pipelines.spark_rows import EmptySourceError, Rows, records
from headgate.pipelines.ways import BY_TIME, REWRITE, check_order, check_way

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TTL_MS = 600_000
"""Time to live of a gate, in ms: the longest wait of readers after the driver died. The driver renews it three times in that
time."""
FILE_BYTES = 64 << 20
FILE_BYTES_MIN = 64 << 10
FILE_BYTES_MAX = 1 << 30

WHOLE_ROW = "to_json(struct(*))"
"""The default value: the row as JSON."""
_FLOOD_ID = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The definition of a flood. Expressions are column names or Spark SQL.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        topic: topic of the records.
        source: a path for `format`, a SQL query with format ``query``, or a DataFrame.
        format, options: as of ``spark.read``: parquet, csv, json, orc, jdbc ...; for `iceberg` see `iceberg_table.py`.
        key: decides the partition as Kafka's Java client does. Rows without a key are spread by their content.
        value: default: the row as a JSON object, as Spark's ``to_json`` writes it: without null fields, times in milliseconds.
        event_time: a timestamp or date; the record's time and order in a partition. None: the run's time, the source's order.
        key_frame, value_frame: a schema registry's frame around keys, each a column, and around values, each the row.
        headers: a map, or an array of structs of a name and a value.
        order_by: order of rows with equal event times; their content decides last, so every run gives the same order.
        where, part: the rows that are loaded.
        flood_id: letters, digits, ``.``, ``_``, ``-``. Default: a digest of `topic`, `place` and everything from `source` to
            `part`; all spellings of one path are one, and passwords, tokens and keys do not count (`identity.py`).
        place: `Place.NOW`: behind existing records, before records from now on. `Place.FRONT`: before everything, within the
            topic's `history.room`. `Place.END`: behind everything, at the moment of the commit.
        partitions: number of partitions with which a missing topic is created.
        file_bytes: target size of a Parquet file.
        ttl_ms: time that the gate outlives a dead driver.
        files: `rewrite`: the topic gets files of its own. `link`, `copy`: it adopts those of the source, by hard links or by copies
            within S3, and the flood reads keys and times only. `auto`: the first of link, copy and rewrite that can be.
        order: of a partition's records: `event_time`; or `source`, that of files, row groups and rows, as Spark's sinks write them.
            Files that are not in the order of time can be adopted so, and only adopted files can have it.
        late_behind: what of a partition is in the topic. The flood is refused unless its rows are exactly the missing ones.
        verify: read everything back as a client does and compare; the certificate then has both sides.
    """

    topic: str
    source: str | DataFrame
    cluster: str = DEFAULT_CLUSTER
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    value: str | None = None
    key_frame: Framing | None = None
    value_frame: Framing | None = None
    event_time: str | None = None
    headers: str | None = None
    order_by: tuple[str, ...] = ()
    where: str | None = None
    part: Part | None = None
    flood_id: str | None = None
    place: Place = Place.NOW
    partitions: int | None = None
    file_bytes: int = FILE_BYTES
    ttl_ms: int = TTL_MS
    files: str = REWRITE
    order: str = BY_TIME
    late_behind: Loaded | None = None
    verify: bool = False

    def id(self) -> str:
        """The flood's id. Raises InvalidError for an illegal id, and for a DataFrame without one."""
        if self.flood_id is not None:
            if _FLOOD_ID.fullmatch(self.flood_id) is None:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"flood id is 1 to 80 letters, digits, `.`, `_` and `-`. flood_id=`{self.flood_id[:100]}`",
                )
            return self.flood_id
        if not isinstance(self.source, str):
            raise InvalidError(
                Reason.INVALID_REQUEST, "a flood from a DataFrame needs a flood_id: the same flood again must have the same"
            )
        return self.identity().id

    def check(self) -> None:
        """Raises InvalidError when a value cannot be."""
        if not FILE_BYTES_MIN <= self.file_bytes <= FILE_BYTES_MAX:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"files are of {FILE_BYTES_MIN} to {FILE_BYTES_MAX} bytes. file_bytes=`{self.file_bytes}`",
            )
        if self.place not in list(Place):
            raise InvalidError(Reason.INVALID_REQUEST, f"place is {', '.join(Place)}. place=`{self.place}`")
        check_way(self.files)
        check_order(self.order, self.files)
        if self.place == Place.END and (self.files in ("link", "copy") or self.order != BY_TIME):
            raise InvalidError(Reason.INVALID_REQUEST, "files at the end of a topic are written anew: use --place now or front")
        if self.key_frame is not None and self.key is None:
            raise InvalidError(Reason.INVALID_REQUEST, "a framed key needs a key: name its column with --key")
        if self.value_frame is not None and self.value not in (None, WHOLE_ROW):
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"a framed value is the row, of which the schema names the columns: leave the value out. value=`{self.value}`",
            )
        if self.partitions is not None and self.partitions < 1:
            raise InvalidError(Reason.INVALID_PARTITIONS, f"a topic has at least one partition. partitions=`{self.partitions}`")

    @property
    def is_framed(self) -> bool:
        """True if keys or values are in a schema registry's frame."""
        return self.key_frame is not None or self.value_frame is not None

    def rows(self, spark: SparkSession, now_ms: int) -> Rows:
        """The source's rows as records. Raises InvalidError when the expressions do not fit the source.

        Args:
            now_ms: the records' time when the flood has no event time, in ms since 1970.
        """
        made = partial(
            records,
            key=self.key,
            value=self.value,
            event_time=self.event_time,
            headers=self.headers,
            order_by=self.order_by,
            where=self.where,
            part=self.part,
            now_ms=now_ms,
            options=self.options,
        )
        return rows_of(spark, self.source, self.format, self.options, made)

    def rows_if_any(self, spark: SparkSession) -> Rows | None:
        """The source's rows as records, with the present time if the flood has no event time; None for a path that is there without
        a file with content, of which Spark cannot tell the columns. Raises as `rows`."""
        try:
            return self.rows(spark, time.time_ns() // 1_000_000)
        except EmptySourceError:
            return None
        except InvalidError:
            if isinstance(self.source, str) and has_no_rows(spark, self.source, self.format, self.options):
                return None
            raise

    def identity(self) -> Identity:
        """The parts of the definition that decide the flood's records and their place."""
        return identity(
            self.topic, self.source, self.format, self.options, key=self.key, value=self.value, event_time=self.event_time,
            headers=self.headers, order_by=list(self.order_by),
            where=self.where if self.part is None else self.part.text(self.event_time, self.where), place=str(self.place),
            **({} if self.order == BY_TIME else {"order": self.order}),
            **({} if self.key_frame is None else {"key_frame": self.key_frame.identity}),
            **({} if self.value_frame is None else {"value_frame": self.value_frame.identity}),
        )  # fmt: skip

    def definition(self) -> str:
        """A digest of each part of the definition, which the gate keeps."""
        return self.identity().definition()

    def differs_from(self, gate: Gate) -> list[str]:
        """The names of the parts in which this flood differs from the flood that opened the gate."""
        return self.identity().differs_from(parts_of(gate.definition))

    def check_definition(self, gate: Gate) -> None:
        """Raises InvalidError(GATE_CONFLICT) when another flood opened the gate of this flood's id."""
        if not (differing := self.differs_from(gate)):
            return
        if not gate.definition:
            differing = ["not a flood's gate"]
        way_out = "choose another one (--flood-id)"
        if gate.state is GateState.OPEN:
            way_out += ", or wait for that flood's end, or release its gate"
        raise InvalidError(
            Reason.GATE_CONFLICT,
            f"the flood's id was used for another flood: {way_out}. "
            f"flood_id=`{gate.id}` topic=`{gate.topic}` state=`{gate.state}` differs=`{', '.join(differing)}`",
        )
