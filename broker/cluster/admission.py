"""The leader's rules for edits, of its own and of other brokers, and its answer to an incarnation that was replaced. No I/O.

Each edit knows when it fits the state (`Edit.check`). Here are the rules for its author, and for edits that take effect together.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import SealIncarnation
from headgate.broker.cluster.edits.segments import SealSegment
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason


def taken_over(manifest: Manifest, incarnation_id: str, broker_id: int) -> FencedError:
    """The error that tells a running incarnation why it was replaced."""
    for other in manifest.incarnations.values():
        if other.broker_id == broker_id and other.id != incarnation_id and not other.sealed:
            # The broker was not restarted, because it still runs. For example, two machines use one store with the default
            # settings.
            return FencedError(
                Reason.FENCED,
                "another process runs as this broker: give each broker of a store its own --broker-id. "
                f"broker_id=`{broker_id}` address=`{other.host}:{other.kafka_port}`",
            )
    return FencedError(Reason.FENCED, "another broker took over from this one")


def check(manifest: Manifest, edit: Edit, by: str) -> None:
    """Check that the leader accepts an edit. An accepted edit has the effect that its author expects.

    Args:
        by: the incarnation that asks for it.

    Raises:
        FencedError: that incarnation was replaced, or the edit is about a segment or chunks of a replaced incarnation: it must
            stop.
        InvalidError: the edit does not fit the state (any more).
    """
    asking = manifest.incarnations.get(by)
    if asking is not None and asking.sealed:
        raise FencedError(Reason.FENCED, f"another broker took over from this one. incarnation=`{by}`")
    edit.check(manifest)


def touched(edits: Iterable[Edit]) -> frozenset[object] | None:
    """What a commit touches; see `Edit.touches`. None: anything, so it is a version of its own."""
    found: set[object] = set()
    for edit in edits:
        touches = edit.touches()
        if touches is None:
            return None
        found |= touches
    return frozenset(found)


def check_together(manifest: Manifest, edits: Iterable[Edit]) -> None:
    """Check that edits that are valid one by one are also valid together. Raises InvalidError.

    An incarnation must be sealed together with all of its segments, also with those that it got a moment ago. Otherwise a
    segment would stay open, and no broker would find a new lead for it.
    """
    edits = list(edits)
    over = {edit.incarnation_id for edit in edits if isinstance(edit, SealIncarnation)}
    if over:
        sealed = {edit.segment_id for edit in edits if isinstance(edit, SealSegment)}
        left = [key for key, segment in manifest.segments.open.items() if segment.incarnation_id in over and key not in sealed]
        if left:
            raise InvalidError(Reason.INVALID_REQUEST, f"the incarnation has other segments by now. segments=`{left}`")
