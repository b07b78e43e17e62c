"""From batches to what a person reads: which records are wanted, and how keys, values and headers are shown. No I/O, no HTML.

It runs in a thread, and gives up the interpreter often: searches look at windows of some hundred KiB. Most batches of a search are
never decoded: one that does not have the wanted bytes anywhere has no record with them.

Nothing here trusts a batch. It is decompressed into a bounded buffer, decoded for a bounded time, and what cannot be read becomes a
sentence that says which offsets are not shown, and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from headgate.broker.log.batch import CODEC_MASK, CODEC_MAX, CONTROL, HEADER_BYTES, Buffer, crc_matches, parse_header, split
from headgate.broker.log.compression import Codec, decompress
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.errors import InvalidError, Reason

BATCH_BYTES_MAX = 16 << 20
"""Largest batch, also after decompression, that is decoded for a person. Producers send 1 MiB by default."""
DECODE_S = 1.0
"""Longest time for the records of one answer of a broker: some 300,000 records."""
CHECK_EVERY = 512
"""Records between two looks at the clock."""
WINDOW_BYTES = 256 << 10
"""Bytes that are searched before other threads get the interpreter: a fifth of a millisecond."""
SHOWN_BYTES_MAX = 64 << 10
"""Bytes of one value that are shown."""
BRIEF_BYTES_MAX = 1 << 10
"""Bytes of one value, once a page has shown `PAGE_BYTES_MAX`; and of a key and a header always."""
PAGE_BYTES_MAX = 1 << 20
HEX_BYTES_MAX = 4 << 10
HEADERS_MAX = 50
"""Headers of one record that are shown."""
NESTED_MAX = 64
"""Deepest JSON that is laid out: each level indents all lines in it."""
PREVIEW_CHARS = 200

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The records that a person looks for. None: any. `text`: a part of the key or the value."""

    key: bytes | None = None
    text: bytes | None = None

    @property
    def is_all(self) -> bool:
        return self.key is None and self.text is None

    def has(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        return self.text is None or self.text in (record.value or b"") or self.text in (record.key or b"")


ALL = Wanted()


@dataclass(slots=True)
class Look:
    """What some batches have. `first_offset`: of the first batch, which may lie before the wanted offset. `next_offset`: behind the
    last one that was looked at."""

    first_offset: int = -1
    next_offset: int = -1
    records: list[Record] = field(default_factory=list)
    unread: list[tuple[int, int, str]] = field(default_factory=list)
    """Offsets that cannot be shown: the first, one more than the last, and why."""


def look_at(batches: memoryview, low: int, high: int, most: int, wanted: Wanted, now_s: Callable[[], float]) -> Look:
    """The first `most` wanted records in [low, high) of whole batches, back to back."""
    look, until_s = Look(), now_s() + DECODE_S
    for batch in split(batches):
        header = parse_header(batch)
        if look.first_offset < 0:
            look.first_offset = header.base_offset
        if header.base_offset >= high or len(look.records) >= most or (now_s() >= until_s and look.next_offset >= 0):
            break
        look.next_offset = header.next_offset
        if header.next_offset <= low or header.attributes & CONTROL:
            continue
        try:
            _take(batch, low, high, most, wanted, look, now_s, until_s)
        except InvalidError as error:
            look.unread.append((max(header.base_offset, low), min(header.next_offset, high), error.message))
    return look


def _take(
    batch: memoryview,
    low: int,
    high: int,
    most: int,
    wanted: Wanted,
    look: Look,
    now_s: Callable[[], float],
    until_s: float,
) -> None:
    """Add the wanted records of one batch. Raises InvalidError."""
    if len(batch) > BATCH_BYTES_MAX:
        raise _unread(f"the batch has {len(batch):,} bytes, and at most {BATCH_BYTES_MAX:,} are decoded here")
    if not crc_matches(batch):
        raise _unread("the batch is damaged: its checksum is wrong")
    needle = wanted.key or wanted.text
    if needle and not _may_have(batch, needle):
        return
    for count, record in enumerate(iter_records(batch, decompressed_bytes_max=BATCH_BYTES_MAX)):
        if not count % CHECK_EVERY and now_s() >= until_s:
            raise _unread(f"the batch has too many records to decode all of them in {DECODE_S:g} s")
        if record.offset >= high:
            return
        if record.offset >= low and wanted.has(record):
            look.records.append(record)
            if len(look.records) >= most:
                look.next_offset = record.offset + 1
                return


def _may_have(batch: memoryview, needle: bytes) -> bool:
    codec = parse_header(batch).attributes & CODEC_MASK
    if codec > CODEC_MAX:
        return True  # decoding it says what is wrong
    return contains(decompress(Codec(codec), batch[HEADER_BYTES:], BATCH_BYTES_MAX), needle)


def contains(data: Buffer, needle: bytes) -> bool:
    """Whether bytes have a part, window by window."""
    view = memoryview(data)
    return any(needle in bytes(view[start : start + WINDOW_BYTES + len(needle) - 1]) for start in range(0, len(view), WINDOW_BYTES))


def _unread(why: str) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, why)


