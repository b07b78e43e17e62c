"""Files that grow in place: written bytes are there, through O_DIRECT, short writes and failing syncs.

The files are real; the test reads their content back through the store. A mismatch means that a write-ahead log would ack bytes
that it does not hold.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import get_args

import pytest
import pytest_asyncio

from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import AppendFile, Buffer, Store
from headgate.broker.store.local import LocalStore
from headgate.broker.store.local_append import DIRECT_BYTES_MIN, ZERO_STEP_BYTES, Fsync, LocalAppendFile
from headgate.broker.store.memory import MemoryStore

BLOCK = 4096
LARGE = DIRECT_BYTES_MIN // BLOCK


def aligned(data: bytes) -> memoryview:
    """A copy that begins on a page boundary, as O_DIRECT needs it."""
    buffer = mmap.mmap(-1, max(len(data), 1))
    buffer[: len(data)] = data
    return memoryview(buffer)[: len(data)]


def pattern(blocks: int, seed: int) -> bytes:
    return b"".join(bytes([(seed + number) % 251]) * BLOCK for number in range(blocks))


def create(store: Store, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
    assert store.appender is not None
    return store.appender.create(key, size_bytes, filled=filled)


def exists(store: Store, key: str) -> bool:
    assert store.appender is not None
    return store.appender.exists(key)


def local_store(root: Path, fsync: Fsync) -> LocalStore:
    return LocalStore(str(root), fsync=fsync, fsync_interval_ms=5)


OPENERS: dict[str, Callable[[Path], Store]] = {
    "memory": lambda root: MemoryStore(),
    "memory-aligned": lambda root: MemoryStore(alignment_bytes=BLOCK),
    "always": lambda root: local_store(root, "always"),
    "interval": lambda root: local_store(root, "interval"),
    "never": lambda root: local_store(root, "never"),
}


@pytest_asyncio.fixture(params=sorted(OPENERS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = OPENERS[request.param](tmp_path / "store")
    yield store
    await store.close()


def test_every_setting_is_tested() -> None:
    assert set(get_args(Fsync)) <= set(OPENERS)


@pytest.mark.parametrize("filled", [True, False])
async def test_a_new_file_is_zeros_and_is_an_object(store: Store, filled: bool) -> None:
    size = ZERO_STEP_BYTES + 5 * BLOCK
    assert not exists(store, "wal/1")
    file = create(store, "wal/1", size, filled=filled)
    assert exists(store, "wal/1")
    assert [(row.key, row.size_bytes) for row in await store.list("wal/")] == [("wal/1", size)]
    assert await store.get("wal/1") == bytes(size)
    assert not await store.put_if_absent("wal/1", b"")
    file.close()
    assert await store.get_range("wal/1", size - 3, 9) == bytes(3)


@pytest.mark.parametrize("filled", [True, False])
async def test_writes_are_read_back(store: Store, filled: bool) -> None:
    file = create(store, "wal/1", 64 * BLOCK, filled=filled)
    assert file.alignment_bytes in (1, BLOCK)
    expected = bytearray(64 * BLOCK)
    for position, blocks in ((0, 1), (BLOCK, 8), (5 * BLOCK, 1), (60 * BLOCK, 4), (0, 2)):
        data = pattern(blocks, position // BLOCK + blocks)
        file.write(position, [aligned(data)])
        expected[position : position + len(data)] = data
        assert await store.get_range("wal/1", position, len(data)) == data
    assert await store.get("wal/1") == expected
    file.truncate(61 * BLOCK - 7)
    file.close()
    assert await store.get("wal/1") == expected[: 61 * BLOCK - 7]
    assert (await store.list("wal/"))[0].size_bytes == 61 * BLOCK - 7


async def test_a_size_is_rounded_up_to_the_alignment(store: Store) -> None:
    file = create(store, "wal/1", BLOCK + 1)
    size = BLOCK + 1 if file.alignment_bytes == 1 else 2 * BLOCK
    assert (await store.list("wal/"))[0].size_bytes == size
    file.close()


async def test_a_file_grows_past_its_first_size(store: Store) -> None:
    file = create(store, "wal/1", BLOCK)
    file.write(BLOCK, [aligned(pattern(3, 1))])
    file.close()
    assert await store.get("wal/1") == bytes(BLOCK) + pattern(3, 1)


async def test_writes_of_any_length_where_that_is_allowed(store: Store) -> None:
    file = create(store, "wal/1", BLOCK)
    if file.alignment_bytes == 1:
        file.write(10, [memoryview(b"hello")])
        file.write(13, [memoryview(b"p me, write")])
        assert await store.get_range("wal/1", 9, 16) == b"\0help me, write\0"
    file.close()


@pytest.mark.parametrize("count", [0, 2, 1024, 1025, 2500])
async def test_many_buffers_are_written_behind_each_other(store: Store, count: int) -> None:
    file = create(store, "wal/1", BLOCK)
    if file.alignment_bytes == 1:
        kinds: list[Callable[[bytes], Buffer]] = [bytes, bytearray, memoryview]
        buffers = [kinds[n % 3](b"%d," % n * (n % 7)) for n in range(count)]
        file.write(5, buffers)
        written = b"".join(buffers)
        assert await store.get_range("wal/1", 0, 5 + len(written)) == bytes(5) + written
    file.close()


async def test_an_empty_file(store: Store) -> None:
    file = create(store, "wal/1", 0)
    assert await store.get("wal/1") == b""
    file.truncate(0)
    file.close()


async def test_what_exists_is_not_created_again(store: Store) -> None:
    await store.put("wal/1", b"kept")
    with pytest.raises(InvalidError):
        create(store, "wal/1", BLOCK)
    create(store, "wal/2", BLOCK).close()
    with pytest.raises(InvalidError):
        create(store, "wal/2", BLOCK)
    with pytest.raises(InvalidError):
        create(store, "wal/2/3", BLOCK)
    with pytest.raises(InvalidError):
        create(store, "../wal", BLOCK)
    assert await store.get("wal/1") == b"kept"
    if isinstance(store, LocalStore):
        assert os.listdir(os.path.join(store.url, ".tmp~")) == []


async def test_a_fence_is_seen_at_once(store: Store) -> None:
    assert not exists(store, "wal/x/fence")
    await store.put_if_absent("wal/x/fence", b"")
    assert exists(store, "wal/x/fence")
    await store.delete("wal/x/fence")
    assert not exists(store, "wal/x/fence")


async def test_memory_is_stricter() -> None:
    file = create(MemoryStore(alignment_bytes=BLOCK), "wal/1", BLOCK)
    for position, data in ((1, bytes(BLOCK)), (0, bytes(BLOCK - 1))):
        with pytest.raises(AssertionError):
            file.write(position, [memoryview(data)])
    file.truncate(BLOCK)
    with pytest.raises(AssertionError):
        file.write(0, [memoryview(bytes(BLOCK))])


# -- the local file alone


def descriptor(file: AppendFile) -> int:
    assert isinstance(file, LocalAppendFile)
    return file._fd


@pytest.mark.parametrize("fsync", get_args(Fsync))
async def test_how_a_file_is_opened(tmp_path: Path, fsync: Fsync) -> None:
    store = local_store(tmp_path / "store", fsync)
    file = create(store, "wal/1", BLOCK)
    flags = fcntl.fcntl(descriptor(file), fcntl.F_GETFL)
    assert bool(flags & os.O_DSYNC) == (fsync == "always")
    assert bool(flags & os.O_DIRECT) == (fsync == "always" and file.alignment_bytes == BLOCK)
    file.close()
    await store.close()


@pytest.mark.parametrize("fsync", get_args(Fsync))
async def test_large_writes_bypass_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync) -> None:
    """Small and large writes overlap in a block, as groups of the log do. After each write, the bytes are read through the page
    cache."""
    store = local_store(tmp_path / "store", fsync)
    file = create(store, "wal/1", 0)
    direct: list[bool] = []
    real = os.pwrite

    def pwrite(fd: int, data: memoryview, position: int) -> int:
        direct.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
        return real(fd, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    blocks = [1, LARGE, 1, 1, LARGE + 3, LARGE, LARGE - 1, 2]
    expected = bytearray()
    for number, count in enumerate(blocks):
        position = max(len(expected) - BLOCK, 0)
        data = pattern(count, 17 * number)
        file.write(position, [aligned(data)])
        expected[position:] = data
        assert await store.get("wal/1") == expected
    can_be = file.alignment_bytes == BLOCK
    assert direct == [can_be and (fsync == "always" or count >= LARGE) for count in blocks]
    file.truncate(len(expected) - 9)
    file.close()
    assert await store.get("wal/1") == expected[:-9]
    await store.close()


@pytest.mark.parametrize("refuses_at", ["open", "write"])
async def test_a_file_system_without_o_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses_at: str) -> None:
    real_open, real_pwrite = os.open, os.pwrite
    direct: set[int] = set()

    def open_(path: str, flags: int, *arguments: int, **options: int) -> int:
        if flags & os.O_DIRECT and refuses_at == "open":
            raise OSError(errno.EINVAL, "no O_DIRECT")
        fd = real_open(path, flags, *arguments, **options)
        direct.discard(fd)
        if flags & os.O_DIRECT:
            direct.add(fd)
        return fd

    def pwrite(fd: int, data: memoryview, position: int) -> int:
        if fd in direct:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return real_pwrite(fd, data, position)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    store = local_store(tmp_path / "store", "always")
    file = create(store, "wal/1", 10_000)
    assert file.alignment_bytes == 1
    assert fcntl.fcntl(descriptor(file), fcntl.F_GETFL) & os.O_DSYNC
    file.write(17, [memoryview(b"hello")])
    file.close()
    assert await store.get_range("wal/1", 17, 5) == b"hello"
    await store.close()


@pytest.mark.parametrize("fsync", get_args(Fsync))
async def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync) -> None:
    store = local_store(tmp_path / "store", fsync)
    file = create(store, "wal/1", 16 * BLOCK)
    real = os.pwrite
    lengths: list[int] = []

    def pwrite(fd: int, data: memoryview, position: int) -> int:
        lengths.append(len(data))
        return real(fd, data[: max(BLOCK, len(data) // 2 // BLOCK * BLOCK)], position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    file.write(BLOCK, [aligned(pattern(8, 3))])
    assert lengths == [8 * BLOCK, 4 * BLOCK, 2 * BLOCK, BLOCK]
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: 0)
    with pytest.raises(RetryError):
        file.write(BLOCK, [aligned(pattern(1, 9))])
    monkeypatch.undo()
    assert await store.get_range("wal/1", BLOCK, 8 * BLOCK) == pattern(8, 3)
    file.close()
    await store.close()


async def test_short_writes_of_many_buffers_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = local_store(tmp_path / "store", "never")
    file = create(store, "wal/1", BLOCK)
    buffers = [b"%d," % n for n in range(1500)]
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, position: real(fd, parts[:3], position))
    file.write(7, buffers)
    written = b"".join(buffers)
    assert await store.get_range("wal/1", 7, len(written)) == written
    file.close()
    await store.close()


async def test_a_file_that_was_deleted_stops_the_writer(tmp_path: Path) -> None:
    store = local_store(tmp_path / "store", "always")
    file = create(store, "wal/1", BLOCK)
    await store.delete("wal/1")
    with pytest.raises(FatalError) as caught:
        file.write(0, [aligned(pattern(1, 1))])
    assert caught.value.reason is Reason.STORE_MISCONFIGURED
    file.close()
    await store.close()


async def test_a_short_write_within_a_block_is_written_again_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O_DIRECT cannot continue in the middle of a block."""
    store = local_store(tmp_path / "store", "always")
    file = create(store, "wal/1", 16 * BLOCK)
    real = os.pwrite
    calls: list[tuple[int, int]] = []

    def pwrite(fd: int, data: memoryview, position: int) -> int:
        calls.append((position, len(data)))
        written = real(fd, data, position)
        return written - 100 if len(calls) == 1 else written

    monkeypatch.setattr(os, "pwrite", pwrite)
    file.write(0, [aligned(pattern(4, 3))])
    if file.alignment_bytes == BLOCK:
        assert calls == [(0, 4 * BLOCK), (3 * BLOCK, BLOCK)]
    assert await store.get_range("wal/1", 0, 4 * BLOCK) == pattern(4, 3)
    file.close()
    await store.close()


