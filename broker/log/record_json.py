"""A record as one line of JSON, as `headgate consume --json` and the page's download write it. No I/O."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Protocol


class Fields(Protocol):
    """The part of a record that is written."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


def json_line(topic: str, partition: int, record: Fields) -> bytes:
    """One line, with its end."""
    row: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    _put(row, "key", record.key)
    _put(row, "value", record.value)
    if record.headers:
        headers: list[dict[str, object]] = []
        for name, value in record.headers:
            headers.append({})
            _put(headers[-1], "name", name.encode("utf-8", "surrogateescape"))
            _put(headers[-1], "value", value)
        row["headers"] = headers
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _put(row: dict[str, object], name: str, data: bytes | None) -> None:
    """Text for bytes that are text, and ``<name>_base64`` for others."""
    try:
        row[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        row[f"{name}_base64"] = base64.b64encode(data or b"").decode()
