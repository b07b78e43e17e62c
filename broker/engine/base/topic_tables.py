"""Topics as Iceberg tables, for readers: where their objects are, and the newest metadata of a topic.

The leader writes the metadata (`control/leader_tables.py`), every broker serves it. A topic without files has no metadata yet; then
its table is empty.
"""

from __future__ import annotations

import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic
from headgate.broker.engine.base import keys
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.store.interface import Store
from headgate.broker.wire.iceberg.table import Table

KNOWN_MAX = 1000
"""Topics whose newest version is remembered: a look-up of the next one then lists only what came after."""
OFFSETS = "headgate.offsets"
"""The property with the offsets in the table: JSON, by partition, ranges [first, end)."""
TOPIC = "headgate.topic"
FILES = "headgate.files"
"""The property with the number of a table's files and a checksum of their names (`digest_of`). A new leader compares it with the
manifest."""


class Loaded(NamedTuple):
    """The newest metadata of a table, its version, and its address. Version 0: the topic has no file yet."""

    version: int
    data: bytes
    location: str


def whole_files(manifest: Manifest, topic_id: uuid.UUID) -> list[ParquetExtent]:
    """The files that a topic's table shall have: those of which consumers can read all rows."""
    partitions = manifest.files.by_topic.get(topic_id, {})
    return [extent for number in sorted(partitions) for extent in partitions[number] if is_whole(manifest, topic_id, extent)]


def is_whole(manifest: Manifest, topic_id: uuid.UUID, extent: ParquetExtent) -> bool:
    """True if consumers can read all rows of a file. Ranges that readers pass inside of it have no rows."""
    return manifest.readable.first(topic_id, extent.partition, extent.base_offset) == extent.base_offset


def digest_of(files: Iterable[ParquetExtent]) -> str:
    """The value of `FILES` for a table with these files."""
    count = sums = 0
    for file in files:
        count, sums = count + 1, sums ^ zlib.crc32(file.path.encode())
    return digest(count, sums)


def digest(count: int, sums: int) -> str:
    """The same, from the number of the files and the XOR of the CRC-32s of their paths."""
    return f"{count}-{sums:08x}"


def location_of(store_url: str, topic_id: uuid.UUID) -> str:
    """The address of a topic's table for readers of tables: `file:///...` or `s3://bucket/...`."""
    base = store_url
    if store_url.startswith("s3://"):
        parts = urlsplit(store_url)
        base = f"s3://{parts.netloc}{parts.path}".rstrip("/")
    elif not store_url.startswith("file://"):
        base = f"file://{quote(store_url)}"
    return f"{base}/{keys.topic_prefix(topic_id)}"


class Tables:
    """Reads tables' metadata from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[uuid.UUID, int] = OrderedDict()
        """The newest known version, the least recently asked for first."""

    async def load(self, topic: Topic) -> Loaded:
        """The newest metadata of a topic. Raises RetryError."""
        location = location_of(self._store.url, topic.id)
        prefix = keys.metadata_prefix(topic.id)
        version = self._known.get(topic.id, 0)
        while True:
            last = newest = keys.table_metadata(topic.id, version) if version else ""
            while found := await self._store.list(prefix, last):
                last = found[-1].key
                newest = next((entry.key for entry in reversed(found) if keys.version_of(entry.key) is not None), newest)
            if not newest:
                return Loaded(0, Table(id=topic.id, location=location).metadata({TOPIC: topic.name}, topic.created_ms), location)
            try:
                data = await self._store.get(newest)
            except InvalidError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
                version = 0  # the leader has removed it, because there are many newer ones
                continue
            version = keys.version_of(newest) or 0
            self._known[topic.id] = version
            self._known.move_to_end(topic.id)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            return Loaded(version, data, location)
