"""Folds the recipes for which this broker is the keeper: looks for due ones, has them folded, and has the edits committed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.edits.topics import CUTS_MAX
from headgate.broker.cluster.gates import Gate, ParquetExtent
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.upkeep.adopted_folds import (
    FOLD_MS_MAX,
    JOB_BYTES,
    RECIPE_ITSELF,
    AdoptedJob,
    AdoptedResult,
    StuckUnit,
    by_recipe,
    is_due,
    keeper,
    parts_of,
)
from headgate.broker.engine.upkeep.file_fold_process import Worker
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("offline")

COMMIT_FOLDS = 64
"""Edits of one commit."""
STEP_EXTENTS = 5000
"""Extents of gates that are looked at in one turn of the loop: less than a millisecond."""
AGAIN_S = 600.0
"""First pause in seconds before units that could not be folded are tried again. It doubles with each failure. Their owner may put a
file back."""
AGAIN_S_MAX = 12 * 3600.0
TRIES = 3
"""Times in a row that the process may die of one recipe, for example without memory, before the recipe is put aside."""

Recipes = dict[str, list[ParquetExtent]]


@dataclass(slots=True)
class _Aside:
    """A recipe that could not be folded, or not whole: `units` stay, and the log has named `told`. `until_s`: the monotonic time in
    seconds at which all of it is tried again; 0: what is left is tried at once, without these units."""

    until_s: float
    pause_s: float = AGAIN_S
    units: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    deaths: int = 0


class AdoptedFolder:
    """Folds adopted rows, one recipe after another.

    Args:
        commit: commits edits, and returns the number of those in effect.
    """

    def __init__(
        self, lifecycle: Lifecycle, leads: Leads, worker: Worker, commit: Callable[[list[FoldToFiles]], Awaitable[int]], epoch: int
    ) -> None:
        self._lifecycle = lifecycle
        self._leads = leads
        self._worker = worker
        self._commit = commit
        self._epoch = epoch
        self._attempts = 0
        self._seen: dict[tuple[uuid.UUID, str, int], tuple[list[ParquetExtent], Recipes] | None] = {}
        """By topic, gate and time of its fill: its extents when they were looked at, and the recipes. None: it has none, and gets
        none."""
        self._aside: dict[str, _Aside] = {}
        """By path of the recipe."""

    @property
    def units_stuck(self) -> int:
        """Units that could not be folded at the last attempt."""
        return sum(len(aside.units) for aside in self._aside.values())

    async def fold_next(self) -> int:
        """Fold the next recipe that is due and can be folded. Returns the number of edits in effect; 0: none is due.

        Raises RetryError: the store or the leader does not answer, or the process died.
        """
        while (job := await self._next()) is not None:
            done = await self._fold(job)
            if done:
                return done
        return 0

    async def _next(self) -> AdoptedJob | None:
        manifest, now_s = self._lifecycle.manifest, self._lifecycle.clock.monotonic()
        looked = 0
        seen, self._seen = self._seen, {}
        found: AdoptedJob | None = None
        for topic_id, slots in list(self._leads.by_id.items()):
            config = next((log.config for log in slots if log is not None and not log.internal), None)
            for gate in list(manifest.gates.of(topic_id).values()) if config is not None else ():
                key = (topic_id, gate.id, gate.filled_ms)
                known = seen.get(key, ([], {}))
                if gate.state == "filled" and known is not None and gate.extents is not known[0]:
                    looked += len(gate.extents)
                    recipes = by_recipe(gate.extents)
                    known = (gate.extents, recipes) if recipes else None
                self._seen[key] = known
                if found is None and known is not None and config is not None and known[1]:
                    found = self._job(gate, known[1], config, now_s)
                if looked >= STEP_EXTENTS:
                    looked = 0
                    await asyncio.sleep(0)
        if found is None:
            self._forget()
        return found

    def _job(self, gate: Gate, recipes: Mapping[str, list[ParquetExtent]], config: TopicConfig, now_s: float) -> AdoptedJob | None:
        """The job for the first recipe of a gate that is due here."""
        lifecycle = self._lifecycle
        old_ms = lifecycle.cutoff_ms(config.offline_after_ms) if config.offline_after_ms >= 0 else None
        if not is_due(gate, recipes, config, old_ms):
            return None
        slots = self._leads.by_id.get(gate.topic_id, [])
        for path, extents in recipes.items():
            number = keeper(gate, extents[0])
            log = slots[number] if number < len(slots) else None
            aside = self._aside.get(path)
            if log is None or log.closed is not None or (aside is not None and now_s < aside.until_s):
                continue
            if parts := parts_of(lifecycle.manifest.readable, gate.topic_id, extents):
                self._attempts += 1
                return AdoptedJob(
                    topic_id=gate.topic_id,
                    gate_id=gate.id,
                    filled_ms=gate.filled_ms,
                    parts=parts,
                    skipped=[] if aside is None or aside.until_s else sorted(aside.units),
                    bytes_max=JOB_BYTES,
                    maker=keys.maker(self._epoch, lifecycle.incarnation_id, self._attempts) + "a",
                )
        return None

    def _forget(self) -> None:
        """Forget what is known of recipes that are gone."""
        named = {path for known in self._seen.values() if known is not None for path in known[1]}
        self._aside = {path: aside for path, aside in self._aside.items() if path in named}

    async def _fold(self, job: AdoptedJob) -> int:
        path = job.parts[0].extent.path
        aside = self._aside.setdefault(path, _Aside(0.0))
        began_s = self._lifecycle.clock.monotonic()
        try:
            result = await self._worker.fold_adopted(job)
        except RetryError as error:
            aside.deaths += 1
            if aside.deaths < TRIES:
                raise
            rows = sum(part.extent.rows for part in job.parts)
            result = AdoptedResult(stuck=[StuckUnit(RECIPE_ITSELF, rows, error.message)])
        if result.retry:
            raise RetryError(Reason.STORE_UNAVAILABLE, result.retry)
        aside.deaths = 0
        if self._lifecycle.clock.monotonic() - began_s > FOLD_MS_MAX / 2000:
            result = AdoptedResult(stuck=[StuckUnit(RECIPE_ITSELF, 0, "the fold took too long: its files may be swept")])
        done = await self._commit_all(job, result)
        self._judge(job, result, aside, done)
        return done

    async def _commit_all(self, job: AdoptedJob, result: AdoptedResult) -> int:
        at_ms, readable = self._lifecycle.clock.now_ms(), self._lifecycle.manifest.readable
        edits = [
            job.edit(part, at_ms)
            for part in result.parts
            if part.files or len(readable.cuts_of(job.topic_id, job.parts[part.place].extent.partition)) < CUTS_MAX
        ]
        done = 0
        for begin in range(0, len(edits), COMMIT_FOLDS):
            done += await self._commit(edits[begin : begin + COMMIT_FOLDS])
        return done

    def _judge(self, job: AdoptedJob, result: AdoptedResult, aside: _Aside, done: int) -> None:
        """Decide when the recipe is tried again, and name what stays in the log, once."""
        path = job.parts[0].extent.path
        aside.units = {*job.skipped, *(unit.number for unit in result.stuck)}
        if new := [unit for unit in result.stuck if unit.number not in aside.told]:
            topic = self._lifecycle.manifest.topics_by_id.get(job.topic_id)
            logger.error(
                "adopted_rows_not_folded",
                topic="" if topic is None else topic.name,
                gate=job.gate_id,
                recipe=path,
                units=len(new),
                rows=sum(unit.rows for unit in new),
                error=new[0].error,
            )
            aside.told.update(unit.number for unit in new)
        if done and (result.more or not aside.units):
            aside.until_s = 0.0
            return
        aside.until_s = self._lifecycle.clock.monotonic() + aside.pause_s
        aside.pause_s = min(2 * aside.pause_s, AGAIN_S_MAX)
