"""The form of a record on stdout (`headgate consume`), and its JSON form on stdin (`headgate produce --json`)."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headgate.broker.cli import output
from headgate.broker.client import ConsumerRecord
from headgate.broker.log.record_json import json_line
from headgate.broker.runtime.errors import InvalidError, Reason

if TYPE_CHECKING:
    from headgate.broker.schemas.decoder import Decoder

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Part: TypeAlias = "bytes | Callable[[ConsumerRecord], bytes | None]"
"""A part of a format: literal bytes, or what to take from the record."""

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_VERBS: dict[str, Callable[[ConsumerRecord], bytes | None]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key,
    "K": lambda record: b"%d" % _size(record.key),
    "v": lambda record: record.value,
    "s": lambda record: record.value,
    "S": lambda record: b"%d" % _size(record.value),
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": lambda record: b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (b"null" if value is None else value) for name, value in record.headers
    ),
    "%": lambda record: b"%",
}
"""kcat's letters; `v` is also the value."""


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def parse_pattern(pattern: str) -> list[Part]:
    """The parts of a format such as ``%t %p %o %k %v\\n``. Raises InvalidError for an unknown letter."""
    parts: list[Part] = []
    for text in re.findall(r"%.?|\\.?|[^%\\]+", pattern, re.DOTALL):
        if text[0] not in "%\\":
            parts.append(os.fsencode(text))
            continue
        known: Part | None = _VERBS.get(text[1:]) if text[0] == "%" else _ESCAPES.get(text[1:])
        if known is None:
            letters = " ".join(f"%{letter}" for letter in _VERBS)
            raise InvalidError(
                Reason.INVALID_REQUEST, f"format has an unknown part, expected {letters} \\n \\t \\r \\0 \\\\. part=`{text}`"
            )
        parts.append(known)
    return parts


class Printer:
    """Writes records to stdout. For a terminal, control characters are escaped; for any other output, bytes are written
    unchanged."""

    def __init__(
        self, as_json: bool, key_separator: bytes | None, pattern: str | None = None, decoder: Decoder | None = None
    ) -> None:
        """`decoder`: of keys and values in a registry's frame."""
        self._decoder = decoder
        self._line: Callable[[ConsumerRecord], bytes] = self._json if as_json else self._plain
        if pattern is not None:
            self._parts = parse_pattern(pattern)
            self._line = self._formatted
        self._separator = key_separator
        self._terminal = sys.stdout.isatty()

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Print some records, and flush them to the reader now. Raises BrokenPipeError if the reader has gone."""
        if (decoder := self._decoder) is not None:
            records = [record._replace(key=decoder.text(record.key), value=decoder.text(record.value)) for record in records]
        sys.stdout.buffer.write(b"".join(map(self._line, records)))
        sys.stdout.buffer.flush()

    def _formatted(self, record: ConsumerRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else self._shown(part(record)) for part in self._parts)

    def _plain(self, record: ConsumerRecord) -> bytes:
        value = self._shown(record.value)
        if self._separator is None:
            return value + b"\n"
        return self._shown(record.key) + self._separator + value + b"\n"

    def _shown(self, data: bytes | None) -> bytes:
        if data is None:
            return b"null"
        if not self._terminal:
            return data
        return output.escaped(data.decode(errors="backslashreplace"), keep="\t").encode()

    @staticmethod
    def _json(record: ConsumerRecord) -> bytes:
        return json_line(record.topic, record.partition, record)


def parse_json(line: bytes, number: int) -> tuple[bytes | None, bytes | None, Headers, int | None]:
    """(key, value, headers, time in ms) of an object as `consume --json` prints it; headers may also be an object.

    A value that is no text is written as JSON. The record's earlier topic, partition and offset are ignored. Raises InvalidError.
    """
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise TypeError("it is no object")
        unknown = row.keys() - _FIELDS
        if unknown:
            raise TypeError(f"it has unknown fields: {', '.join(sorted(unknown))}")
        headers = row.get("headers") or []
        if isinstance(headers, dict):
            headers = [{"name": name, "value": value} for name, value in headers.items()]
        made = tuple((os.fsdecode(_taken(header, "name") or b""), _taken(header, "value")) for header in headers)
        timestamp_ms = row.get("timestamp_ms")
        if timestamp_ms is not None and (isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int)):
            raise TypeError("timestamp_ms is no whole number")
        return _taken(row, "key"), _taken(row, "value"), made, timestamp_ms
    except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError) as error:
        raise InvalidError(Reason.INVALID_RECORD, f"line is no record in JSON: {error}. line=`{number}`") from error


_FIELDS = frozenset(("topic", "partition", "offset", "timestamp_ms", "key", "key_base64", "value", "value_base64", "headers"))


def _taken(row: dict[str, object], name: str) -> bytes | None:
    """The bytes of a field that `_put` wrote."""
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(str(encoded), validate=True)
    value = row.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
