"""The kinds of settings: text, choice, flag, count, size and duration; how a value of each is written, shown and checked."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import Field, field
from typing import Any, TypeAlias

from headgate.broker.runtime.errors import InvalidError, Reason

Value: TypeAlias = str | int | bool

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1000
DAY_MS = 86_400 * SECOND_MS


SIZE_UNITS = {
    "": 1, "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
DURATION_UNITS_MS = {"": 1, "ms": 1, "s": SECOND_MS, "m": 60 * SECOND_MS, "h": 3600 * SECOND_MS, "d": DAY_MS}
AUTO = -1
TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")


def text(default: str, documentation: str) -> Any:
    return field(default=default, metadata={"kind": "text", "documentation": documentation})


def choice(default: str, choices: tuple[str, ...], documentation: str) -> Any:
    return field(default=default, metadata={"kind": "choice", "choices": choices, "documentation": documentation})


def flag(default: bool, documentation: str) -> Any:
    return field(default=default, metadata={"kind": "flag", "documentation": documentation})


def number(kind: str, default: int, low: int, high: int, documentation: str) -> Any:
    return field(default=default, metadata={"kind": kind, "low": low, "high": high, "documentation": documentation})


def count(default: int, low: int, high: int, documentation: str) -> Any:
    return number("count", default, low, high, documentation)


def count_or_auto(high: int, documentation: str) -> Any:
    """A count from 0, or "auto" (the default), which is the value `AUTO`."""
    return number("auto", AUTO, 0, high, documentation)


def size(default: int, low: int, high: int, documentation: str) -> Any:
    return number("size", default, low, high, documentation)


def duration(default: int, low: int, high: int, documentation: str) -> Any:
    return number("duration", default, low, high, documentation)


def port(default: int, documentation: str) -> Any:
    return count(default, 0, 65535, documentation)


def shown(item: Field[Any], value: Value) -> str:
    """A value as a person writes it: ``8MiB``, ``30s``, ``true``."""
    kind = item.metadata["kind"]
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind == "auto" and value == AUTO:
        return "auto"
    if isinstance(value, str) or kind in ("count", "auto"):
        return str(value)
    units = ("tib", "gib", "mib", "kib") if kind == "size" else ("d", "h", "m", "s")
    table = SIZE_UNITS if kind == "size" else DURATION_UNITS_MS
    for unit in units:
        if value and value % table[unit] == 0:
            return f"{value // table[unit]}{unit[:1].upper() + 'iB' if kind == 'size' else unit}"
    return str(value) if kind == "size" else f"{value}ms"


def expected(item: Field[Any]) -> str:
    """Description of a setting's valid values, for error messages and documentation."""
    about = item.metadata
    match about["kind"]:
        case "choice":
            return "one of " + ", ".join(about["choices"])
        case "flag":
            return "true or false"
        case "text":
            return "text"
        case "count":
            return f"a whole number from {about['low']} to {about['high']}"
        case "auto":
            return f"auto, or a whole number from {about['low']} to {about['high']}"
        case "size":
            return f"a size from {shown(item, about['low'])} to {shown(item, about['high'])}, such as 64MiB"
        case _:
            return f"a duration from {shown(item, about['low'])} to {shown(item, about['high'])}, such as 250ms or 30s"


def parse_size(text: str) -> int | None:
    """Bytes of ``64MiB``, ``1.5GB``, ``1024``; None if it is not a size."""
    return _quantity(text, SIZE_UNITS)


def parse_duration_ms(text: str) -> int | None:
    """Milliseconds of ``250ms``, ``1.5s``, ``7d``, ``100``; None if it is not a duration."""
    return _quantity(text, DURATION_UNITS_MS)


def parse_time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of ``1700000000000``, ``2026-11-21T10:00:00`` (UTC by default), ``15m`` (ago)."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    # A bare number was no time, so it is no duration either: here a duration needs its unit.
    ago_ms = parse_duration_ms(text) if text[-1:].isalpha() else None
    if ago_ms is not None:
        return max(now_ms - ago_ms, 0)
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"not a time, expected ms since 1970, 2026-11-21T10:00:00 (UTC), or 15m, 2h, 7d ago. value=`{text}`",
        ) from error


def _quantity(text: str, units: Mapping[str, int]) -> int | None:
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = units.get(text.strip()[len(digits) :].strip().lower())
    whole, dot, fraction = digits.partition(".")
    if unit is None or not (whole.isascii() and whole.isdigit()) or (dot and not (fraction.isascii() and fraction.isdigit())):
        return None
    # Only whole numbers from here: a float cannot hold numbers of bytes above 2**53 exactly.
    scale: int = 10 ** len(fraction)
    value, rest = divmod(int(whole + fraction) * unit, scale)
    return value if rest == 0 else None


def checked(item: Field[Any], value: object) -> Value:
    """`value` in the field's own type and range. Raises InvalidError."""
    about = item.metadata
    kind: str = about["kind"]
    wrong = invalid(f"setting has a wrong value, expected {expected(item)}. setting=`{item.name}` value=`{value}`")
    if kind == "flag":
        if isinstance(value, str):
            value = True if value.lower() in TRUE else False if value.lower() in FALSE else value
        if not isinstance(value, bool):
            raise wrong
        return value
    if kind in ("text", "choice"):
        if not isinstance(value, str) or not value.isprintable() or (kind == "choice" and value not in about["choices"]):
            raise wrong
        return value
    if kind == "auto" and value in ("auto", AUTO):
        return AUTO
    if isinstance(value, str):
        units = {"count": {"": 1}, "auto": {"": 1}, "size": SIZE_UNITS, "duration": DURATION_UNITS_MS}[kind]
        value = _quantity(value, units) if len(value) <= 40 else None
    if not isinstance(value, int) or isinstance(value, bool) or not about["low"] <= value <= about["high"]:
        raise wrong
    return value


def check_registry(url: str) -> None:
    """Raise InvalidError for a URL that names no registry, or has a login: settings are shown and passed on as arguments."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    if url and (scheme not in ("http", "https") or not host or "@" in host):
        where = f"{scheme}://{host.rpartition('@')[2]}" if host else url
        raise invalid(
            "expected a URL without a login, such as http://host:8081; HEADGATE_REGISTRY_LOGIN has the login. "
            f"setting=`schema_registry` value=`{where}`"
        )


def invalid(message: str) -> InvalidError:
    return InvalidError(Reason.INVALID_CONFIG, message)