def test_a_full_disk() -> None:
    """/dev/full answers every write with the kernel's own ENOSPC."""
    file = LocalAppendFile(os.open("/dev/full", os.O_RDWR), "wal/1", 1, None)
    for _ in range(2):
        with pytest.raises(RetryError) as caught:
            file.write(0, [memoryview(b"x")])
        assert caught.value.reason is Reason.STORE_FULL
        assert "wal/1" in caught.value.message
    file.close()


async def test_interval_syncs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    seen = threading.Semaphore(0)
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        real(fd)
        synced.append(fd)
        seen.release()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    store = local_store(tmp_path / "store", "interval")
    first, second = create(store, "wal/1", BLOCK), create(store, "wal/2", BLOCK)
    for file in (first, second, first):
        synced.clear()
        file.write(0, [memoryview(b"x")])
        assert seen.acquire(timeout=90)
        assert synced == [descriptor(file)], "only what was written to is synced"
    first.close()
    second.close()
    await store.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "wal-fdatasync"]


async def test_a_failed_sync_stops_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fdatasync the kernel drops the pages: acked bytes may be gone, and no later sync would report it."""
    tried = threading.Event()

    def fdatasync(fd: int) -> None:
        tried.set()
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    store = local_store(tmp_path / "store", "interval")
    file = create(store, "wal/1", BLOCK)
    file.write(0, [memoryview(b"x")])
    assert tried.wait(timeout=90)
    # The thread raises after `tried` is set: wait until it has kept the error.
    assert isinstance(file, LocalAppendFile)
    with file.sync_lock:
        pass
    with pytest.raises(FatalError, match="may be lost"):
        file.write(1, [b"y"])
    with pytest.raises(FatalError, match="may be lost"):
        file.truncate(1)
    file.close()
    await store.close()


def open_files_below(directory: Path) -> list[str]:
    """This process's open files in a directory. Threads of other tests open files elsewhere."""
    paths = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return [path for path in paths if path.startswith(str(directory))]


async def test_no_file_is_left_open(tmp_path: Path) -> None:
    for fsync in get_args(Fsync):
        store = local_store(tmp_path / fsync, fsync)
        await store.put("a/b", b"1")
        file = create(store, "wal/1", BLOCK)
        with pytest.raises(InvalidError):
            create(store, "wal/1", BLOCK)
        await store.list("")
        file.close()
        await store.close()
    assert open_files_below(tmp_path) == []
