"""What the tail of an ORC file says: its columns, its stripes, and the least and the greatest values of each.

pyarrow reads the rows of ORC files, but gives out neither the rows nor the statistics of stripes. The tail is a few messages of
Protocol Buffers (ORC specification v1, "File Tail"), each in chunks that may be compressed. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import cramjam

from headgate.broker.runtime.errors import InvalidError, Reason

POSTSCRIPT_BYTES_MAX = 256
"""The last byte of a file is the length of its postscript."""
TAIL_BYTES_MAX = 64 << 20
"""A longer tail belongs to no file of rows."""
PLAIN_BYTES_MAX = 256 << 20
"""The same without compression."""
BLOCK_BYTES_MAX = 16 << 20
"""Most bytes of one chunk without compression: a chunk's length has 23 bits."""
KINDS = (
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "timestamp", "list", "map", "struct",
    "union", "decimal", "date", "varchar", "char", "timestamp with local time zone",
)  # fmt: skip
"""The types of columns, by their number in the file."""
_NONE = 0
_NUMBER, _BYTES = 0, 2
"""Wire types of Protocol Buffers."""
_FIXED_SIZES = {1: 8, 5: 4}
_NUMBERS = ("uint64", "uint32", "sint64", "sint32")
_MASK = (1 << 64) - 1
_MAGIC = b"ORC"

_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "PostScript": (
        ("footer_bytes", 1, "uint64"), ("compression", 2, "uint64"), ("block_bytes", 3, "uint64"), ("metadata_bytes", 5, "uint64"),
    ),
    "Stripe": (
        ("offset", 1, "uint64"), ("index_bytes", 2, "uint64"), ("data_bytes", 3, "uint64"), ("footer_bytes", 4, "uint64"),
        ("rows", 5, "uint64"),
    ),
    "Type": (("kind", 1, "uint64"), ("subtypes", 2, "uint32*"), ("names", 3, "string*")),
    "Integers": (("low", 1, "sint64"), ("high", 2, "sint64")),
    "Texts": (("bytes", 3, "sint64"),),
    "Dates": (("low", 1, "sint32"), ("high", 2, "sint32")),
    "Binaries": (("bytes", 1, "sint64"),),
    "Times": (("low", 3, "sint64"), ("high", 4, "sint64")),
    "Statistics": (
        ("values", 1, "uint64"), ("integers", 2, "Integers"), ("texts", 4, "Texts"), ("dates", 7, "Dates"),
        ("binaries", 8, "Binaries"), ("times", 9, "Times"),
    ),
    "Footer": (
        ("stripes", 3, "Stripe*"), ("types", 4, "Type*"), ("rows", 6, "uint64"), ("statistics", 7, "Statistics*"),
        ("encryption", 10, "bytes"),
    ),
    "StripeStatistics": (("columns", 1, "Statistics*"),),
    "Metadata": (("stripes", 1, "StripeStatistics*"),),
    "StripeFooter": (("zone", 3, "string"),),
}  # fmt: skip
"""(name, number, type) of the fields that are read here. `*`: repeated. Enumerations are read as numbers."""


_EMPTY: dict[str, Any] = {"uint64": 0, "sint64": None, "sint32": None, "string": "", "bytes": b""}
"""The value of a field that is not there."""


@dataclass(frozen=True, slots=True)
class Values:
    """What is known of the values of one column. `known`: the number of those that are not null.

    `low` and `high`: numbers, days, or milliseconds since 1970, as the column's type has them; None if unknown. `text_bytes`: of
    all texts together.
    """

    known: int
    low: int | None = None
    high: int | None = None
    text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stripe:
    """Rows of a file that are stored together. `footer`: the range of bytes of its own footer. `values`: of each column."""

    rows: int
    data_bytes: int
    footer: tuple[int, int]
    values: dict[str, Values]


@dataclass(frozen=True, slots=True)
class Tail:
    """The tail of a file. `columns`: the types of the columns by name, as `KINDS` names them. `compression`, `block_bytes`: of all
    its parts."""

    columns: dict[str, str]
    stripes: tuple[Stripe, ...]
    encrypted: bool
    compression: int
    block_bytes: int


def tail_bytes(end: bytes, size_bytes: int) -> int:
    """The length of a file's tail, metadata and postscript included.

    Args:
        end: the last bytes of the file, `POSTSCRIPT_BYTES_MAX` or all of it.

    Raises InvalidError when it is no ORC file.
    """
    if not end or end[-1] >= len(end) or not end[:-1].endswith(_MAGIC):
        raise _invalid("it has no postscript")
    script = _parsed("PostScript", end[-1 - end[-1] : -1])
    size = int(script.metadata_bytes + script.footer_bytes) + end[-1] + 1
    if size > min(size_bytes, TAIL_BYTES_MAX):
        raise _invalid("its tail is longer than the file, or than a tail can be")
    return size


