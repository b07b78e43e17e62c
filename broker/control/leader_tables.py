"""Keeps the tables of topics in step with their files: the leader is the only writer of Iceberg metadata.

Each commit of the manifest that changes folded files, or makes some unreadable, makes the topic's table due; `run` then writes the
table's next version. A file belongs to the table if consumers can read all of its rows. Where some of them are deleted, the table
leaves the file out until a fold has written it again; the property with the offsets says so.

The metadata file is put only if its version is absent. So a leader that was replaced cannot write over its successor: it loses that
race, and forgets what it knew of the table. A new leader writes the manifests of a table anew at its first change. Readers never
wait for this: until then they see the table as it was.
"""

from __future__ import annotations

import asyncio
import json
import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.edits.gates import TrimGates
from headgate.broker.cluster.edits.topics import DeleteTopic, SetLogStart, SkipRecords
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.ranges import Ranges
from headgate.broker.control.leader_journal import LeaderJournal
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.topic_tables import FILES, OFFSETS, TOPIC, digest, digest_of, is_whole, location_of, whole_files
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.wire.iceberg.table import DataFile, Table, Written

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

logger = get_logger("tables")

PAUSE_S = 1.0
"""Pause between two looks at due tables: changes within it become one version."""
GRACE_MS = 3600 * 1000
"""Age in ms at which objects of a table that no listed snapshot needs are deleted, if files that nothing names do not go earlier:
a query may still read them."""
SWEEP_S = 600.0
"""Pause between two sweeps of the objects of changed tables, in seconds."""
RETRY_S = 1.0
"""First pause, in seconds, before a table that could not be written is tried again. It doubles with each failure."""
RETRY_S_MAX = 60.0
"""Longest such pause, in seconds."""


@dataclass(slots=True)
class _Known:
    """A table as this leader wrote it. `files`: those in it, by path; `offsets`: theirs. `sums`: see `FILES`."""

    table: Table
    written_ms: int
    files: dict[str, ParquetExtent] = field(default_factory=dict)
    offsets: Ranges = field(default_factory=Ranges)
    sums: int = 0

    def change(self, fresh: Iterable[ParquetExtent], gone: Iterable[str]) -> None:
        """Add files, and remove those with these paths."""
        for path in gone:
            extent = self.files.pop(path)
            self.offsets.remove(extent.partition, extent.base_offset, extent.end_offset)
            self.sums ^= zlib.crc32(path.encode())
        for extent in fresh:
            self.files[extent.path] = extent
            self.offsets.add(extent.partition, extent.base_offset, extent.end_offset)
            self.sums ^= zlib.crc32(extent.path.encode())

    @property
    def digest(self) -> str:
        return digest(len(self.files), self.sums)


