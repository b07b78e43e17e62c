"""Reads a store beside its brokers, changes nothing, and compares it with the manifest.

A cluster goes on while it is looked at: chunks are folded, files come and go. So the manifest is read before and after the listing,
and a missing or damaged object counts only if the manifest still refers to it afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headgate.broker.cluster.gates import ParquetExtent, is_url
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.catalog import read_manifest
from headgate.broker.engine.read.encoding import check_unchanged, encode_unit
from headgate.broker.engine.read.references import References, as_extent
from headgate.broker.engine.read.units import unit_bytes
from headgate.broker.engine.upkeep.chunk_fold import check_chunk
from headgate.broker.engine.upkeep.inventory import Judged, Kind, Need, Records, Standing, judge, needs
from headgate.broker.log.adopted import described
from headgate.broker.log.compression import Codec
from headgate.broker.log.parquet import read_group
from headgate.broker.log.recipe import Wanted, piece_of
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason
from headgate.broker.store.footers import footer_of
from headgate.broker.store.interface import Files, ObjectInfo, Store

LIST_KEYS = 1000
"""Objects of one listing request: S3 gives no more."""


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is missing or damaged. `records`: those that consumers cannot read because of it. An index that is an object
    of its own costs none, because brokers make it again. A checkpoint of producers costs none, but its partitions do not open."""

    key: str
    what: str
    records: tuple[Records, ...]
    kind: Kind


@dataclass(slots=True)
class Inspection:
    """What was found. `judged`: every object, by key. `unreadable`: batches that were stored as they came, and that consumers
    cannot read (`headgate topic check`)."""

    manifest: Manifest
    judged: list[Judged] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    unreadable: list[Records] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if every object that the cluster refers to is there and intact."""
        return not self.damages


async def take_stock(store: Store, oldest_ms: int) -> Inspection:
    """List the store and judge each object.

    Args:
        oldest_ms: see `inventory.judge`.
    """
    before = needs(await read_manifest(store))
    found: list[ObjectInfo] = []
    while page := await store.list("", found[-1].key if found else "", LIST_KEYS):
        found += page
    manifest = await read_manifest(store)
    # What only the manifest from before the listing refers to was folded or swept meanwhile, and was needed when it was listed.
    needed = {**before, **needs(manifest)}
    return Inspection(manifest, [_foreign(one) or judge(one, manifest, needed, oldest_ms) for one in found])


def _foreign(found: ObjectInfo) -> Judged | None:
    """The verdict on an object among those of a WAL that no broker made; None for all others."""
    if not found.key.startswith(keys.WAL) or keys.is_of_wal(found.key):
        return None
    return Judged(found, Kind.FOREIGN, Standing.NEEDED, "not an object of Headgate")


async def check_store(
    store: Store, references: References, oldest_ms: int, *, deep: bool, progress: Callable[[int, int], None]
) -> Inspection:
    """Check that every object that the manifest refers to is there and intact.

    Args:
        references: finds and checks files of history.
        oldest_ms: see `inventory.judge`.
        deep: also read every record: compare each batch and each page of a file with its checksum. Otherwise sizes, indexes' sizes
            and the footers of files.
        progress: called with the number of checked objects and of all.
    """
    stock = await take_stock(store, oldest_ms)
    sizes = {judged.found.key: judged.found.size_bytes for judged in stock.judged}
    wanted = needs(stock.manifest)
    for done, (key, need) in enumerate(wanted.items()):
        progress(done, len(wanted))
        try:
            await _check(store, references, stock, key, need, sizes.get(key), deep)
        except (InvalidError, CorruptError) as error:
            if key in needs(await read_manifest(store)):
                stock.damages.append(Damage(key, error.message, () if need.kind is Kind.INDEX else need.records, need.kind))
    progress(len(wanted), len(wanted))
    return stock


async def _check(
    store: Store, references: References, stock: Inspection, key: str, need: Need, size_bytes: int | None, deep: bool
) -> None:
    """Raises InvalidError or CorruptError for a damage."""
    if size_bytes is None and not is_url(key):
        # An object that was put during the listing may be missing in it.
        await store.get_range(key, 0, 1)
    elif size_bytes is not None and size_bytes < need.size_bytes:
        raise CorruptError(Reason.CORRUPT_STORE, f"the object is cut off. size=`{size_bytes}` expected=`{need.size_bytes}`")
    if need.extents and need.extents[0][1].adopted:
        topic_id, _ = need.extents[0]
        await references.check(topic_id, [extent for _, extent in need.extents], absolute=True)
        await _check_recipe(references, [extent for _, extent in need.extents], deep)
        return
    for topic_id, extent in need.extents:
        await references.check(topic_id, [extent], absolute=True)
        if deep:
            await _read_file(references, extent)
    if deep and need.kind is Kind.CHUNK and need.chunk is not None:
        _, unreadable = await check_chunk(store, stock.manifest, need.incarnation_id, need.chunk)
        topics = stock.manifest.topics_by_id
        stock.unreadable += [
            Records(topics[batch.topic_id].name, batch.partition, batch.base_offset, batch.end_offset) for batch in unreadable
        ]


async def _read_file(references: References, extent: ParquetExtent) -> None:
    """Decode every row group of a file: Parquet's pages have checksums."""
    store, key = references.locate(extent.path)
    file = await footer_of(store, key, size_bytes=extent.size_bytes, footer_crc32c=extent.footer_crc32c)
    for group in file.groups:
        read_group(file, group, await store.get_range(key, group.start, group.end - group.start))


async def _check_recipe(references: References, extents: Sequence[ParquetExtent], deep: bool) -> None:
    """Compare the files of the units that these extents need with what was counted of them; `deep`: also all their rows. Raises as
    `_check`."""
    extent = extents[0]
    recipe = await references.recipe(extent)
    shares = recipe.shares()
    pieces = (piece_of(shares.get(extent.partition, []), extent.first_row, extent.rows) for extent in extents)
    units = sorted({number for piece in pieces for number, _ in piece})
    for place in sorted({place for number in units for place in recipe.files_of(recipe.units[number])}):
        file = recipe.files[place]
        store, key = references.locate(file.path)
        descriptor = await store.open_file(key) if isinstance(store, Files) else None
        if descriptor is not None:
            try:
                check_unchanged(descriptor, file.size_bytes, file.modified_ns)
            except InvalidError as error:
                raise InvalidError(error.reason, f"{error.message}. path=`{file.path}`") from error
            finally:
                os.close(descriptor)
    for number in units if deep else ():
        unit = recipe.units[number]
        files = [recipe.files[place] for place in recipe.files_of(unit)]
        footers = [await references.footer(as_extent(extent, file)) for file in files]
        wanted = [Wanted(share.partition, 0, share.rows, 0) for share in unit.shares]
        try:
            found = described(recipe, number, footers, Codec.NONE, wanted)
            source = await unit_bytes([references.locate(file.path) for file in files], found)
            for _ in encode_unit(found, source):
                pass
        except InvalidError as error:
            paths = ", ".join(file.path for file in files)
            raise InvalidError(error.reason, f"{error.message}. unit=`{number}` files=`{paths}`") from error