def read_tail(tail: bytes) -> Tail:
    """Read a file's tail, of `tail_bytes`. Raises InvalidError."""
    begin = len(tail) - 1 - tail[-1]
    script = _parsed("PostScript", tail[begin:-1])
    if script.compression != _NONE and script.compression not in _CODECS:
        raise _invalid(f"its compression is of an unknown kind: {script.compression}")
    if script.block_bytes > BLOCK_BYTES_MAX:
        raise _invalid("its blocks are too large")
    part = script.compression, int(script.block_bytes)
    footer = _parsed("Footer", _plain(tail[begin - script.footer_bytes : begin], *part))
    metadata = _parsed("Metadata", _plain(tail[: begin - script.footer_bytes], *part))
    if not footer.types or len(footer.types[0].names) != len(footer.types[0].subtypes):
        raise _invalid("it has no columns")
    root = footer.types[0]
    if any(number >= len(footer.types) or footer.types[number].kind >= len(KINDS) for number in root.subtypes):
        raise _invalid("a column is of an unknown type")
    names = dict(zip(root.names, root.subtypes, strict=True))
    if len(names) < len(root.names):
        raise _invalid("two columns have the same name")
    columns = {name: KINDS[footer.types[number].kind] for name, number in names.items()}
    known = metadata.stripes if len(metadata.stripes) == len(footer.stripes) else [None] * len(footer.stripes)
    stripes = []
    for one, statistics in zip(footer.stripes, known, strict=True):
        at = one.offset + one.index_bytes + one.data_bytes
        found = [] if statistics is None else statistics.columns
        values = {name: _values(found[number]) for name, number in names.items() if number < len(found)}
        stripes.append(Stripe(one.rows, one.data_bytes, (at, at + one.footer_bytes), values))
    return Tail(columns, tuple(stripes), bool(footer.encryption), *part)


def zone_of(tail: Tail, footer: bytes) -> str:
    """The time zone of the process that wrote a stripe; empty if the stripe's footer does not say. Raises InvalidError."""
    return str(_parsed("StripeFooter", _plain(footer, tail.compression, tail.block_bytes)).zone)


def _values(found: Any) -> Values:
    for ends in (found.integers, found.dates, found.times):
        if ends is not None and ends.low is not None and ends.high is not None:
            return Values(found.values, ends.low, ends.high)
    texts = sum(one.bytes or 0 for one in (found.texts, found.binaries) if one is not None)
    return Values(found.values, text_bytes=texts)


def _parsed(name: str, data: bytes) -> Any:
    """A message with its fields as attributes. Raises InvalidError."""
    known = {number: (field, kind) for field, number, kind in _MESSAGES[name]}
    found = SimpleNamespace(**{field: [] if kind.endswith("*") else _EMPTY.get(kind) for field, kind in known.values()})
    try:
        for number, value in _fields(data):
            field, kind = known.get(number, ("", ""))
            if not field:
                continue
            values = [_value(kind.removesuffix("*"), one) for one in (_packed(value) if kind == "uint32*" else [value])]
            if kind.endswith("*"):
                getattr(found, field).extend(values)
            else:
                setattr(found, field, values[-1])
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise _invalid("its tail is damaged") from error
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a message: a number or bytes. Raises IndexError when the message is cut off."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == _NUMBER:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if tag & 7 == _BYTES:
            size, at = _varint(data, at)
        else:
            size = _FIXED_SIZES.get(tag & 7, len(data))
        if at + size > len(data):
            raise IndexError
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, the place behind it)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & _MASK, at
        if shift > 63:
            raise IndexError


def _packed(value: Any) -> list[int]:
    """The numbers of a repeated field: one, or many in bytes."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _value(kind: str, value: Any) -> Any:
    """A field's value. Raises TypeError when it is of another kind."""
    if isinstance(value, int) != (kind in _NUMBERS):
        raise TypeError
    if kind.startswith("sint"):
        return value >> 1 ^ -(value & 1)
    if kind == "string":
        return value.decode()
    return value if kind in _NUMBERS or kind == "bytes" else _parsed(kind, value)


def _plain(data: bytes, compression: int, block_bytes: int) -> bytes:
    """A part of a file without compression. Raises InvalidError."""
    if compression == _NONE:
        return data
    parts = []
    at = size = 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        at += 3
        part = data[at : at + (head >> 1)]
        if len(part) < head >> 1:
            raise _invalid("a part of its tail is cut off")
        at += len(part)
        if not head & 1:
            out = bytearray(block_bytes)
            try:
                part = bytes(out[: _CODECS[compression](part, out)])
            except cramjam.DecompressionError as error:
                raise _invalid(f"a part of its tail cannot be decompressed: {error}") from error
        parts.append(part)
        size += len(part)
        if size > PLAIN_BYTES_MAX:
            raise _invalid("its tail is too long")
    return b"".join(parts)


_CODECS: dict[int, Callable[[bytes, bytearray], int]] = {
    1: cramjam.deflate.decompress_into,
    2: cramjam.snappy.decompress_raw_into,
    4: cramjam.lz4.decompress_block_into,
    5: cramjam.zstd.decompress_into,
}
"""The functions for each kind of compression: zlib, Snappy, LZ4, Zstandard."""


def _invalid(what: str) -> InvalidError:
    return InvalidError(Reason.INVALID_RECORD, f"the file is not ORC: {what}.")
