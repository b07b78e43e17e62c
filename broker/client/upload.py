"""Files with history: rows of a table as a Parquet extent in the cluster's store, and the reference that fills a gate.

No reader sees an uploaded file before a gate is filled with it; brokers delete files that no gate names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headgate.broker.client.file_ref import FileRef
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.store.interface import Keeps
from headgate.broker.store.open import PRIVATE_URLS, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.broker.log.parquet import WrittenExtent


KEEPS_MAX = 16
"""Files that are linked or copied at the same time."""


class Uploader:
    """Uploads to one store, from one thread without a running event loop; `write_extent` is its form for a single file.

    A context manager: opening a store costs more than a small file.

    Args:
        store_url: of a gate or a layout.
    """

    def __init__(self, store_url: str) -> None:
        if store_url in PRIVATE_URLS:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"only the broker itself can reach its store: use a directory or a bucket. store=`{store_url}`",
            )
        if _is_in_a_loop():
            raise InvalidError(
                Reason.INVALID_REQUEST, "an uploader waits for the store: use it in a thread (asyncio.to_thread), not a coroutine"
            )
        self._runner = asyncio.Runner()
        self._store = open_store(store_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close threads and sockets."""
        self._runner.run(self._store.close())
        self._runner.close()

    def write(self, key: str, rows: pa.Table | pa.RecordBatch, partition: int, base_offset: int) -> FileRef:
        """Upload rows of one partition in the order of their offsets; durable at the return.

        Args:
            key: in the store. An existing object is never replaced: a retry must bring the same rows.
            rows: `timestamp` (any unit; a plain integer is ms), `key` and `value` (binary or text), perhaps `headers`. A column
                `offset` is not written: the reference has the offset of the first row.
            base_offset: of the first row.

        Raises:
            InvalidError: INVALID_RECORD for wrong columns, null times or no rows; INVALID_TIMESTAMP; INVALID_REQUEST for a bad
            key; INVALID_REFERENCE when another file has this key. RetryError, FatalError: the store does not accept the file.
        """
        from headgate.broker.log.parquet import write_extent_file

        return self.put(key, write_extent_file(rows), partition, base_offset)

    def put(self, key: str, written: WrittenExtent, partition: int, base_offset: int) -> FileRef:
        """`write` for a file that exists already."""
        self._runner.run(self._create(key, memoryview(written.data).cast("B")))
        return FileRef(
            partition=partition,
            path=key,
            base_offset=base_offset,
            rows=written.rows,
            size_bytes=len(written.data),
            footer_crc32c=written.footer_crc32c,
            timestamp_min_ms=written.timestamp_min_ms,
            timestamp_max_ms=written.timestamp_max_ms,
        )

    @property
    def is_bucket(self) -> bool:
        """True if the store is a bucket of S3."""
        return self._store.url.startswith("s3://")

    def create(self, key: str, data: bytes) -> None:
        """Upload an object; durable at the return. Raises as `write`."""
        self._runner.run(self._create(key, memoryview(data)))

    def keep(self, wanted: Sequence[tuple[str, str]], *, copy: bool) -> bool:
        """Keep files or objects that lie elsewhere (`interface.Keeps`).

        Args:
            wanted: (key in the store, source) of each.

        Returns: False if the store cannot keep one of them in this way.
        """
        return self._runner.run(self._keep(wanted, copy))

    async def _keep(self, wanted: Sequence[tuple[str, str]], copy: bool) -> bool:
        store, left = self._store, iter(wanted)
        if not isinstance(store, Keeps):
            return False

        async def some() -> bool:
            for key, source in left:
                if not await store.keep(key, source, copy=copy):
                    return False
            return True

        return all(await asyncio.gather(*(some() for _ in range(KEEPS_MAX))))

    async def _create(self, key: str, data: memoryview) -> None:
        # A gate may be filled with the existing object, and readers trust its reference.
        if not await self._store.put_if_absent(key, data) and await self._store.get(key) != data:
            raise InvalidError(Reason.INVALID_REFERENCE, f"another file stands there: choose another name. path=`{key}`")


def write_extent(store_url: str, key: str, rows: pa.Table | pa.RecordBatch, partition: int, base_offset: int) -> FileRef:
    """`Uploader.write` of one file."""
    with Uploader(store_url) as uploader:
        return uploader.write(key, rows, partition, base_offset)


def _is_in_a_loop() -> bool:
    """True when an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
