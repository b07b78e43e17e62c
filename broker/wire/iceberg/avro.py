"""Avro container files, as far as Iceberg's manifests need them: written, never read.

Supported are records, arrays, unions of null and one other type, booleans, ints, longs, bytes and strings. A logical type is
written as the type below it.

Layout: https://avro.apache.org/docs/1.12.0/specification/#object-container-files
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

BLOCK_BYTES = 1 << 20
"""Bytes of rows, before compression, from which a block is complete."""
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
