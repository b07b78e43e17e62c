"""Ranges of one file for several readers at once.

Compared: what each reader receives with the same ranges of a copy of the file in memory, and the number of reads of the file. A
mismatch means that a consumer receives bytes of another one, or that readers of neighbouring ranges cost a system call each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.broker.runtime.errors import ClosedError, InvalidError, Reason
from headgate.broker.store.interface import Ranges
from headgate.broker.store.local import LocalStore
from headgate.broker.store.local_files import LocalFiles
from headgate.broker.store.local_reads import GAP_BYTES_MAX, LONG_BYTES_MIN, VECTORS_MAX, read_ranges

DATA = bytes(number * 7 % 251 for number in range(4096)) * 300
"""1.2 MB."""


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(position, bytes) of each system call that reads."""
    seen: list[tuple[int, int]] = []
    preadv = os.preadv

    def counted(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        count = preadv(fd, buffers, position)
        seen.append((position, count))
        return count

    monkeypatch.setattr(os, "preadv", counted)
    return seen


def read(fd: int, wanted: Sequence[Ranges]) -> list[bytes]:
    targets = [memoryview(bytearray(sum(length for _, length in ranges))) for ranges in wanted]
    return [bytes(part) for part in read_ranges(fd, wanted, targets)]


def expected(wanted: Sequence[Ranges]) -> list[bytes]:
    return [b"".join(DATA[start : start + length] for start, length in ranges) for ranges in wanted]


def test_neighbouring_ranges_of_all_readers_are_one_read(descriptor: int, calls: list[tuple[int, int]]) -> None:
    readers = 8
    wanted = [[(turn * 8000 + reader * 1000, 1000) for turn in range(50)] for reader in range(readers)]
    assert read(descriptor, wanted) == expected(wanted)
    assert calls == [(0, 400_000)]
    calls.clear()
    # One reader alone reads its own ranges, and the small gaps between them.
    assert read(descriptor, wanted[3:4]) == expected(wanted[3:4])
    assert calls == [(3000, 49 * 8000 + 1000)]


def test_a_large_gap_is_not_read(descriptor: int, calls: list[tuple[int, int]]) -> None:
    wanted = [[(0, 10), (10 + GAP_BYTES_MAX, 10)], [(20 + 2 * GAP_BYTES_MAX + 1, 5)]]
    assert read(descriptor, wanted) == expected(wanted)
    assert calls == [(0, 20 + GAP_BYTES_MAX), (21 + 2 * GAP_BYTES_MAX, 5)]


def test_a_call_has_as_many_buffers_as_the_system_allows(descriptor: int, calls: list[tuple[int, int]]) -> None:
    wanted = [[(number * 20, 10) for number in range(VECTORS_MAX)]]
    assert read(descriptor, wanted) == expected(wanted)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "wanted",
    [
        [],
        [[]],
        [[], [(5, 0)], [(7, 3), (10, 0), (10, 4)]],
        [[(0, 100)], [(0, 100)], [(50, 100)]],
        [[(0, len(DATA))], [(100, 5), (LONG_BYTES_MIN, LONG_BYTES_MIN)]],
        [[(len(DATA) - 10, 20), (len(DATA) + 50, 5)], [(len(DATA) - 3, 9)], [(len(DATA), 1)], [(0, 4)]],
    ],
    ids=["nobody", "nothing", "empty", "the same bytes", "long", "behind the end"],
)
def test_each_reader_receives_its_own_bytes(descriptor: int, wanted: Sequence[Ranges]) -> None:
    assert read(descriptor, wanted) == expected(wanted)


def test_an_interrupted_call_is_continued(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, position: preadv(fd, [buffers[0][:7]], position))
    wanted = [[(0, 30), (60, 9)], [(30, 30)]]
    assert read(descriptor, wanted) == expected(wanted)


# -- the store


Reads = list[tuple[str, list[Ranges]]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The key and the ranges of each read of a file."""
    seen: Reads = []
    usual: Callable[[Any, str, Sequence[Ranges]], list[memoryview]] = LocalFiles.get_ranges

    def counted(files: LocalFiles, key: str, wanted: Sequence[Ranges]) -> list[memoryview]:
        seen.append((key, list(wanted)))
        return usual(files, key, wanted)

    monkeypatch.setattr(LocalFiles, "get_ranges", counted)
    return seen


async def opened(path: Path) -> LocalStore:
    store = LocalStore(str(path))
    await store.put("a", DATA)
    await store.put("b", DATA[::-1])
    return store


async def test_readers_of_one_turn_share_a_read_of_each_object(tmp_path: Path, reads: Reads) -> None:
    store = await opened(tmp_path)
    found = await asyncio.gather(
        store.get_ranges("a", [(0, 3)]), store.get_ranges("b", [(0, 2)]), store.get_ranges("a", [(3, 2), (9, 1)])
    )
    assert [bytes(one) for one in found] == [DATA[:3], DATA[::-1][:2], DATA[3:5] + DATA[9:10]]
    assert reads == [("a", [[(0, 3)], [(3, 2), (9, 1)]]), ("b", [[(0, 2)]])]
    await store.close()


async def test_a_missing_object_is_missing_for_each_reader(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    found = await asyncio.gather(*(store.get_ranges("c", [(0, 1)]) for _ in range(3)), return_exceptions=True)
    assert [isinstance(one, InvalidError) and one.reason is Reason.NOT_FOUND for one in found] == [True] * 3
    await store.close()


async def test_a_reader_that_gives_up_leaves_the_others_their_answer(tmp_path: Path, reads: Reads) -> None:
    store = await opened(tmp_path)
    tasks = [asyncio.ensure_future(store.get_ranges("a", [(number, 1)])) for number in range(3)]
    await asyncio.sleep(0)  # all of them wait now
    tasks[0].cancel()
    assert [bytes(await one) for one in tasks[1:]] == [DATA[1:2], DATA[2:3]]
    assert tasks[0].cancelled()
    alone = asyncio.ensure_future(store.get_ranges("b", [(0, 1)]))
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.wait([alone])
    await asyncio.sleep(0)
    assert "b" not in dict(reads), "nobody waits for it"
    await store.close()


async def test_readers_of_a_store_that_is_closed_get_an_error(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    # The store closes between the call and the read.
    waiting, closing = asyncio.ensure_future(store.get_ranges("a", [(0, 1)])), asyncio.ensure_future(store.close())
    await asyncio.wait([waiting, closing])
    assert isinstance(waiting.exception(), ClosedError)
    with pytest.raises(ClosedError):
        await store.get_ranges("a", [(0, 1)])