# -- how it is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Bytes, as a person reads them. `kind`: null, empty, json, text or hex. `cut`: there is more than what is shown."""

    kind: str
    text: str = ""
    preview: str = ""
    size_bytes: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message. `at_ms`: its time, or -1."""

    partition: int
    offset: int
    at_ms: int
    time: str
    key: Shown
    value: Shown
    headers: tuple[tuple[Shown, Shown], ...]
    headers_total: int


def shown(data: bytes | None, bytes_max: int) -> Shown:
    """Bytes in the form that suits them: laid out as JSON, as text, else in hex."""
    if data is None:
        return Shown(kind="null", preview="null")
    if not data:
        return Shown(kind="empty", preview="empty")
    part = data[:bytes_max]
    text = _text(part, is_whole=len(part) == len(data))
    if text is None:
        dump = _hex(data[: min(bytes_max, HEX_BYTES_MAX)])
        cut = len(data) > min(bytes_max, HEX_BYTES_MAX)
        preview = data[:32].hex(" ") + (" ..." if len(data) > 32 else "")
        return Shown(kind="hex", text=dump, preview=preview, size_bytes=len(data), cut=cut)
    preview = text[: PREVIEW_CHARS + 1]
    preview = preview[:PREVIEW_CHARS] + "..." if len(preview) > PREVIEW_CHARS else preview
    laid_out = _laid_out(part) if len(part) == len(data) else None
    if laid_out is not None:
        return Shown(kind="json", text=laid_out, preview=preview, size_bytes=len(data))
    return Shown(kind="text", text=text, preview=preview, size_bytes=len(data), cut=len(part) < len(data))


def rows(found: Sequence[tuple[int, Record]]) -> list[Row]:
    """Messages as they are shown, of (partition, record)."""
    made: list[Row] = []
    used = 0
    for partition, record in found:
        value = shown(record.value, SHOWN_BYTES_MAX if used < PAGE_BYTES_MAX else BRIEF_BYTES_MAX)
        headers = tuple(
            (shown(name.encode("utf-8", "surrogateescape"), BRIEF_BYTES_MAX), shown(content, BRIEF_BYTES_MAX))
            for name, content in record.headers[:HEADERS_MAX]
        )
        key = shown(record.key, BRIEF_BYTES_MAX)
        used += len(key.text) + len(value.text) + sum(len(name.text) + len(content.text) for name, content in headers)
        made.append(
            Row(
                partition=partition,
                offset=record.offset,
                at_ms=record.timestamp_ms,
                time=time_text(record.timestamp_ms),
                key=key,
                value=value,
                headers=headers,
                headers_total=len(record.headers),
            )
        )
    return made


def time_text(at_ms: int) -> str:
    """``2026-11-27 07:37:22.123``, UTC; the number itself for a time that no calendar has."""
    if at_ms < 0:
        return "no time" if at_ms == -1 else f"{at_ms} ms"
    try:
        moment = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03}"


def _text(data: bytes, *, is_whole: bool) -> str | None:
    """UTF-8 without control characters; None for other bytes. Of a part the last character may be cut."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return None if _CONTROLS.search(text) else text


def _laid_out(data: bytes) -> str | None:
    """JSON on several lines, its numbers and texts as they are; None for other text, and for a single number or text."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    if data.count(b"[") + data.count(b"{") > NESTED_MAX:
        depth = 0
        for found in _BRACKETS.finditer(data):
            depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
            if depth > NESTED_MAX:
                return None
    try:
        return msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, RecursionError):
        return None


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)
