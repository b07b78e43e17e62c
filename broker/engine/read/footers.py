"""Reads the footer of a Parquet file that the manifest names. Imports pyarrow: brokers that serve no history do without it."""

from __future__ import annotations

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.log.crc import crc32c
from headgate.broker.log.parquet import FOOTER_GUESS_BYTES, ExtentFile, footer_size, read_footer
from headgate.broker.runtime.errors import CorruptError, Reason
from headgate.broker.store.interface import Readable


async def footer_of(store: Readable, key: str, extent: ParquetExtent) -> ExtentFile:
    """The content of the footer.

    Raises:
        InvalidError: NOT_FOUND: there is no such file. INVALID_RECORD: it is no file of records. CorruptError: it is not the one
            that was committed. RetryError.
    """
    size = min(extent.size_bytes, FOOTER_GUESS_BYTES)
    tail = await store.get_range(key, extent.size_bytes - size, size)
    length = footer_size(tail, extent.size_bytes)
    if length > len(tail):
        tail = await store.get_range(key, extent.size_bytes - length, length)
    footer = tail[-length:]
    if crc32c(footer) != extent.footer_crc32c:
        raise CorruptError(Reason.CORRUPT_STORE, f"a file is not the one that was committed. path=`{extent.path}`")
    return read_footer(footer, extent.size_bytes)
