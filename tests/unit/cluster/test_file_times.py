"""Passing files by time gives every file with a wanted time, and the offsets of all others, whatever changed before.

Runs: random additions, removals and trims of folded files, and a merge of a gate's files; between them readers of random spans of
time. Compared with a look at every file. A mismatch means that a query misses records, or asks the leads for all of them.
"""

from __future__ import annotations

import random
import uuid

import pytest
from msgspec.structs import replace

from headgate.broker.cluster.edits.files import FoldToFiles
from headgate.broker.cluster.edits.gates import FillGate, OpenGate, TrimGates
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic, SetLogStart
from headgate.broker.cluster.file_times import ALL_MS, BLOCK_FILES, GateTimes, Passed, Passing
from headgate.broker.cluster.folded_files import FilePart, FoldedFiles
from headgate.broker.cluster.gates import Gate, GateWindow, ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic

TOPIC = uuid.UUID(int=1)
FILES = 5 * BLOCK_FILES
ROWS = 10


def extent(partition: int, number: int, chance: random.Random, *, records: int = ROWS) -> ParquetExtent:
    """A file of ten offsets; one in ten leaves offsets out behind it. Times mostly follow offsets."""
    low = number * 1000 + chance.randrange(-5000, 5000)
    end = (number + 1) * ROWS - (chance.random() < 0.1)
    return ParquetExtent(
        partition, number * ROWS, end, 1, f"p{partition}-{number}", 1, 0, low, low + chance.randrange(2000), records=records
    )


def check(passing: Passing, files: list[ParquetExtent], low_ms: int, high_ms: int) -> None:
    """Raise AssertionError unless the reader gets these files, each either whole or as offsets."""
    position, got = 0, list(passing)
    for item in got:
        if isinstance(item, Passed):
            assert item.base_offset == item.ranges[0][0] and item.folded is files[position].folded
            for base, end in item.ranges:
                while base < end:
                    one = files[position]
                    assert one.base_offset == base
                    assert one.timestamp_max_ms < low_ms or high_ms < one.timestamp_min_ms
                    base, position = one.end_offset, position + 1
                assert base == end
        else:
            assert item is files[position]
            assert low_ms <= item.timestamp_max_ms and item.timestamp_min_ms <= high_ms
            position += 1
    assert position == len(files)


def span(chance: random.Random) -> tuple[int, int]:
    low = chance.randrange(FILES * 1000)
    return chance.choice([(low, low), (low, low + chance.randrange(100_000)), (ALL_MS[0], low), (low, ALL_MS[1]), ALL_MS])


