"""The check of topics' Iceberg tables: whether readers of a table's newest version find all of its objects.

A table names its objects by itself: metadata, a manifest list, manifests, and the topic's files. The leader writes a new version
when the files change, and the sweeps delete files some time later. If a version was not written in time, the manifest of the
cluster is whole, and readers of the table fail all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.topic_tables import FILES, Tables, digest_of, whole_files
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason
from headgate.broker.store.interface import Store
from headgate.broker.wire.iceberg.avro import rows

MISSING_MAX = 20
"""Missing files of one table that are named."""
TRIES = 3
"""Versions of a table that are looked at, if a broker writes new ones meanwhile."""


@dataclass(frozen=True, slots=True)
class TableFault:
    """A table that readers cannot read. `key`: an object that is missing or damaged, or the metadata that names missing ones."""

    topic: str
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class TableState:
    """The newest version of a table. `is_behind`: it does not have exactly the files that it should have by the manifest."""

    topic: str
    version: int
    is_behind: bool
    fault: TableFault | None


async def check_tables(store: Store, manifest: Manifest, sizes: Mapping[str, int]) -> list[TableState]:
    """Check the tables of all topics.

    Args:
        sizes: of the objects of the store, by key. An object that is missing there may have come later: it is looked up.

    Raises RetryError.
    """
    tables = Tables(store)
    return [await _check(store, manifest, tables, topic, sizes) for topic in manifest.topics_by_id.values()]


async def _check(store: Store, manifest: Manifest, tables: Tables, topic: Topic, sizes: Mapping[str, int]) -> TableState:
    state = TableState(topic.name, 0, False, None)
    for _ in range(TRIES):
        loaded = await tables.load(topic)
        if state.fault is not None and loaded.version == state.version:
            break  # the same version, once more: it is at fault
        files, fault = digest_of(()), None
        try:
            metadata = _metadata(loaded.data)
            files = metadata["properties"].get(FILES, files)
            await _check_snapshot(store, topic, metadata, sizes)
        except _FaultError as error:
            fault = TableFault(topic.name, error.key or keys.table_metadata(topic.id, loaded.version), str(error))
        state = TableState(topic.name, loaded.version, files != digest_of(whole_files(manifest, topic.id)), fault)
        if fault is None:
            break
    return state


class _FaultError(Exception):
    def __init__(self, what: str, key: str = "") -> None:
        super().__init__(what)
        self.key = key


def _metadata(data: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(data)
        found["properties"].get, found["location"].rstrip, list(found["snapshots"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _FaultError("the metadata is damaged") from error
    return found


async def _check_snapshot(store: Store, topic: Topic, metadata: dict[str, Any], sizes: Mapping[str, int]) -> None:
    """Raises _FaultError."""
    current = metadata.get("current-snapshot-id")
    lists = [snapshot.get("manifest-list", "") for snapshot in metadata["snapshots"] if snapshot.get("snapshot-id") == current]
    if not lists:
        return  # a table without a version is empty
    prefix = f"{metadata['location'].rstrip('/')}/"
    missing: list[str] = []
    for manifest in [row["manifest_path"] async for row in _rows(store, topic, prefix, lists[0])]:
        async for entry in _rows(store, topic, prefix, manifest):
            key = _key(topic, prefix, entry["data_file"]["file_path"])
            if key not in sizes and not await _is_there(store, key):
                missing.append(key)
    if missing:
        named = ", ".join(f"`{key}`" for key in missing[:MISSING_MAX])
        raise _FaultError(f"the table names files that are not there. files=`{len(missing)}` missing={named}")


async def _rows(store: Store, topic: Topic, prefix: str, url: str) -> Any:
    key = _key(topic, prefix, url)
    try:
        found: Iterator[dict[str, Any]] = rows(await store.get(key))
        for row in found:
            yield row
    except (InvalidError, CorruptError) as error:
        raise _FaultError(error.message, key) from error


def _key(topic: Topic, prefix: str, url: str) -> str:
    if not url.startswith(prefix):
        raise _FaultError(f"the table names an object outside of its topic. url=`{url}`")
    return f"{keys.topic_prefix(topic.id)}/{url.removeprefix(prefix)}"


async def _is_there(store: Store, key: str) -> bool:
    try:
        await store.get_range(key, 0, 1)
    except InvalidError as error:
        if error.reason is Reason.NOT_FOUND:
            return False
        raise _FaultError(error.message, key) from error
    return True
