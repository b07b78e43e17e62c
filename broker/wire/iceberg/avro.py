"""Avro container files, as far as Iceberg's manifests need them. Only files of this module are read again, to check them.

Supported are records, arrays, unions of null and one other type, booleans, ints, longs, bytes and strings. A logical type is
written as the type below it.

Layout: https://avro.apache.org/docs/1.12.0/specification/#object-container-files
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headgate.broker.runtime.errors import CorruptError, Reason

BLOCK_BYTES = 1 << 20
"""Bytes of rows, before compression, from which a block is complete."""
BLOCK_BYTES_MAX = 64 << 20
"""Bytes of a block after decompression: far more than one row behind `BLOCK_BYTES`."""
_MAGIC = b"Obj\x01"


def encode(schema: Mapping[str, Any], row: Mapping[str, Any]) -> bytes:
    """A row, which has all fields of the schema's record, as it stands in a container file before compression."""
    out = bytearray()
    _write(out, schema, row)
    return bytes(out)


def container(schema: Mapping[str, Any], rows: Iterable[bytes], metadata: Mapping[str, str]) -> bytes:
    """A container file with these rows, compressed with deflate.

    Args:
        rows: each from `encode`.
        metadata: further entries of the file's header.
    """
    out = bytearray(_MAGIC)
    header = {"avro.schema": json.dumps(schema), "avro.codec": "deflate", **metadata}
    _write_long(out, len(header))
    for key, value in header.items():
        _write_bytes(out, key.encode())
        _write_bytes(out, value.encode())
    _write_long(out, 0)
    # The marker between blocks only has to be unlikely; equal files have equal bytes.
    sync = struct.pack("<4I", *(zlib.crc32(bytes(out), salt) for salt in range(4)))
    out += sync
    block, count = bytearray(), 0
    for row in rows:
        block += row
        count += 1
        if len(block) >= BLOCK_BYTES:
            _close(out, block, count, sync)
            block, count = bytearray(), 0
    if count:
        _close(out, block, count, sync)
    return bytes(out)


def _close(out: bytearray, block: bytearray, count: int, sync: bytes) -> None:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflater.compress(block) + deflater.flush()
    _write_long(out, count)
    _write_bytes(out, packed)
    out += sync


def _write(out: bytearray, schema: Any, value: Any) -> None:
    if isinstance(schema, list):
        null, other = schema
        assert null == "null", "unions are of null and one other type"
        _write_long(out, value is not None)
        if value is not None:
            _write(out, other, value)
        return
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            for field in schema["fields"]:
                _write(out, field["type"], value[field["name"]])
        case "array":
            if value:
                _write_long(out, len(value))
                for item in value:
                    _write(out, schema["items"], item)
            _write_long(out, 0)
        case "boolean":
            out.append(bool(value))
        case "int" | "long":
            _write_long(out, value)
        case "bytes":
            _write_bytes(out, value)
        case "string":
            _write_bytes(out, value.encode())
        case _:
            raise AssertionError(f"not a supported type: {kind}")


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_long(out, len(value))
    out += value


def _write_long(out: bytearray, value: int) -> None:
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def rows(data: bytes) -> Iterator[dict[str, Any]]:
    """The rows of a container file as `container` writes it. Raises CorruptError for any other bytes."""
    try:
        yield from _rows(data)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError, zlib.error) as error:
        raise CorruptError(Reason.CORRUPT_STORE, f"not an Avro file of Headgate: {error}") from error


def _rows(data: bytes) -> Iterator[dict[str, Any]]:
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it has another magic")
    header, at = {}, len(_MAGIC)
    count, at = _read_long(data, at)
    for _ in range(count):
        key, at = _read_bytes(data, at)
        header[key.decode()], at = _read_bytes(data, at)
    schema, at = json.loads(header["avro.schema"]), at + 1
    sync, at = data[at : at + 16], at + 16
    while at < len(data):
        count, at = _read_long(data, at)
        packed, at = _read_bytes(data, at)
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        block = inflater.decompress(packed, BLOCK_BYTES_MAX)
        if not inflater.eof or data[at : at + 16] != sync:
            raise ValueError("a block is cut off")
        at += 16
        position = 0
        for _ in range(count):
            row, position = _read(block, position, schema)
            yield row


def _read(data: bytes, at: int, schema: Any) -> tuple[Any, int]:
    if isinstance(schema, list):
        is_there, at = _read_long(data, at)
        return _read(data, at, schema[1]) if is_there else (None, at)
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            row: dict[str, Any] = {}
            for field in schema["fields"]:
                row[field["name"]], at = _read(data, at, field["type"])
            return row, at
        case "array":
            items: list[Any] = []
            while True:
                count, at = _read_long(data, at)
                if not count:
                    return items, at
                for _ in range(count):
                    item, at = _read(data, at, schema["items"])
                    items.append(item)
        case "boolean":
            return data[at] != 0, at + 1
        case "int" | "long":
            return _read_long(data, at)
        case "bytes":
            return _read_bytes(data, at)
        case "string":
            text, at = _read_bytes(data, at)
            return text.decode(), at
        case _:
            raise ValueError(f"not a supported type: {kind}")


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise ValueError("a length does not fit")
    return data[at : at + length], at + length


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number has too many bits")
