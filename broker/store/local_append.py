"""Files that grow in place, in a directory: the meaning of `wal.fsync`, and the preparation of a file for it.

========  ==============================================================  =====================================================
fsync     how `write` writes                                              what a crash may lose
========  ==============================================================  =====================================================
always    O_DSYNC, and O_DIRECT if the file system supports it: durable   nothing
          when it returns
interval  like never; a thread calls fdatasync regularly                  of the process: nothing; of the machine: bytes written
                                                                          since the last fdatasync began
never     small writes to the page cache, large ones with O_DIRECT if     of the process: nothing; of the machine: all bytes
          the file system supports it; no sync                            written since the file was created
========  ==============================================================  =====================================================

With every value, a file's name and length are durable when `create` returns, and its content when `truncate` returns: every file
that a manifest names is on the disk.

A write to the page cache ends after a copy, without the disk. But the copy goes to new pages. On a virtual machine the host may
have to supply each of them, and the kernel writes them to the disk later: 1.3 to 3 CPU-seconds per GB in all, against 0.1 to
0.2 for O_DIRECT. So a large write bypasses the page cache, and the next group gathers meanwhile. A reader that is not served from
memory then reads those bytes from the disk.

A new file is filled with zeros, or only allocated. Reason for the zeros: the first write to an unwritten block must also change
the file's extent tree, which doubles the time of a small synchronous write (0.16 ms against 0.09 ms for 20 KiB). The disk has to
write the zeros like data, so they are too expensive for large writes (1 MiB at a time: 650 MB/s, with the zeros' own time
included, against 910 MB/s without zeros).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Literal, TypeAlias

from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason, RetryError
from headgate.broker.runtime.threads import begin
from headgate.broker.store.interface import AppendFile, Buffer
from headgate.broker.store.keys import check_key
from headgate.broker.store.local_files import CREATE_TRIES, LocalFiles
from headgate.broker.store.os_errors import raise_store_error, store_error

Fsync: TypeAlias = Literal["always", "interval", "never"]

ZERO_STEP_BYTES = 4 << 20
"""One write of zeros: large enough for a disk's full speed, small enough to leave time between two writes for other writers."""
DIRECT_ALIGNMENT_BYTES = 4096
"""A multiple of every disk's logical block size, and of the page on which a buffer must begin."""
DIRECT_BYTES_MIN = 256 << 10
"""Without `always`, smallest write in bytes that bypasses the page cache. From here on O_DIRECT costs less CPU than the copy to
pages that the kernel has at hand, and its sync. Below, the disk's latency weighs more: 16 KiB take 0.01 ms, with O_DIRECT 0.07."""

VECTOR_BUFFERS_MAX = 1024
"""IOV_MAX: most buffers that one pwritev(2) accepts on Linux."""

_O_DIRECT = getattr(os, "O_DIRECT", 0)


class LocalAppender:
    """The appender of a directory. Thread-safe; each file belongs to one thread.

    Args:
        fsync: see the table.
        interval_ms: with `interval`, the pause between two rounds of fdatasync.
    """

    def __init__(self, files: LocalFiles, fsync: Fsync, interval_ms: int) -> None:
        assert interval_ms > 0, interval_ms
        self._files = files
        self._fsync = fsync
        direct = _has_direct(files)
        always = fsync == "always"
        self._alignment_bytes = DIRECT_ALIGNMENT_BYTES if direct else 1
        self._flags = (os.O_DSYNC | (_O_DIRECT if direct else 0)) if always else 0
        self._direct_bytes_min = DIRECT_BYTES_MIN if direct and not always else None
        self._syncer = _Syncer(interval_ms) if fsync == "interval" else None

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        """Create a durable file of zeros under `key`. `Appender.create` describes sizes and errors."""
        check_key(key)
        assert size_bytes >= 0, size_bytes
        size_bytes += -size_bytes % self._alignment_bytes
        try:
            temp, fd = self._files.create_temp(self._flags)
            try:
                self._make_room(fd, size_bytes, filled=filled)
                self._link(temp, key)
            except BaseException:
                os.close(fd)
                raise
            finally:
                self._files.remove_temp(temp)
        except OSError as error:
            raise_store_error(error, "creating a file to append to", key)
        file = LocalAppendFile(fd, key, self._alignment_bytes, self._syncer, self._direct_bytes_min)
        if self._syncer is not None:
            self._syncer.add(file)
        return file

    def exists(self, key: str) -> bool:
        """True if an object exists under `key`: the fence check, after every write."""
        return self._files.exists(key)

    def close(self) -> None:
        """Stop the thread of `interval`. The owners of the files close them."""
        if self._syncer is not None:
            self._syncer.close()

    def _make_room(self, fd: int, size_bytes: int, *, filled: bool) -> None:
        if size_bytes == 0:
            os.fsync(fd)
            return
        try:
            # One allocation for the whole length: contiguous if possible, and a full disk is detected before the first write.
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.ftruncate(fd, size_bytes)
        # Without `always` the zeros may stay in memory, but the length must not. Nothing else is dirty yet, so this is quick.
        os.fsync(fd)
        if not filled:
            return
        with mmap.mmap(-1, min(size_bytes, ZERO_STEP_BYTES)) as zeros, memoryview(zeros) as view:
            position = 0
            while position < size_bytes:
                with view[: min(len(view), size_bytes - position)] as step:
                    position += os.pwrite(fd, step, position)
        if self._fsync == "always":
            os.fsync(fd)

    def _link(self, temp: str, key: str) -> None:
        for _ in range(CREATE_TRIES):
            with self._files.place(key) as (directory_fd, name):
                if self._files.link_temp(temp, directory_fd, name):
                    return
        raise RetryError(Reason.STORE_UNAVAILABLE, f"creating a file failed: its directory keeps vanishing. key=`{key}`")


