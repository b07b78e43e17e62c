"""Deletes the files of topics that nothing needs any more: unreadable ones, and those of failed uploads."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.files import CondemnFiles, ForgetFiles
from headgate.broker.cluster.edits.gates import TrimGates
from headgate.broker.cluster.gates import gate_of, is_url, topic_of
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.engine.base.keys import folded_by, is_of_table
from headgate.broker.engine.upkeep.adopted_folds import FOLD_MS_MAX
from headgate.broker.log.recipe import owner_of
from headgate.broker.runtime.logging import get_logger
from headgate.broker.store.interface import ObjectInfo

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

logger = get_logger("gates")

SWEEP_PAGE = 1000
"""Objects of one listing of the store."""


class SweepJournal(Protocol):
    """The journal, as the sweeper needs it (`leader_journal.LeaderJournal`)."""

    @property
    def manifest(self) -> Manifest: ...

    async def commit_made(self, make: Callable[[Manifest], Sequence[Edit]]) -> None: ...


class FileSweeper:
    """The sweeps of one term of a leader.

    Args:
        is_table_behind: True if a topic's table may still name files whose place others have taken (`LeaderTables.is_behind`).
    """

    def __init__(self, engine: Engine, journal: SweepJournal, is_table_behind: Callable[[uuid.UUID], bool]) -> None:
        self._engine = engine
        self._journal = journal
        self._is_table_behind = is_table_behind
        self._grace_ms = engine.settings.gate_file_grace_ms
        self._seen: dict[str, float] = {}
        """Files of live makers that looked old in the last sweep, and the monotonic time in seconds at which they did so first."""

    async def sweep(self, grace_ms: int) -> None:
        """Delete unused files: with rows below the logs' starts, of deleted topics, and of failed uploads.

        A file is first condemned by a commit. From then on no gate can be filled with it. A leader that was replaced without
        knowing it finds that out at this commit, before it deletes anything.

        Args:
            grace_ms: age in ms from which a file that nothing has ever named is deleted, and time after which a file is deleted
                whose place others have taken.
        """
        manifest, self._grace_ms = self._journal.manifest, grace_ms
        for topic_id in list(manifest.topics_by_id):
            gone = [file.path for file in manifest.unreadable_files(topic_id)]
            if gone:
                await self._trim(topic_id)
                await self._delete([path for path in gone if not is_url(path)])
        await self._delete([])
        last = ""
        seen, self._seen = self._seen, {}
        named = manifest.named_files()
        while objects := await self._engine.store.list("topics/", last, SWEEP_PAGE):
            last = objects[-1].key
            if self._engine.clock.doubt is not None:
                return  # without a certain clock, the age of a file is unknown
            oldest_ms = self._engine.clock.now_ms() - grace_ms
            old = [found.key for found in objects if found.modified_ms <= oldest_ms and not self._is_being_folded(found, seen)]
            await self._delete([key for key in old if self._is_nobodys(key, named)])

    async def _trim(self, topic_id: uuid.UUID) -> None:
        await self._journal.commit_made(lambda _: [TrimGates(topic_id)])

    def _is_nobodys(self, key: str, named: set[str]) -> bool:
        topic_id = topic_of(key)
        if topic_id is None or key in named or owner_of(key) in named:
            return False
        manifest = self._journal.manifest
        if topic_id not in manifest.topics_by_id:
            return True
        if is_of_table(key) or self._is_read(topic_id, key):
            return False
        gates = manifest.gates.of(topic_id)
        return gate_of(key, [gate.id for gate in gates.values() if gate.state == "open"]) is None

    def _is_being_folded(self, found: ObjectInfo, seen: Mapping[str, float]) -> bool:
        """True if a broker may still commit this file. What nobody remembers as deleted must not be named any more.

        A clock that was wrong when its broker started makes new files look old. Makers measure the time of their work, so this
        does so too.
        """
        manifest = self._journal.manifest
        maker = manifest.incarnations.get(folded_by(found.key) or "")
        if maker is None or maker.sealed or found.key in manifest.superseded:
            return False
        now_s = self._engine.clock.monotonic()
        since_s = self._seen[found.key] = seen.get(found.key, now_s)
        return (now_s - since_s) * 1000 < FOLD_MS_MAX or found.modified_ms > self._engine.clock.now_ms() - FOLD_MS_MAX

    def _is_read(self, topic_id: uuid.UUID, key: str) -> bool:
        """True if other files have taken the place of this one a short time ago, or the topic's table does not know it yet: readers
        may still read it."""
        replaced_ms = self._journal.manifest.superseded.get(owner_of(key))
        if replaced_ms is None:
            return False
        return replaced_ms > self._engine.clock.now_ms() - self._grace_ms or self._is_table_behind(topic_id)

    async def _delete(self, paths: list[str]) -> None:
        """Condemn these files, delete all condemned files, and forget them."""
        if paths:

            def make(now: Manifest) -> list[Edit]:
                # A gate that this leader did not know at the check is known here, because the commit proves that this broker leads.
                named = now.named_files()
                still = [path for path in paths if self._is_nobodys(path, named)]
                return [CondemnFiles(still)] if still else []

            await self._journal.commit_made(make)
        condemned = list(self._journal.manifest.condemned)
        if not condemned:
            return
        for path in condemned:
            await self._engine.store.delete(path)
        await self._journal.commit_made(lambda _: [ForgetFiles(condemned)])
        logger.info("files_swept", files=len(condemned))
