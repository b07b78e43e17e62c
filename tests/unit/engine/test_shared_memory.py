"""Memory that an encoder process shares with its broker: what the broker still reads is never written over, and what it has
dropped is used again. A mismatch means that consumers get other records than were sent, or that a broker's memory grows."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from headgate.broker.engine.read.shared_memory import FREE_BYTES_MAX, HELD_MAX, REGIONS_MAX, SMALL_BYTES, STEP_BYTES, Reader, Writer
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.batches import HEADER_BYTES
from tests.support.batches import batch as batch_of

NUMBERS = count()


def batch(size: int, base_offset: int = 0) -> memoryview:
    """A batch of one record of about this size, unlike all others."""
    made = bytearray(batch_of([(b"%d-" % next(NUMBERS)).ljust(max(size - HEADER_BYTES, 16), b"x")]))
    made[:8] = base_offset.to_bytes(8, "big")
    return memoryview(made)


class Ends:
    """Both ends, without a socket between them."""

    def __init__(self) -> None:
        self.writer, self.reader = Writer(), Reader()
        self.sent = 0

    def ask(self, *batches: memoryview) -> list[memoryview]:
        self.writer.free(self.reader.freed())
        answer, descriptors = self.writer.write(iter(batches))
        self.sent += len(descriptors)
        return self.reader.read(answer, [os.dup(one) for one in descriptors])


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_what_is_read_is_what_was_written(ends: Ends) -> None:
    for sizes in ([], [100], [100, SMALL_BYTES, 7], [3 * STEP_BYTES], [SMALL_BYTES] * 20):
        written = [batch(size, offset) for offset, size in enumerate(sizes)]
        read = ends.ask(*written)
        assert [bytes(one) for one in read] == [bytes(one) for one in written]
        assert all(one.readonly for one in read)


def test_regions_are_used_again_and_never_under_a_reader(ends: Ends) -> None:
    written = [batch(2 * SMALL_BYTES)]
    kept = ends.ask(*written)[0][SMALL_BYTES:]
    for _ in range(5):
        ends.ask(batch(2 * SMALL_BYTES))
    assert ends.sent == 2, "one is kept by a part of a batch, and one is used by all others"
    assert kept == written[0][SMALL_BYTES:]
    del kept
    gc.collect()
    for _ in range(2):
        ends.ask(batch(SMALL_BYTES))
    assert ends.sent == 2


def test_small_runs_hold_no_region(ends: Ends) -> None:
    kept = [ends.ask(batch(1000))[0] for _ in range(20)]
    assert ends.sent == 1
    assert len({bytes(one) for one in kept}) == 20


def test_a_broker_holds_a_bounded_number_of_regions(ends: Ends) -> None:
    written = [batch(SMALL_BYTES) for _ in range(HELD_MAX + 10)]
    kept = [ends.ask(one)[0] for one in written]
    assert kept == written
    assert ends.sent == HELD_MAX + 1


def test_runs_have_regions_of_their_own(ends: Ends) -> None:
    # Three partitions of a unit, in the order of partitions: their offsets do not follow each other.
    first, second, third = batch(2 * SMALL_BYTES, 100), batch(2 * SMALL_BYTES, 50), batch(2 * SMALL_BYTES, 70)
    read = ends.ask(first, second, third)
    assert ends.sent == 3
    del read[0], read[1]
    gc.collect()
    ends.ask(batch(2 * SMALL_BYTES), batch(2 * SMALL_BYTES))
    assert ends.sent == 3
    assert [bytes(one) for one in read] == [bytes(second)]
    many = [batch(SMALL_BYTES, 2 * offset) for offset in range(REGIONS_MAX + 5)]
    assert [bytes(one) for one in ends.ask(*many)] == [bytes(one) for one in many]


def test_a_region_has_no_more_pages_than_bytes(ends: Ends) -> None:
    ends.ask(batch(5 * STEP_BYTES))
    kept = ends.ask(batch(SMALL_BYTES))
    (region,) = ends.writer.used.values()
    assert os.fstat(region.descriptor).st_blocks * 512 < 2 * SMALL_BYTES
    assert kept


def test_free_regions_are_bounded(ends: Ends) -> None:
    size = 2 * STEP_BYTES
    kept = [ends.ask(batch(size)) for _ in range(12)]
    assert ends.sent == 12
    kept.clear()
    gc.collect()
    ends.ask(batch(size))
    held = sum(region.touched for region in (*ends.writer.unused, *ends.writer.used.values()))
    assert held <= FREE_BYTES_MAX
    assert len(ends.reader.maps) <= FREE_BYTES_MAX // size + 1, "what is closed there is not mapped here"


def test_an_answer_that_breaks_off_holds_nothing(ends: Ends) -> None:
    def breaks() -> Iterator[memoryview]:
        yield batch(2 * SMALL_BYTES, 10)
        yield batch(2 * SMALL_BYTES, 5)
        raise InvalidError(Reason.CORRUPT_MESSAGE, "no more")

    for _ in range(3):
        with pytest.raises(InvalidError):
            ends.writer.write(breaks())
    assert not ends.writer.used
    assert len(ends.writer.unused) == 2
    written = batch(SMALL_BYTES)
    assert ends.ask(written) == [written]


def test_each_region_takes_three_descriptors(ends: Ends) -> None:
    def regions() -> int:
        """Descriptors of such regions. Other ones come and go with what earlier tests have left."""
        found = 0
        for place in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                found += "headgate-history" in os.readlink(place)
        return found

    gc.collect()  # what earlier tests left open would be closed meanwhile
    before = regions()
    ends.ask(batch(2 * SMALL_BYTES))
    # Of each end the one that its mapping keeps, and that of the writer.
    assert regions() == before + 3


def test_nobody_can_make_a_region_smaller(ends: Ends) -> None:
    kept = ends.ask(batch(2 * SMALL_BYTES))
    (region,) = ends.writer.used.values()
    with pytest.raises(PermissionError):
        os.ftruncate(region.descriptor, 0)
    assert kept