class LocalAppendFile:
    """One growing file of a directory, written by one thread.

    Args:
        direct_bytes_min: smallest write, in bytes, that uses O_DIRECT; smaller ones go to the page cache. None: all writes use the
            flags with which `fd` was opened.
    """

    def __init__(
        self, fd: int, key: str, alignment_bytes: int, syncer: _Syncer | None, direct_bytes_min: int | None = None
    ) -> None:
        self._fd = fd
        self._key = key
        self._alignment_bytes = alignment_bytes
        self._syncer = syncer
        self._direct_bytes_min = direct_bytes_min
        self._is_direct = False
        """True if this file switched O_DIRECT on."""
        # Shared with the syncing thread, which owns only `dirty` and `failure`.
        self.sync_lock = threading.Lock()
        self.dirty = False
        self.failure: HeadgateError | None = None

    @property
    def alignment_bytes(self) -> int:
        return self._alignment_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers` at `position`, normally with one pwrite(2). Raises FatalError once the disk has lost earlier
        writes (`interval` only)."""
        if self.failure is not None:
            raise self.failure
        try:
            if self._direct_bytes_min is not None:
                self._set_direct(len(buffers[0]) >= self._direct_bytes_min)
            if len(buffers) == 1:
                written = os.pwrite(self._fd, buffers[0], position)
                if written != len(buffers[0]):
                    self._write_rest(position, memoryview(buffers[0]), written)
            else:
                self._write_many(position, buffers)
            if os.fstat(self._fd).st_nlink == 0:
                raise FatalError(
                    Reason.STORE_MISCONFIGURED, f"the write-ahead log was deleted under the running broker. key=`{self._key}`"
                )
        except OSError as error:
            raise_store_error(error, "writing to the write-ahead log", self._key)
        # Set after the write: a round of fdatasync that takes the flag then covers the whole write. Set before it, the end could be
        # lost.
        self.dirty = True

    def _set_direct(self, is_direct: bool) -> None:
        """Switch O_DIRECT on or off. The kernel keeps both kinds of writes, and reads, consistent. Raises OSError."""
        if is_direct != self._is_direct:
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | _O_DIRECT if is_direct else flags & ~_O_DIRECT)
            self._is_direct = is_direct

    def _write_many(self, position: int, buffers: Sequence[Buffer]) -> None:
        for first in range(0, len(buffers), VECTOR_BUFFERS_MAX):
            part = buffers[first : first + VECTOR_BUFFERS_MAX]
            size = sum(len(buffer) for buffer in part)
            written = os.pwritev(self._fd, part, position)
            if written != size:
                self._write_rest(position, memoryview(b"".join(part)), written)
            position += size

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to its sealed length, durably."""
        if self.failure is not None:
            raise self.failure
        try:
            os.ftruncate(self._fd, size_bytes)
            os.fsync(self._fd)
        except OSError as error:
            raise_store_error(error, "sealing a file of the write-ahead log", self._key)
        self.dirty = False

    def close(self) -> None:
        """Close the descriptor; the file stays readable through `get_range`."""
        with self.sync_lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        if self._syncer is not None:
            self._syncer.remove(self)

    def sync(self) -> None:
        """Sync the file, in the thread of `interval`. The writer gets the error later: the kernel has dropped the unwritten
        pages."""
        with self.sync_lock:
            if self._fd < 0 or not self.dirty:
                return
            self.dirty = False
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                message = store_error(error, "syncing the write-ahead log", self._key).message
                self.failure = FatalError(Reason.STORE_UNAVAILABLE, f"earlier writes may be lost: {message}")

    def _write_rest(self, position: int, data: memoryview, written: int) -> None:
        """Continue after a short write; with O_DIRECT from the last whole block. Raises OSError."""
        data = data.cast("B")
        while written < data.nbytes:
            done = written - written % self._alignment_bytes
            progress = done + os.pwrite(self._fd, data[done:], position + done)
            if progress <= written:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            written = progress


class _Syncer:
    """One thread that syncs all open files of an appender in turn."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._lock = threading.Lock()
        self._files: set[LocalAppendFile] = set()
        self._stop = threading.Event()
        self._threads = begin("wal-fdatasync", self._run)

    def add(self, file: LocalAppendFile) -> None:
        with self._lock:
            self._files.add(file)

    def remove(self, file: LocalAppendFile) -> None:
        with self._lock:
            self._files.discard(file)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_ms / 1000):
            with self._lock:
                files = list(self._files)
            for file in files:
                file.sync()


def _has_direct(files: LocalFiles) -> bool:
    """Whether the file system accepts O_DIRECT, by a trial: some refuse it at open(2), some at the first write."""
    if not _O_DIRECT:
        return False
    try:
        name, fd = files.create_temp(_O_DIRECT | os.O_DSYNC)
    except OSError as error:
        if error.errno == errno.EINVAL:
            # open(2) may leave the file behind although it refused the flag; the next sweep removes it.
            return False
        raise_store_error(error, "trying O_DIRECT", files.root)
    try:
        with mmap.mmap(-1, DIRECT_ALIGNMENT_BYTES) as block:
            return os.pwrite(fd, block, 0) == DIRECT_ALIGNMENT_BYTES
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise_store_error(error, "trying O_DIRECT", files.root)
    finally:
        os.close(fd)
        files.remove_temp(name)