@pytest.mark.parametrize("seed", range(20))
def test_folded_files(seed: int) -> None:
    chance = random.Random(seed)
    every = {partition: [extent(partition, number, chance) for number in range(FILES)] for partition in (0, 3)}
    files = FoldedFiles()
    for partition, some in every.items():
        files.add(TOPIC, partition, chance.sample(some, chance.choice([1, BLOCK_FILES, FILES])))
    for _ in range(100):
        partition = chance.choice([0, 3])
        there = files.of(TOPIC, partition)
        act = chance.random()
        if act < 0.3:
            missing = [one for one in every[partition] if one not in there]
            files.add(TOPIC, partition, chance.sample(missing, min(len(missing), chance.choice([1, 3]))))
        elif act < 0.45 and there:
            one = chance.choice(there)
            files.remove(TOPIC, partition, [FilePart(one.path, one.base_offset, one.end_offset)])
        elif act < 0.6 and there:
            one = chance.choice(there)
            # Another file of the same offsets takes its place: the list keeps its length.
            files.remove(TOPIC, partition, [FilePart(one.path, one.base_offset, one.end_offset)])
            fresh = extent(partition, one.base_offset // ROWS, chance)
            every[partition][one.base_offset // ROWS] = fresh
            files.add(TOPIC, partition, [fresh])
        elif act < 0.65 and there:
            files.trim(TOPIC, there[: chance.randrange(3)])
        elif act < 0.66:
            files.drop_topic(TOPIC)
        for _ in range(3):
            base = chance.choice([0, chance.randrange(-10, FILES * ROWS)])
            end = base + chance.choice([FILES * ROWS, chance.randrange(1, FILES * ROWS)])
            low_ms, high_ms = span(chance)
            passing = files.passing(TOPIC, partition, base, end, low_ms, high_ms)
            check(passing, files.within(TOPIC, partition, base, end), low_ms, high_ms)


def test_a_reader_goes_on_with_the_files_of_its_beginning() -> None:
    chance = random.Random(7)
    files = FoldedFiles()
    files.add(TOPIC, 0, [extent(0, number, chance) for number in range(FILES)])
    before = list(files.of(TOPIC, 0))
    low_ms, high_ms = 300_000, 301_000
    passing = files.passing(TOPIC, 0, 0, FILES * ROWS, low_ms, high_ms)
    first = next(passing)
    files.trim(TOPIC, before[: FILES // 2])
    check(iter([first, *passing]), before, low_ms, high_ms)
    check(files.passing(TOPIC, 0, 0, FILES * ROWS, low_ms, high_ms), files.of(TOPIC, 0), low_ms, high_ms)


@pytest.mark.parametrize("seed", range(5))
def test_the_files_of_gates(seed: int) -> None:
    chance = random.Random(seed)
    gate = Gate(
        id="g", topic_id=TOPIC, place="now", windows=[], ttl_ms=1, opened_ms=0, state="filled",
        extents=[extent(partition, number, chance, records=-1) for partition in range(3) for number in range(FILES // 3)],
    )  # fmt: skip
    times = GateTimes()
    for _ in range(50):
        partition = chance.randrange(4)
        base = chance.randrange(-10, FILES * ROWS // 3)
        end = base + chance.randrange(1, FILES * ROWS // 3)
        low_ms, high_ms = span(chance)
        wanted = [one for one in gate.extents if one.partition == partition and one.end_offset > base and one.base_offset < end]
        check(times.passing(gate, partition, base, end, low_ms, high_ms), wanted, low_ms, high_ms)


def test_edits_of_a_manifest() -> None:
    """A gate is filled, two of its files are merged, another gate takes its id, its first records are deleted, and its topic."""
    chance = random.Random(1)
    manifest = Manifest()

    def look() -> int:
        gates = manifest.gates.of(TOPIC).values()
        for gate in gates:
            for low_ms, high_ms in ((300_000, 301_000), (0, 1000), ALL_MS):
                check(manifest.gates.times.passing(gate, 0, 0, 2 * FILES * ROWS, low_ms, high_ms), gate.extents, low_ms, high_ms)
        return sum(len(gate.extents) for gate in gates)

    window = GateWindow(0, 0, FILES * ROWS, 1)
    gate = Gate(id="g", topic_id=TOPIC, place="now", windows=[window], ttl_ms=1, opened_ms=0)
    files = [extent(0, number, chance, records=-1) for number in range(FILES)]
    manifest.apply([CreateTopic(Topic(id=TOPIC, name="t", partitions=1)), OpenGate(gate)])
    assert look() == 0
    manifest.apply([FillGate(TOPIC, "g", files, "digest", 1)])
    assert look() == FILES
    merged = [FilePart(one.path, one.base_offset, one.end_offset, "g") for one in files[:2]]
    manifest.apply([FoldToFiles(TOPIC, 0, [extent(0, 0, chance)], [], merged=merged)])
    assert look() == FILES - 2
    later = [extent(0, FILES + number, chance, records=-1) for number in range(BLOCK_FILES)]
    manifest.apply(
        [OpenGate(replace(gate, windows=[GateWindow(0, FILES * ROWS, 2 * FILES * ROWS, 2)], extents=later, state="filled"))]
    )
    assert look() == FILES - 2 + BLOCK_FILES
    manifest.apply([SetLogStart(TOPIC, {0: 5 * ROWS}), TrimGates(TOPIC)])
    assert look() == FILES - 5 + BLOCK_FILES
    manifest.apply([DeleteTopic(TOPIC)])
    manifest.apply(
        [CreateTopic(Topic(id=TOPIC, name="t", partitions=1)), OpenGate(gate), FillGate(TOPIC, "g", files[::2], "digest", 1)]
    )
    assert look() == FILES // 2
