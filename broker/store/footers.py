"""Reads the footers of Parquet files that the manifest names. Imports pyarrow: brokers that serve no history do without it."""

from __future__ import annotations

from headgate.broker.log.crc import crc32c
from headgate.broker.log.parquet import FOOTER_GUESS_BYTES, ExtentFile, footer_size, read_footer
from headgate.broker.runtime.errors import CorruptError, Reason
from headgate.broker.store.interface import Readable


async def footer_of(store: Readable, key: str, *, size_bytes: int, footer_crc32c: int) -> ExtentFile:
    """The content of a file's footer.

    Args:
        size_bytes: of the whole file.
        footer_crc32c: as it was committed.

    Raises:
        InvalidError: NOT_FOUND: there is no such file. INVALID_RECORD: it is no file of records. CorruptError: it is not the one
            that was committed. RetryError.
    """
    return read_footer(await footer_bytes(store, key, size_bytes=size_bytes, footer_crc32c=footer_crc32c), size_bytes)


async def footer_bytes(store: Readable, key: str, *, size_bytes: int, footer_crc32c: int) -> bytes:
    """The bytes of a footer, of a file with any columns. Arguments and errors as for `footer_of`."""
    guess = min(size_bytes, FOOTER_GUESS_BYTES)
    tail = await store.get_range(key, size_bytes - guess, guess)
    length = footer_size(tail, size_bytes)
    if length > len(tail):
        tail = await store.get_range(key, size_bytes - length, length)
    footer = tail[-length:]
    if crc32c(footer) != footer_crc32c:
        raise CorruptError(Reason.CORRUPT_STORE, f"a file is not the one that was committed. path=`{key}`")
    return footer
