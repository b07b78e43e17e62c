"""Valid keys, prefixes and ranges. Every store refuses all others, so that code that works on one store works on all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.store.interface import Buffer, Ranges

KEY_BYTES_MAX = 800
"""S3 allows 1024; the difference is room for the prefix of the store's URL."""
NUMBER_DIGITS = 20
"""Enough for 64 bits."""
PART_BYTES_MAX = 200
"""File systems allow 255 per name."""

_PART = rf"(?!\.{{1,2}}(?:/|\Z))[A-Za-z0-9._=-]{{1,{PART_BYTES_MAX}}}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*[A-Za-z0-9._=-]{{0,{PART_BYTES_MAX}}}")
_NAME = re.compile(_PART)


def check_key(key: str) -> str:
    """The key itself. Raises InvalidError(INVALID_REQUEST) if it cannot be one."""
    if len(key) > KEY_BYTES_MAX or _KEY.fullmatch(key) is None:
        raise InvalidError(Reason.INVALID_REQUEST, f"not a key of a store. key=`{key[: KEY_BYTES_MAX + 1]!a}`")
    return key


def check_prefix(prefix: str) -> str:
    """The beginning of a key, ending anywhere; empty for all keys. Raises InvalidError(INVALID_REQUEST)."""
    if len(prefix) > KEY_BYTES_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidError(Reason.INVALID_REQUEST, f"not the beginning of a key. prefix=`{prefix[: KEY_BYTES_MAX + 1]!a}`")
    return prefix


def check_range(start: int, length: int) -> None:
    """Raises InvalidError(INVALID_REQUEST) unless both are at least 0 bytes."""
    if start < 0 or length < 0:
        raise InvalidError(Reason.INVALID_REQUEST, f"not a range of bytes. start=`{start}` length=`{length}`")


def check_ranges(ranges: Ranges) -> None:
    """Raises InvalidError(INVALID_REQUEST) unless the ranges ascend without an overlap."""
    end = 0
    for start, length in ranges:
        if start < end or length < 0:
            raise InvalidError(
                Reason.INVALID_REQUEST, f"ranges do not ascend. start=`{start}` length=`{length}` end_of_previous=`{end}`"
            )
        end = start + length


def check_listing(prefix: str, start_after: str, limit: int) -> None:
    """The arguments of `list`. Raises InvalidError(INVALID_REQUEST)."""
    check_prefix(prefix)
    check_prefix(start_after)
    if limit < 1:
        raise InvalidError(Reason.INVALID_REQUEST, f"a listing of fewer than one key was asked for. limit=`{limit}`")


def is_name(name: str) -> bool:
    """Whether the name can be a part of a key, between two slashes."""
    return _NAME.fullmatch(name) is not None


def numbered(prefix: str, number: int) -> str:
    """A key that ends in a number with a fixed number of digits, so that keys in byte order are numbers in order."""
    return f"{prefix}{number:0{NUMBER_DIGITS}d}"


def number_of(prefix: str, key: str) -> int | None:
    """The reverse of `numbered`; None if `numbered` did not make the key."""
    digits = key.removeprefix(prefix)
    return int(digits) if len(digits) == NUMBER_DIGITS and digits.isascii() and digits.isdigit() else None


def views(data: Buffer | Sequence[Buffer]) -> list[memoryview]:
    """An object's data as flat views of bytes, in order, without a copy."""
    parts = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    return [memoryview(part).cast("B") for part in parts]


def not_found(key: str) -> InvalidError:
    """The error of `get` for a missing object."""
    return InvalidError(Reason.NOT_FOUND, f"no such object. key=`{key}`")


def key_conflict(key: str) -> InvalidError:
    """The error for a key that is the directory of another one, or the reverse."""
    return InvalidError(Reason.INVALID_REQUEST, f"one key cannot be the directory of another. key=`{key}`")
