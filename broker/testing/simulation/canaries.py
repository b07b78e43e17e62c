"""Bugs that can be planted on purpose: the proof that the checkers can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _no_fence_check() -> Mapping[str, object]:
    """A broker on a directory does not look for its fence between write and ack."""
    return {"broker.engine.wal_group.GroupWriter._check_fence": lambda self: None}


def _ack_before_durable() -> Mapping[str, object]:
    """Producers are told at once, not when their records are durable."""
    return {"broker.engine.engine.Engine.on_durable": lambda self, callback: callback(None)}


def _no_sequences() -> Mapping[str, object]:
    """A retry is appended once more."""
    return {"broker.log.producers.ProducerState.check": lambda self, *batch: None}


def _no_replay() -> Mapping[str, object]:
    """A failover forgets what producers sent since the last checkpoint."""
    return {"broker.engine.recovery._replay_producers": lambda frames, producers: None}


BUGS: dict[str, Callable[[], Mapping[str, object]]] = {
    "no-fence-check": _no_fence_check,
    "ack-before-durable": _ack_before_durable,
    "no-sequences": _no_sequences,
    "no-replay": _no_replay,
}
