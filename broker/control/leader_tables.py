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
from headgate.broker.control.catalog_process import CatalogProcess
from headgate.broker.control.leader_journal import LeaderJournal
from headgate.broker.control.table_catalog import TableCatalog
from headgate.broker.engine import keys
from headgate.broker.engine.topic_tables import OFFSETS, TOPIC, location_of
from headgate.broker.runtime.errors import HeadgateError
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
FILES = "headgate.files"
"""The property with the number of a table's files and a checksum of their names. A new leader compares it with the manifest."""


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
            one = self.files.pop(path)
            self.offsets.remove(one.partition, one.base_offset, one.end_offset)
            self.sums ^= zlib.crc32(path.encode())
        for one in fresh:
            self.files[one.path] = one
            self.offsets.add(one.partition, one.base_offset, one.end_offset)
            self.sums ^= zlib.crc32(one.path.encode())

    @property
    def digest(self) -> str:
        return f"{len(self.files)}-{self.sums:08x}"


class LeaderTables:
    """The tables of all topics, during one term."""

    def __init__(self, engine: Engine, journal: LeaderJournal) -> None:
        self.catalog = _users_catalog(engine)
        """The catalog of the user's in which the tables are registered, too; None without one."""
        self._engine = engine
        self._journal = journal
        self._known: dict[uuid.UUID, _Known] = {}
        self._added: dict[uuid.UUID, list[ParquetExtent]] = {}
        """Files that came since the last version, of known tables."""
        self._merged: dict[uuid.UUID, list[str]] = {}
        """Paths of files whose place others have taken since then."""
        self._due: dict[uuid.UUID, bool] = {}
        """Topics whose table may have changed. True: files may be gone."""
        self._shown: dict[uuid.UUID, str] = {}
        """Topics whose table was shown to the user's catalog, and their names."""
        self._writing = asyncio.Lock()
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
                    if self.catalog is not None and topic_id in self._shown:
                        self.catalog.forget(self._shown.pop(topic_id))
                    for state in (self._known, self._added, self._merged, self._due):
                        state.pop(topic_id, None)

    async def run(self) -> None:
        """Write the due tables, until the term ends."""
        self._due.update(dict.fromkeys(self._journal.manifest.files.by_topic, True))
        pause_s = min(SWEEP_S, self._grace_ms / 2000)
        sweep_s = self._engine.clock.monotonic() + pause_s
        begun = False
        while True:
            await self.write_due()
            if self.catalog is not None and not begun and not self._due:
                begun = True
                self.catalog.all_shown()
            if self._engine.clock.monotonic() >= sweep_s:
                sweep_s = self._engine.clock.monotonic() + pause_s
                await self.sweep()
            await asyncio.sleep(PAUSE_S)

    async def write_due(self) -> None:
        """Write the next version of each table that has changed. A table that cannot be written stays due."""
        async with self._writing:
            await self._write_due()

    async def _write_due(self) -> None:
        for topic_id in list(self._due):
            recheck = self._due.pop(topic_id, False)
            added, merged = self._added.pop(topic_id, []), self._merged.pop(topic_id, [])
            topic = self._journal.manifest.topics_by_id.get(topic_id)
            if topic is None:
                continue
            try:
                await self._write(topic, added, merged, recheck=recheck)
            except HeadgateError as error:
                logger.warning("table_not_written", topic=topic.name, error=error.message)
                self._known.pop(topic_id, None)
                self._due[topic_id] = True
                return  # the store does not answer; later is soon enough

    async def _write(self, topic: Topic, added: Sequence[ParquetExtent], merged: Sequence[str], *, recheck: bool) -> None:
        known = self._known.pop(topic.id, None)
        gone: set[str] = set()
        if known is None:
            known = await self._load(topic)
            if known is None:
                return
            fresh = self._whole(topic.id)
        else:
            left = set(merged)
            gone = {path for path in merged if path in known.files}
            fresh = [one for one in added if one.path not in known.files and one.path not in left and self._is_whole(topic.id, one)]
            if recheck:
                gone.update(one.path for one in known.files.values() if not self._is_whole(topic.id, one))
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
        self._show(topic, written.table)
        known.table, known.written_ms = written.table, self._engine.clock.now_ms()
        self._known[topic.id] = known
        self.versions_written += 1
        logger.info("table_written", topic=topic.name, version=written.table.version, files=len(known.files))

    def _next(self, topic: Topic, known: _Known, fresh: Sequence[ParquetExtent], gone: set[str]) -> Written:
        location = known.table.location.removesuffix(f"/{keys.topic_prefix(topic.id)}")
        added = [_data_file(location, one) for one in fresh]
        properties = {TOPIC: topic.name, OFFSETS: json.dumps(known.offsets.all()), FILES: known.digest}
        paths = {f"{location}/{path}" for path in gone}
        return known.table.change(added, paths, properties, self._engine.clock.now_ms(), known.written_ms)

    async def _load(self, topic: Topic) -> _Known | None:
        """The table as an earlier leader left it, without its manifests. None if it agrees with the manifest."""
        loaded = await self._engine.tables.load(topic)
        table = Table(id=topic.id, location=location_of(self._engine.store.url, topic.id), version=loaded.version)
        metadata = json.loads(loaded.data)
        now = _Known(table, 0)
        now.change(self._whole(topic.id), ())
        if metadata["properties"].get(FILES, _Known(table, 0).digest) == now.digest:
            self._show(topic, table)
            return None
        return _Known(table, metadata["last-updated-ms"])

    def _show(self, topic: Topic, table: Table) -> None:
        """Have the version registered in the user's catalog."""
        if self.catalog is not None and table.version:
            self._shown[topic.id] = topic.name
            path = keys.table_metadata(topic.id, table.version).removeprefix(keys.topic_prefix(topic.id))
            self.catalog.show(topic.name, f"{table.location}{path}")

    def _whole(self, topic_id: uuid.UUID) -> list[ParquetExtent]:
        partitions = self._journal.manifest.files.by_topic.get(topic_id, {})
        return [one for number in sorted(partitions) for one in partitions[number] if self._is_whole(topic_id, one)]

    def _is_whole(self, topic_id: uuid.UUID, one: ParquetExtent) -> bool:
        """True if consumers can read all rows of a file. Ranges that readers pass inside of it have no rows."""
        return self._journal.manifest.readable.first(topic_id, one.partition, one.base_offset) == one.base_offset

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


def _users_catalog(engine: Engine) -> TableCatalog | None:
    settings = engine.settings
    if not settings.table_catalog:
        return None
    prefix = location_of(engine.store.url, uuid.UUID(int=0)).removesuffix(keys.topic_prefix(uuid.UUID(int=0)))
    return TableCatalog(CatalogProcess(settings.table_catalog), settings.table_catalog_namespace, prefix)


def _data_file(location: str, one: ParquetExtent) -> DataFile:
    return DataFile(
        path=f"{location}/{one.path}",
        partition=one.partition,
        first_offset=one.base_offset,
        last_offset=one.end_offset - 1,
        timestamp_min_ms=one.timestamp_min_ms,
        timestamp_max_ms=one.timestamp_max_ms,
        rows=one.rows,
        size_bytes=one.size_bytes,
    )
