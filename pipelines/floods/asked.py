"""The floods and the partitions that a person asks for on a command line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import KEYS_MAX, first_key, keys_between, newest_key, span_of

_FORMS = {"day": "2026-01-31", "hour": "2026-01-31-23:00"}


def floods_of(floods: Sequence[Flood], names: Sequence[str]) -> list[Flood]:
    """The floods of these names; without names all. Raises InvalidError for an unknown one."""
    unknown = sorted(set(names) - {flood.name for flood in floods})
    if unknown:
        raise _refused(f"the file has no such flood. option=`--flood` value=`{unknown[0]}` floods=`{_names(floods)}`")
    return [flood for flood in floods if not names or flood.name in names]


def one_of(floods: Sequence[Flood], name: str | None) -> Flood:
    """The flood of a name; without a name the only one of the file. Raises InvalidError."""
    found = floods_of(floods, [] if name is None else [name])
    if len(found) > 1:
        raise _refused(f"the file has several floods: --flood NAME says which one is to run. floods=`{_names(found)}`")
    return found[0]


def keys_of(flood: Flood, asked: Sequence[str], now: datetime) -> list[str]:
    """The partitions that are asked for, each a key or FIRST..LAST; without any, all until now.

    Raises InvalidError: no partition, none that Dagster would offer at this time, or more than `KEYS_MAX` of them.
    """
    newest = newest_key(flood.partitions, now)
    if not asked:
        return [] if newest is None else keys_between(flood.partitions, first_key(flood.partitions), newest)[-KEYS_MAX:]
    found: set[str] = set()
    for text in asked:
        found.update(_between(flood, text, newest))
    if len(found) > KEYS_MAX:
        raise _refused(f"one command takes at most {KEYS_MAX} partitions. partitions=`{len(found)}` flood=`{flood.name}`")
    return sorted(found)


def _between(flood: Flood, text: str, newest: str | None) -> list[str]:
    partitions, given = flood.partitions, f"option=`--partition` value=`{text}`"
    begin, dots, end = text.partition("..")
    try:
        first, last = span_of(partitions, begin), span_of(partitions, end if dots else begin)
    except ValueError:
        raise _refused(
            f"expected a partition such as {_FORMS[partitions.by]} that exists in {partitions.timezone}, or FIRST..LAST. {given} "
            f"flood=`{flood.name}`"
        ) from None
    if last < first:
        raise _refused(f"the first partition is later than the last one. {given} flood=`{flood.name}`")
    if first.start < partitions.start.astimezone(UTC):
        raise _refused(f"the flood begins later. {given} start=`{partitions.start.isoformat()}` flood=`{flood.name}`")
    if partitions.end is not None and last.end > partitions.end.astimezone(UTC):
        raise _refused(f"the flood ends earlier. {given} end=`{partitions.end.isoformat()}` flood=`{flood.name}`")
    if newest is None or last > span_of(partitions, newest):
        raise _refused(f"the partition is not over yet. {given} newest=`{newest or 'none'}` flood=`{flood.name}`")
    keys = keys_between(partitions, first.key, last.key)
    if keys[-1] != last.key:
        raise _refused(f"one command takes at most {KEYS_MAX} partitions. {given} flood=`{flood.name}`")
    return keys


def _names(floods: Sequence[Flood]) -> str:
    return ", ".join(flood.name for flood in floods)


def _refused(text: str) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, text)