class LeaderTables:
    """The tables of all topics, during one term."""

    def __init__(self, engine: Engine, journal: LeaderJournal) -> None:
        self._engine = engine
        self._journal = journal
        self._known: dict[uuid.UUID, _Known] = {}
        self._added: dict[uuid.UUID, list[ParquetExtent]] = {}
        """Files that came since the last version, of known tables."""
        self._merged: dict[uuid.UUID, list[str]] = {}
        """Paths of files whose place others have taken since then."""
        self._due: dict[uuid.UUID, bool] = {}
        """Topics whose table may have changed. True: files may be gone."""
        self.failing: dict[uuid.UUID, tuple[float, float]] = {}
        """Tables that could not be written: the monotonic time in seconds of the next attempt, and the pause after it."""
        self._writing = asyncio.Lock()
        self._writing_now: uuid.UUID | None = None
        self.versions_written = 0

    def applied(self, edits: Iterable[Edit]) -> None:
        """Note which tables a commit changes."""
        for edit in edits:
            match edit:
                case FoldToFiles(topic_id, _, files):
                    self._added.setdefault(topic_id, []).extend(files)
                    self._merged.setdefault(topic_id, []).extend(part.path for part in edit.merged)
                    self._due.setdefault(topic_id, False)
                case SetLogStart(topic_id, _, _) | SkipRecords(topic_id, _, _, _) | TrimGates(topic_id):
                    if topic_id in self._journal.manifest.files.by_topic or topic_id in self._known:
                        self._due[topic_id] = True
                case DeleteTopic(topic_id):
                    for state in (self._known, self._added, self._merged, self._due, self.failing):
                        state.pop(topic_id, None)

    async def run(self) -> None:
        """Write the due tables, until the term ends. A store that does not answer delays tables and sweeps, and ends neither."""
        self._due.update(dict.fromkeys(self._journal.manifest.files.by_topic, True))
        pause_s = min(SWEEP_S, self._grace_ms / 2000)
        sweep_s = self._engine.clock.monotonic() + pause_s
        while True:
            await self.write_due()
            if self._engine.clock.monotonic() >= sweep_s:
                sweep_s = self._engine.clock.monotonic() + pause_s
                try:
                    await self.sweep()
                except (RetryError, InvalidError, CorruptError) as error:
                    logger.warning("tables_not_swept", error=error.message, again_s=pause_s)
            await asyncio.sleep(PAUSE_S)

    async def write_due(self) -> None:
        """Write the next version of each table that has changed. A table that cannot be written stays due, and is tried again with
        growing pauses."""
        async with self._writing:
            await self._write_due()

    def is_behind(self, topic_id: uuid.UUID) -> bool:
        """True if a topic's table may still name files that the manifest does not name any more."""
        return topic_id in self._due or topic_id == self._writing_now

    async def _write_due(self) -> None:
        now_s = self._engine.clock.monotonic()
        for topic_id in [topic_id for topic_id in self._due if topic_id not in self.failing or self.failing[topic_id][0] <= now_s]:
            recheck = self._due.pop(topic_id, False)
            added, merged = self._added.pop(topic_id, []), self._merged.pop(topic_id, [])
            topic = self._journal.manifest.topics_by_id.get(topic_id)
            if topic is None:
                continue
            self._writing_now = topic_id
            try:
                await self._write(topic, added, merged, recheck=recheck)
                self.failing.pop(topic_id, None)
            except HeadgateError as error:
                _, pause_s = self.failing.get(topic_id, (0.0, RETRY_S))
                logger.warning("table_not_written", topic=topic.name, error=error.message, again_s=pause_s)
                self._known.pop(topic_id, None)
                self._due[topic_id] = True
                self.failing[topic_id] = self._engine.clock.monotonic() + pause_s, min(2 * pause_s, RETRY_S_MAX)
                if isinstance(error, RetryError):
                    return  # the store does not answer; later is soon enough for the other tables, too
            finally:
                self._writing_now = None

    async def _write(self, topic: Topic, added: Sequence[ParquetExtent], merged: Sequence[str], *, recheck: bool) -> None:
        known = self._known.pop(topic.id, None)
        gone: set[str] = set()
        if known is None:
            known = await self._load(topic)
            if known is None:
                return
            fresh = whole_files(self._journal.manifest, topic.id)
        else:
            left = set(merged)
            gone = {path for path in merged if path in known.files}
            fresh = [
                extent
                for extent in added
                if extent.path not in known.files and extent.path not in left and self._is_whole(topic.id, extent)
            ]
            if recheck:
                gone.update(file.path for file in known.files.values() if not self._is_whole(topic.id, file))
            if not fresh and not gone:
                self._known[topic.id] = known
                return
        known.change(fresh, gone)
        written = await asyncio.get_running_loop().run_in_executor(None, self._next, topic, known, fresh, gone)
        for name, data in written.objects.items():
            await self._engine.store.put(keys.table_manifest(topic.id, name), data)
        if not await self._engine.store.put_if_absent(keys.table_metadata(topic.id, written.table.version), written.metadata):
            # Another leader wrote this version, or an earlier attempt of this one did. What is there is read first.
            self._due[topic.id] = True
            return
        known.table, known.written_ms = written.table, self._engine.clock.now_ms()
        self._known[topic.id] = known
        self.versions_written += 1
        logger.info("table_written", topic=topic.name, version=written.table.version, files=len(known.files))

    def _next(self, topic: Topic, known: _Known, fresh: Sequence[ParquetExtent], gone: set[str]) -> Written:
        location = known.table.location.removesuffix(f"/{keys.topic_prefix(topic.id)}")
        added = [_data_file(location, extent) for extent in fresh]
        properties = {TOPIC: topic.name, OFFSETS: json.dumps(known.offsets.all()), FILES: known.digest}
        paths = {f"{location}/{path}" for path in gone}
        return known.table.change(added, paths, properties, self._engine.clock.now_ms(), known.written_ms)

    async def _load(self, topic: Topic) -> _Known | None:
        """The table as an earlier leader left it, without its manifests. None if it agrees with the manifest."""
        loaded = await self._engine.tables.load(topic)
        table = Table(id=topic.id, location=location_of(self._engine.store.url, topic.id), version=loaded.version)
        try:
            metadata = json.loads(loaded.data)
            files, written_ms = metadata["properties"].get(FILES, digest_of(())), int(metadata["last-updated-ms"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # The next version stands on its own.
            logger.error("table_damaged", topic=topic.name, version=loaded.version, error=str(error))
            return _Known(table, 0)
        if files == digest_of(whole_files(self._journal.manifest, topic.id)):
            return None
        return _Known(table, written_ms)

    def _is_whole(self, topic_id: uuid.UUID, extent: ParquetExtent) -> bool:
        return is_whole(self._journal.manifest, topic_id, extent)

    @property
    def _grace_ms(self) -> int:
        return min(GRACE_MS, self._engine.settings.gate_file_grace_ms)

    async def sweep(self) -> None:
        """Delete objects of this leader's tables that no listed snapshot needs."""
        store, oldest_ms = self._engine.store, self._engine.clock.now_ms() - self._grace_ms
        if self._engine.clock.doubt is not None:
            return
        for topic_id, known in list(self._known.items()):
            kept = {keys.table_manifest(topic_id, name) for name in known.table.objects}
            newest = keys.table_metadata(topic_id, known.table.version)
            for prefix in (keys.manifests_prefix(topic_id), keys.metadata_prefix(topic_id)):
                last = ""
                while found := await store.list(prefix, last):
                    last = found[-1].key
                    for one in found:
                        if one.key not in kept and one.key < newest and one.modified_ms < oldest_ms:
                            await store.delete(one.key)


def _data_file(location: str, extent: ParquetExtent) -> DataFile:
    return DataFile(
        path=f"{location}/{extent.path}",
        partition=extent.partition,
        first_offset=extent.base_offset,
        last_offset=extent.end_offset - 1,
        timestamp_min_ms=extent.timestamp_min_ms,
        timestamp_max_ms=extent.timestamp_max_ms,
        rows=extent.rows,
        size_bytes=extent.size_bytes,
    )
