"""Files without a readable record are found by their place in the order, and are the same as by a look at each.

Runs: random files of gates and of folds in several partitions, log starts and removed ranges. Compared: `unreadable_files`, and
what `TrimGates` leaves, with `is_readable` of each file. A mismatch means that readable records vanish, or that dead files stay.
"""

from __future__ import annotations

import random
import uuid

import pytest

from headgate.broker.cluster.edits.gates import OpenGate, TrimGates
from headgate.broker.cluster.edits.topics import CreateTopic
from headgate.broker.cluster.gates import Gate, GateWindow, ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic

TOPIC = uuid.UUID(int=1)
PARTITIONS = 4
GATE_END, END = 300, 600


def files_in(chance: random.Random, partition: int, base: int, end: int, *, folded: bool) -> list[ParquetExtent]:
    """Files one behind the other, some with a gap in between."""
    found = []
    while base < end:
        stop = min(base + chance.randrange(1, 20), end)
        found.append(ParquetExtent(partition, base, stop, 1, f"{partition}-{base}", 1, 1, 0, 0, records=1 if folded else -1))
        base = stop + chance.choice([0, 0, 5])
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_same_files_are_unreadable(seed: int) -> None:
    chance = random.Random(seed)
    manifest = Manifest()
    partitions = chance.sample(range(PARTITIONS), 3)
    extents = [one for partition in sorted(partitions) for one in files_in(chance, partition, 0, GATE_END, folded=False)]
    windows = [GateWindow(partition, 0, GATE_END, 1) for partition in range(PARTITIONS)]
    gate = Gate(
        id="g", topic_id=TOPIC, place="now", windows=windows, ttl_ms=1, opened_ms=0, state="filled", extents=extents
    )  # fmt: skip
    manifest.apply([CreateTopic(Topic(id=TOPIC, name="t", partitions=PARTITIONS)), OpenGate(gate)])
    for partition in chance.sample(range(PARTITIONS), 3):
        manifest.files.add(TOPIC, partition, files_in(chance, partition, GATE_END, END, folded=True))
        manifest.readable.log_starts.setdefault(TOPIC, {})[partition] = chance.randrange(END + 10)
        bounds = sorted(chance.sample(range(END), 6))
        manifest.readable.cuts.setdefault(TOPIC, {})[partition] = list(zip(bounds[::2], bounds[1::2], strict=True))
    every = [*extents, *(one for _, one in manifest.files.all())]
    readable = [one for one in every if manifest.readable.has(TOPIC, one.partition, one.base_offset, one.end_offset)]
    assert 0 < len(readable) < len(every)
    gone = manifest.unreadable_files(TOPIC)
    assert len(gone) == len(every) - len(readable) and not {one.path for one in gone} & {one.path for one in readable}
    manifest.apply([TrimGates(TOPIC)])
    left = [*manifest.gates.by_topic[TOPIC]["g"].extents, *(one for _, one in manifest.files.all())]
    assert sorted(left, key=lambda one: one.path) == sorted(readable, key=lambda one: one.path)
    manifest.check_invariants()
