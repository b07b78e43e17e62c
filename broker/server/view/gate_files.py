"""The files that were uploaded for open gates so far, counted while a page is open: they show how the windows fill.

A file's key names its partition and begins with the gate's id, so one listing per partition finds exactly the gate's files.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.broker.cluster.gates import Gate, data_prefix
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.server.view import model
from headgate.broker.server.view.parts import Uploaded
from headgate.broker.store.interface import Store

logger = get_logger(__name__)

PAUSE_S = 2.0
"""Pause between two looks."""
PAUSE_PER_LOOK = 10
"""The same pause, as a multiple of the last look's duration: a slow store gets few listings."""
GATES_MAX = 8
FILES_MAX = 1000
"""Files that are counted for one partition of one gate."""


@dataclass(frozen=True, slots=True)
class _Look:
    files: dict[tuple[uuid.UUID, str], Uploaded]
    due_s: float


class GateFiles:
    """Looks in the store, beside its caller: `known` returns at once."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._last = _Look({}, 0.0)
        self._looking: asyncio.Task[None] | None = None

    def known(self, gates: Sequence[Gate]) -> dict[tuple[uuid.UUID, str], Uploaded]:
        """(files, bytes) by partition, for those of these gates that were looked at; begins the next look if it is due."""
        open_gates = [gate for gate in gates if gate.state == "open"][:GATES_MAX]
        if open_gates and self._looking is None and self._clock.monotonic() >= self._last.due_s:
            self._looking = asyncio.create_task(self._look(open_gates), name="gate-files")
            self._looking.add_done_callback(self._looked)
        return self._last.files

    async def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            await end_tasks([self._looking])

    async def _look(self, gates: Sequence[Gate]) -> None:
        began_s = self._clock.monotonic()
        found: dict[tuple[uuid.UUID, str], Uploaded] = {}
        try:
            for gate in gates:
                counts: dict[int, tuple[int, int]] = {}
                for window in gate.windows[: model.WINDOWS_MAX]:
                    prefix = f"{data_prefix(gate.topic_id)}partition={window.partition}/{gate.id}-"
                    objects = await self._store.list(prefix, "", FILES_MAX)
                    counts[window.partition] = len(objects), sum(object_.size_bytes for object_ in objects)
                found[gate.topic_id, gate.id] = counts
        except HeadgateError as error:
            logger.info("gate_files_unknown", error=error.message)
        now_s = self._clock.monotonic()
        self._last = _Look(found, now_s + max(PAUSE_S, PAUSE_PER_LOOK * (now_s - began_s)))

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.exception("gate_files_failed", error)
