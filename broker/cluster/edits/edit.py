"""What every edit of the manifest can do. No I/O."""

from __future__ import annotations

import uuid

import msgspec

from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic
from headgate.broker.runtime.errors import InvalidError, Reason


class Edit(msgspec.Struct, frozen=True):
    """A change of the manifest. Its tag is its name in the journal, for ever.

    The leader calls `check` before it writes an edit (`cluster/admission.py`). Every broker calls `apply`, also for edits that were
    written long ago.
    """

    def check(self, state: Manifest) -> None:
        """Check that an edit that is not written yet fits the state.

        Raises:
            FencedError: the edit is about an incarnation that was replaced.
            InvalidError: the edit does not fit the state, or not any more.
            RetryError: its author has to look again.
        """

    def touches(self) -> frozenset[object] | None:
        """What the edit depends on and changes. Edits that touch different things mean the same in any order, so commits of
        several brokers can be one version of the journal. None: it must be checked against the state before it."""
        return None

    def apply(self, state: Manifest) -> None:
        """Change the state. An edit about a deleted object, or one that was applied before, has no effect."""
        raise NotImplementedError


def live_topic(state: Manifest, topic_id: uuid.UUID) -> Topic:
    """A live topic. Raises InvalidError(UNKNOWN_TOPIC_ID)."""
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        raise InvalidError(Reason.UNKNOWN_TOPIC_ID, f"no topic has this id. topic_id=`{topic_id}`")
    return topic
