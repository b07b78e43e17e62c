"""Varints of columns, as numpy computes them: the bytes of a record between its key and its value, as Arrow's binary views.

A view has up to 12 bytes in place, or refers to a buffer; here are those with bytes in place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headgate.broker.log.column_schema import Int64s

Uint64s: TypeAlias = npt.NDArray[np.uint64]
Views: TypeAlias = npt.NDArray[np.uint64]
"""Shape (n, 2): binary views, little-endian. First: length, then 4 bytes in place. Then: 8 bytes in place, or buffer, position."""

BATCH_ROWS_MAX = 1 << 13
"""Rows of a batch whose number is a varint of two bytes; more rows would save nothing."""
IN_PLACE_BYTES = 12
_IN_PLACE = np.dtype({"names": ["size", "low", "high"], "formats": ["<u4", "<u8", "<u4"], "offsets": [0, 4, 12]})
_THREE = np.uint64(3)
_ALL_BITS = (1 << 64) - 1
_64 = np.uint64(64)


def width_of(value: int) -> int:
    """Bytes of an unsigned varint."""
    return max(-(-value.bit_length() // 7), 1)


class Varint:
    """Zigzag varints of a column: their bytes as little-endian words, and how many bytes each has (a number where all have it).

    Where all values are the same there is one word for all of them.

    Args:
        low, high: bounds of the values, if they are known.
    """

    __slots__ = ("width_max", "widths", "words")

    def __init__(self, values: Int64s, low: int | None = None, high: int | None = None) -> None:
        low = int(values.min()) if low is None else low
        high = int(values.max()) if high is None else high
        if low == high:
            values = values[:1]
        signs = values << 1 if low >= 0 else (values << 1) ^ (values >> 63)
        zigzag = signs.view(np.uint64)
        self.width_max = width_of(max(2 * high, -2 * low - 1, 0))
        assert self.width_max <= 8, "the schema bounds what can be written"
        self.widths: Int64s | int = self.width_max
        self.words: Uint64s = zigzag
        if self.width_max == 1:
            return
        words = zigzag
        for index in range(1, self.width_max):
            # The bits above the byte before make room for that byte's highest bit: adding a number to itself shifts it by one bit.
            words = words + (words & np.uint64(-1 << 8 * index - 1 & _ALL_BITS))
        if low >= 0 and width_of(2 * low) == self.width_max:
            words |= np.uint64(0x80808080808080 & (1 << 8 * (self.width_max - 1)) - 1)
            self.words = words
            return
        widths: Int64s | None = None
        for index in range(1, self.width_max):
            more = (zigzag >= np.uint64(1 << 7 * index)).astype(np.uint64)
            widths = more.view(np.int64) + 1 if widths is None else widths + more.view(np.int64)
            more <<= np.uint64(8 * index - 1)
            words |= more
        assert widths is not None
        self.words, self.widths = words, widths

    @property
    def is_constant(self) -> bool:
        """True when one word serves all rows and its width is known."""
        return len(self.words) == 1 and isinstance(self.widths, int)


_NUMBERS = Varint(np.arange(BATCH_ROWS_MAX, dtype=np.int64))
_NUMBERS_OF_ONE_BYTE = 64


@lru_cache(8)
def _numbers_before(word: int, width: int) -> Varint:
    """`_NUMBERS`, each with the same varint behind it."""
    found = Varint.__new__(Varint)
    assert not isinstance(_NUMBERS.widths, int), "some take a byte, some two"
    found.widths = _NUMBERS.widths + width
    found.words = _NUMBERS.words | np.uint64(word) << (_NUMBERS.widths.view(np.uint64) << _THREE)
    return found


def numbered(counts: Int64s, key: Varint) -> list[Varint]:
    """0, 1, ... of each of some batches, one behind the other, and the key's length of each row; in one word where all are
    equal."""
    largest = int(counts.max())
    if largest > BATCH_ROWS_MAX:
        return [Varint(np.concatenate([np.arange(count, dtype=np.int64) for count in counts.tolist()])), key]
    together = key.is_constant
    numbers = _numbers_before(int(key.words[0]), key.width_max) if together else _NUMBERS
    found = Varint.__new__(Varint)
    found.width_max = width_of(2 * (largest - 1)) + key.width_max * together
    found.words = np.concatenate([numbers.words[:count] for count in counts.tolist()])
    if largest <= _NUMBERS_OF_ONE_BYTE:
        found.widths = found.width_max
    else:
        widths = numbers.widths
        assert not isinstance(widths, int), "some take a byte, some two"
        found.widths = np.concatenate([widths[:count] for count in counts.tolist()])
    return [found] if together else [found, key]


class Entries:
    """Varints of each of `rows` rows, one behind the other, as views of up to 12 bytes in place."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._done: list[Views] = []
        self._room = IN_PLACE_BYTES
        self._low: Uint64s | None = None
        self._high: Uint64s | None = None
        self._size: Int64s | int = 0

    @property
    def _varies(self) -> bool:
        """True when rows differ in the part that was added since the last view."""
        return not isinstance(self._size, int) or any(words is not None and len(words) > 1 for words in (self._low, self._high))

    @property
    def empty(self) -> bool:
        return not self._done and self._room == IN_PLACE_BYTES

    def zero(self) -> None:
        """One byte 0."""
        self._make_room(1)
        self._size = self._size + 1

    def add(self, varint: Varint) -> None:
        """Append one varint per row. This object owns its words from now on."""
        self._make_room(varint.width_max)
        crosses = IN_PLACE_BYTES - self._room > 8
        words = varint.words
        high: Uint64s | None = None
        if isinstance(self._size, int):
            bits = 8 * self._size
            low = words if not bits else words << np.uint64(bits) if bits < 64 else np.zeros_like(words)
            if crosses:
                high = words >> np.uint64(64 - bits) if 0 < bits < 64 else words << np.uint64(bits - 64)
        else:
            shift = self._size.view(np.uint64) << _THREE
            low = words << shift
            if crosses:
                # A shift by 64 or more, or by a difference that wrapped, gives 0 in numpy.
                high = words >> (_64 - shift)
                high |= words << (shift - _64)
        if self._low is None:
            self._low = low
        elif len(self._low) < len(low):
            self._low = self._low | low
        else:
            self._low |= low
        if high is not None:
            self._high = high if self._high is None else self._high | high
        self._size = self._size + varint.widths

    def views(self) -> list[Views]:
        self._close()
        return self._done

    def _make_room(self, size: int) -> None:
        if size > self._room:
            self._close()
        self._room -= size

    def _close(self) -> None:
        assert self._low is not None, "a view has a varint"
        fields = np.empty(self._rows if self._varies else 1, _IN_PLACE)
        fields["size"], fields["low"], fields["high"] = self._size, self._low, 0 if self._high is None else self._high
        views = fields.view(np.uint64).reshape(-1, 2)
        self._done.append(views if len(views) == self._rows else np.broadcast_to(views, (self._rows, 2)))
        self._room, self._low, self._high, self._size = IN_PLACE_BYTES, None, None, 0
