"""Folds of adopted rows: which recipe is folded next, by which broker, and what becomes of it. No I/O.

A unit of a recipe has rows of many partitions, and is decoded as a whole. So a fold takes a recipe with all of its partitions,
whichever brokers lead them: `keeper` says which broker does it. Any broker may propose the edits (`FoldToFiles`), because they are
exact.

A unit that cannot be decoded stays: its kept file is missing or was changed. The units around it are folded, and the adopted extent
of each partition is divided: the pieces that stay have whole units. Once nothing names a recipe any more, the sweep of files
deletes it and the files that it keeps, after the time for readers that any replaced file has.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import msgspec

from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.folded_files import FilePart
from headgate.broker.cluster.gates import Gate, ParquetExtent
from headgate.broker.cluster.readable import Readable
from headgate.broker.cluster.topic_config import TopicConfig

JOB_BYTES = 2 << 30
"""Decoded bytes of the units of one job: the work that is lost when its process dies. Most recipes of floods have half of that."""
JOB_PARTS = 2000
"""Adopted extents of one job. Each has a file in the making; above it, units are decoded again for the next ones."""
FOLD_MS_MAX = 3600 * 1000
"""Age in ms up to which the files of a fold are kept for its edit, however short `gate_file_grace_ms` is. A fold that took half as
long is not committed."""
RECIPE_ITSELF = -1
"""Stands for a unit where the recipe cannot be read."""


class AdoptedPart(msgspec.Struct, frozen=True):
    """An adopted extent. `log_start`, `cuts`: as `Job` has them."""

    extent: ParquetExtent
    log_start: int
    cuts: list[tuple[int, int]]


class AdoptedJob(msgspec.Struct, frozen=True, kw_only=True, tag="adopted"):
    """Extents of one gate and one recipe to fold, by partition and offset.

    `filled_ms`: the wall-clock time in ms of the gate's fill. `skipped`: numbers of units that are not tried. `maker`: see
    `keys.maker`.
    """

    topic_id: uuid.UUID
    gate_id: str
    filled_ms: int
    parts: list[AdoptedPart]
    skipped: list[int]
    bytes_max: int
    maker: str

    def edit(self, folded: FoldedPart, at_ms: int) -> FoldToFiles:
        """The edit that puts the files of an extent in its place."""
        part = self.parts[folded.place]
        extent = part.extent
        replaced = FilePart(extent.path, extent.base_offset, extent.end_offset, self.gate_id)
        return FoldToFiles(self.topic_id, extent.partition, folded.files, [], part.cuts, [replaced], at_ms, folded.kept)


class FoldedPart(msgspec.Struct, frozen=True):
    """What becomes of the extent at a place of `AdoptedJob.parts`: its files, and the pieces that stay, each by offset. Neither: no
    record is left."""

    place: int
    files: list[ParquetExtent]
    kept: list[ParquetExtent]


class StuckUnit(msgspec.Struct, frozen=True):
    """A unit that cannot be folded, and why. `rows`: of the job's partitions."""

    number: int
    rows: int
    error: str


class AdoptedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job. `parts`: only extents of which something was folded. `units`: how many were decoded. `more`: units are
    left, because the job became too large. Or `retry`: the store's error."""

    parts: list[FoldedPart] = []
    stuck: list[StuckUnit] = []
    units: int = 0
    more: bool = False
    retry: str = ""


def by_recipe(extents: Iterable[ParquetExtent]) -> dict[str, list[ParquetExtent]]:
    """The adopted ones of a gate's extents, by recipe."""
    found: dict[str, list[ParquetExtent]] = {}
    for extent in extents:
        if extent.adopted:
            found.setdefault(extent.path, []).append(extent)
    return found


def keeper(gate: Gate, extent: ParquetExtent) -> int:
    """The partition whose lead folds the recipe of an extent. The recipes of a gate are spread over its partitions. A recipe keeps
    its partition for life, or two brokers would decode it."""
    count = len(gate.windows)
    numbers = ((extent.footer_crc32c + at) % count for at in range(count))
    return next(number for number in numbers if gate.windows[number].rows)


def is_due(gate: Gate, recipes: Mapping[str, list[ParquetExtent]], config: TopicConfig, old_ms: int | None) -> bool:
    """True if the adopted rows of a gate become folded files now: at the age of other files of gates, or, if age does not count,
    if a partition has too many bytes of them.

    Args:
        old_ms: append time in ms before which records are old; None: none is.
    """
    if not config.folds_history:
        return False
    if config.offline_after_ms >= 0:
        return old_ms is not None and gate.filled_ms < old_ms
    sizes: dict[int, int] = {}
    for extents in recipes.values():
        for extent in extents:
            sizes[extent.partition] = sizes.get(extent.partition, 0) + extent.adopted_bytes
    return config.offline_after_bytes >= 0 and max(sizes.values(), default=0) > config.offline_after_bytes


def parts_of(readable: Readable, topic_id: uuid.UUID, extents: Iterable[ParquetExtent]) -> list[AdoptedPart]:
    """The extents of a recipe that have readable records, at most `JOB_PARTS`."""
    found = []
    for extent in extents:
        if readable.has(topic_id, extent.partition, extent.base_offset, extent.end_offset):
            cuts = readable.cuts_of(topic_id, extent.partition)
            mine = [(low, high) for low, high in cuts if low < extent.end_offset and high > extent.base_offset]
            found.append(AdoptedPart(extent, readable.log_start(topic_id, extent.partition), mine))
            if len(found) == JOB_PARTS:
                break
    return found
