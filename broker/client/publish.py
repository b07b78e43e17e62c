"""Publishing a table by reference: its rows go to the store as Parquet, and a broker receives their places."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from headgate.broker.client.gate_admin import FileRef, Gate, GateAdmin
from headgate.broker.client.upload import Uploader
from headgate.broker.cluster.gates import check_gate_id
from headgate.broker.runtime.errors import InvalidError, Reason

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES = 256 << 20
"""Bound of one file's rows, in bytes of memory."""
DIGEST_BYTES = 16
"""Length of the digest in a file's name."""


async def publish_table(cluster: str, topic: str, rows: pa.Table | pa.RecordBatch, *, publish_id: str, timeout_ms: int) -> Gate:
    """Upload a table as Parquet files, and commit them to a topic as one gate. `Producer.publish_table` calls this.

    Args:
        cluster: bootstrap addresses, ``host:port`` with commas between.
        publish_id: the gate's id. A second call with it and the same rows adds nothing.
        timeout_ms: for each call of the cluster.

    Raises:
        HeadgateError: with the Reason of the refusal.
    """
    check_gate_id(publish_id)  # before the first upload
    async with GateAdmin(cluster, timeout_ms=timeout_ms) as gates:
        layout = await gates.layout(topic)

        async def publish(partitions: int) -> Gate:
            files = await asyncio.to_thread(upload_table, layout.store_url, layout.prefix, rows, partitions, publish_id)
            return await gates.publish(topic, files, gate_id=publish_id)

        try:
            return await publish(len(layout.partitions))
        except InvalidError as error:
            if error.reason is not Reason.GATE_CONFLICT:
                raise
            known = await gates.describe(topic, publish_id)
            if len(known.windows) == len(layout.partitions):
                raise
        # The topic gained partitions since these or other rows were published; keys went to other partitions then.
        return await publish(len(known.windows))


def upload_table(store_url: str, prefix: str, rows: pa.Table | pa.RecordBatch, partitions: int, publish_id: str) -> list[FileRef]:
    """Upload the rows of each partition. Their offsets count from 0. A file's name is a digest of its content."""
    from headgate.broker.log.column_partitioner import split_by_partition
    from headgate.broker.log.parquet import write_extent_file

    table = _plain(rows)
    parts = split_by_partition(table, _partitions_of(table, partitions))
    if not table.num_rows:
        raise InvalidError(Reason.INVALID_RECORD, "a table that is published has at least one row. rows=`0`")
    files: list[FileRef] = []
    with Uploader(store_url) as uploader:
        for partition, part in parts:
            if "partition" in part.column_names:
                part = part.drop_columns(["partition"])
            step = max(part.num_rows * FILE_BYTES // max(part.nbytes, 1), 1)
            for number, start in enumerate(range(0, part.num_rows, step)):
                written = write_extent_file(part.slice(start, step))
                digest = blake2b(written.data, digest_size=DIGEST_BYTES).hexdigest()
                key = f"{prefix}partition={partition}/{publish_id}-{number:03d}-{digest}.parquet"
                files.append(uploader.put(key, written, partition, start))
    return files


def _plain(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """The columns that are published. Views and dictionaries become plain bytes, because pyarrow cannot select rows of views."""
    import pyarrow as pa

    from headgate.broker.log.history_columns import check_columns

    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    check_columns(rows.schema)
    content = pa.large_binary()
    headers = pa.large_list(pa.struct([pa.field("key", content), pa.field("value", content)]))
    plain = rows.select([name for name in ("partition", "timestamp", "key", "value", "headers") if name in rows.column_names])
    for number, field in enumerate(plain.schema):
        if pa.types.is_binary_view(field.type) or pa.types.is_string_view(field.type) or pa.types.is_dictionary(field.type):
            plain = plain.set_column(number, field.name, plain.column(number).cast(content))
        elif field.name == "headers" and not pa.types.is_null(field.type):
            plain = plain.set_column(number, field.name, plain.column(number).cast(headers))
    return plain


def _partitions_of(rows: pa.Table, partitions: int) -> Any:
    """The partition of each row: by the column `partition`, else by key; rows without a key are spread in runs of equal length."""
    import numpy as np

    from headgate.broker.log.column_partitioner import partitions_for_keys

    if "partition" in rows.column_names:
        column = rows.column("partition")
        numbers = column.to_numpy() if not column.null_count else np.array([-1])
        if not np.issubdtype(numbers.dtype, np.integer) or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < partitions):
            raise InvalidError(
                Reason.INVALID_REQUEST, f"column `partition` holds numbers below the topic's. partitions=`{partitions}`"
            )
        return numbers.astype(np.int64)
    spread = np.arange(rows.num_rows, dtype=np.int64) * partitions // max(rows.num_rows, 1)
    found: list[Any] = []
    start = 0
    for batch in rows.select(["key"]).to_batches():
        numbers = partitions_for_keys(_binary(batch.column("key")), partitions)
        found.append(np.where(numbers < 0, spread[start : start + len(numbers)], numbers))
        start += len(numbers)
    return np.concatenate(found) if found else spread


def _binary(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.binary())
