"""Time in which no broker ran, and the age of records without this time. No I/O.

A broker that starts alone cannot distinguish a pause of the whole cluster from a jump of the system clock. Both are a difference
between the newest time in the store and the broker's own clock. So the manifest notes the difference as a *downtime*, and
downtimes do not count towards the age of a record or a producer. Records therefore live longer by the time for which the cluster
was stopped, and never shorter. A pause up to `clock_difference_max_ms` counts as elapsed time and is not noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.broker.cluster.edits.brokers import NoteDowntime
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import AddChunks
from headgate.broker.cluster.manifest import Manifest


def cutoff_ms(now_ms: int, age_ms: int, downtimes: Sequence[tuple[int, int]]) -> int:
    """The append time in ms before which all records are older than `age_ms`.

    Args:
        now_ms: the broker's wall-clock time.
        downtimes: (since, until) of each in ms, in the order of their noting.
    """
    cutoff = now_ms - age_ms
    for since_ms, until_ms in sorted(downtimes, key=lambda downtime: downtime[1], reverse=True):
        if cutoff >= until_ms:
            break
        cutoff -= until_ms - since_ms
    return cutoff


def newest_ms(manifest: Manifest, edits: Iterable[Edit] = ()) -> int:
    """The newest wall-clock time in ms at which a broker is known to have run; 0 if unknown.

    Args:
        edits: found by a recovery, and not in the manifest yet.
    """
    times = [incarnation.opened_ms for incarnation in manifest.incarnations.values()]
    times += [chunk.appended_ms for chunks in manifest.chunks.values() for chunk in chunks.values()]
    times += [chunk.appended_ms for edit in edits if isinstance(edit, AddChunks) for chunk in edit.chunks]
    return max(times, default=0)


def is_clock_right(ahead_ms: int | None, difference_max_ms: int) -> bool:
    """True if the clock of a starting broker agrees with the store's own clock. Then `begin` is not needed.

    Args:
        ahead_ms: milliseconds by which the broker's clock is ahead of the store's. None: the store has no clock of its own.
        difference_max_ms: differences up to this one are normal.
    """
    return ahead_ms is not None and abs(ahead_ms) <= difference_max_ms


class Beginning(NamedTuple):
    """The conclusions of a starting broker about the time before its start."""

    adopted_ms: int | None
    """The time in ms that its clock takes instead of its own, or None."""
    edits: list[Edit]
    """The note of the downtime, if there is one."""


def begin(started_ms: int, noted_ms: int, difference_max_ms: int) -> Beginning:
    """Compare the clock of a starting broker with the newest time in the store.

    A clock that is behind by more than the limit takes the store's newest time, because append times never go back. If the clock
    is ahead by more than the limit, the broker cannot know whether that time has really passed.

    Args:
        started_ms: the clock at the broker's start.
        noted_ms: the newest time in the store; 0: none.
        difference_max_ms: the limit.
    """
    if not noted_ms or abs(started_ms - noted_ms) <= difference_max_ms:
        return Beginning(None, [])
    if started_ms < noted_ms:
        return Beginning(noted_ms, [])
    return Beginning(None, [NoteDowntime(noted_ms, started_ms)])
