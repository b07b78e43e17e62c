"""A group's positions: where a person wants them, and what will be read again or skipped. Pure decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.setting_kinds import parse_time_ms

OFFSET_MAX = 2**63 - 1
PLACES_MAX = 10_000
"""Positions of one change."""

Place = tuple[str, int]
"""Topic and partition."""
TARGETS = (
    ("earliest", "the earliest message"),
    ("latest", "behind the latest message"),
    ("time", "a time (UTC)"),
    ("offset", "an offset"),
    ("shift", "a shift (-100: read 100 again)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where positions go. `value`: the time in ms, the offset, or the shift."""

    kind: str
    value: int = 0


def target_of(kind: str, text: str, now_ms: int) -> Target:
    """What a person wrote. Raises InvalidError(INVALID_REQUEST)."""
    text = text.strip()
    if kind in ("earliest", "latest"):
        return Target(kind=kind)
    if kind == "time":
        if not text:
            raise InvalidError(Reason.INVALID_REQUEST, "write the time: 2026-11-27T10:00 (UTC), or 15m, 2h, 7d ago")
        return Target(kind=kind, value=parse_time_ms(text, now_ms))
    digits = text.removeprefix("-").removeprefix("+") if kind == "shift" else text
    if kind not in ("offset", "shift") or not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise InvalidError(Reason.INVALID_REQUEST, f"not a number. value=`{text[:50]}`")
    return Target(kind=kind, value=int(text))


def partitions_of(text: str) -> set[int] | None:
    """The partitions in ``0,3-5``; None for an empty text: all. Raises InvalidError(INVALID_REQUEST)."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        last = last if dash else first
        if (
            not all(text.isascii() and text.isdigit() and len(text) < 7 for text in (first, last))
            or int(last) - int(first) > PLACES_MAX
        ):
            raise InvalidError(Reason.INVALID_REQUEST, f"not partitions, expected 0,3-5. value=`{text[:50]}`")
        found.update(range(int(first), int(last) + 1))
    return found or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One position. `before`: None: the group had none. `again`, `skipped`: messages that will be read another time, or not at
    all."""

    topic: str
    partition: int
    before: int | None
    after: int
    again: int
    skipped: int


def moves(
    target: Target,
    before: Mapping[Place, int | None],
    first: Mapping[Place, int],
    end: Mapping[Place, int],
    at: Mapping[Place, int],
) -> list[Move]:
    """Where each position goes, within what can be read.

    Args:
        before: the positions; None where the group has none: such a group would begin at the earliest, or as its consumers say.
        first, end: the first offset, and the end.
        at: the offsets of a target that is a time.
    """
    found: list[Move] = []
    for place, position in before.items():
        low, high = first[place], end[place]
        match target.kind:
            case "earliest":
                wanted = low
            case "latest":
                wanted = high
            case "time":
                wanted = at[place]
            case "offset":
                wanted = target.value
            case _:
                if position is None:
                    continue  # nothing to shift
                wanted = position + target.value
        after = min(max(wanted, low), high)
        base = after if position is None else min(max(position, low), high)
        found.append(
            Move(
                topic=place[0],
                partition=place[1],
                before=position,
                after=after,
                again=max(base - after, 0),
                skipped=max(after - base, 0),
            )
        )
    return found


def by_topic(rows: Iterable[Move]) -> dict[str, list[Move]]:
    found: dict[str, list[Move]] = {}
    for row in rows:
        found.setdefault(row.topic, []).append(row)
    return found
