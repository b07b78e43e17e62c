"""Time that no broker saw pass, and what is old without it. No I/O.

A broker that starts alone cannot tell a pause of the whole cluster from a system clock that jumped: both are a difference between
the newest time in the store and its own clock. So the difference is noted in the manifest as a *downtime*, and downtimes do not
count towards the age of a record or a producer. Records therefore live longer by the time for which the cluster was stopped, and
never shorter. A pause up to `clock_difference_max_ms` counts as elapsed and is not noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.broker.cluster.manifest import AddChunks, Edit, Manifest, NoteDowntime


def cutoff_ms(now_ms: int, age_ms: int, downtimes: Sequence[tuple[int, int]]) -> int:
    """The append time before which everything is older than `age_ms`.

    Args:
        now_ms: the broker's time.
        downtimes: (since, until) of each, in the order in which they were noted.
    """
    cutoff = now_ms - age_ms
    for since_ms, until_ms in sorted(downtimes, key=lambda one: one[1], reverse=True):
        if cutoff >= until_ms:
            break
        cutoff -= until_ms - since_ms
    return cutoff


def newest_ms(manifest: Manifest, edits: Iterable[Edit] = ()) -> int:
    """The newest time at which a broker is known to have run; 0 where there is none.

    Args:
        edits: what a recovery has found, which the manifest does not have yet.
    """
    times = [incarnation.opened_ms for incarnation in manifest.incarnations.values()]
    times += [chunk.appended_ms for chunks in manifest.chunks.values() for chunk in chunks.values()]
    times += [chunk.appended_ms for edit in edits if isinstance(edit, AddChunks) for chunk in edit.chunks]
    return max(times, default=0)


class Beginning(NamedTuple):
    """What a broker that starts makes of the time before."""

    adopted_ms: int | None
    """The time that its clock takes in the place of its own, or None."""
    edits: list[Edit]
    """The note of the downtime, if there is one."""


def begin(started_ms: int, noted_ms: int, difference_max_ms: int) -> Beginning:
    """Compare the clock of a broker that starts with what the store says of the time before.

    A clock that is behind by more than the limit takes the store's newest time: append times never go back. Where the clock is
    ahead by more than the limit, nothing tells whether that time has passed.

    Args:
        started_ms: the clock when the broker began to count.
        noted_ms: the newest time that the store has; 0: none.
    """
    if not noted_ms or abs(started_ms - noted_ms) <= difference_max_ms:
        return Beginning(None, [])
    if started_ms < noted_ms:
        return Beginning(noted_ms, [])
    return Beginning(None, [NoteDowntime(noted_ms, started_ms)])
