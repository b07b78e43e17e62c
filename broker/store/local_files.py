"""A directory as a store, with blocking calls: `LocalStore` makes them in its threads, and the append files in theirs.

Theory of operation::

    create     write .tmp~/x, fsync it, link(2) it to its key, fsync the key's directory, unlink .tmp~/x
    replace    write .tmp~/x, fsync it, rename(2) it to its key, fsync the key's directory

link(2) never overwrites, and both operations make the whole object visible in one step. Files that a dead process left in
`.tmp~` are unlinked at the next opening of a store, once they are an hour old. No key can name them, because `~` is not of the
alphabet of keys.

Every path is walked from a descriptor of the root, one part at a time, and no symlink is followed: no planted symlink in the
directory leads outside. The root itself may be a symlink. That descriptor also keeps the root's inode number from being used
again, so comparing device and inode shows whether the path still names this directory. If it does not (deleted, moved,
unmounted, covered by another mount), the store stops with FatalError and does not create the directory anew: an empty directory
has no fences.

Deleting removes directories that it leaves empty. A creation that loses its directory to a concurrent deletion starts again.

The file system must keep link(2) atomic and show the new name to every broker at once. Any local file system does; NFS needs
`lookupcache=none`.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import ObjectInfo, Ranges
from headgate.broker.store.keys import is_name, key_conflict, not_found
from headgate.broker.store.local_reads import read_ranges
from headgate.broker.store.os_errors import raise_store_error
from headgate.broker.store.read_buffers import ReadBuffers

TEMP_DIRECTORY = ".tmp~"
TEMP_AGE_S_MAX = 3600
"""An unfinished file without a write for this long has no owner any more."""
CREATE_TRIES = 1000
"""Attempts to create a file in a directory. An attempt fails only if another thread or process empties the directory at that
moment. On a busy machine that happens a few dozen times in a row to a thread that gets the processor seldom. One attempt costs
some microseconds."""
DURABLE_DIRECTORIES_MAX = 4096
"""Directories that are known to be durable in their parents; the set is cleared when it exceeds this size."""

SYNC_STEP_BYTES = 1 << 20
"""Bytes of a new object between two syncs: an append that waits for the disk waits for no more than these. With one sync at the
end, a WAL's p99 beside files of 40 MiB was twice as long, at the same rate of files."""

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a planted FIFO must not hang a thread.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE_TEMP = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_all(fd: int, data: memoryview) -> None:
    """Write all of `data`, through any number of short writes. Raises OSError."""
    while data.nbytes:
        data = data[os.write(fd, data) :]


class LocalFiles:
    """The files below one directory. Thread-safe.

    Opening creates a missing directory, proves that files can be written and linked in it, and sweeps old temporary files.
    Created files belong to this user alone, whatever the umask is. The group of the store's directory gets the permissions
    that the directory gives it, so that Spark may run as another user of the group.

    Args:
        required_key: key of an object that must exist; if it does not, nothing is created. Empty: none.

    Raises:
        FatalError: the directory cannot be used; the message says why.
        RetryError: the disk is full or does not answer.
    """

    def __init__(self, root: str, required_key: str = "") -> None:
        self.root = os.path.abspath(root)
        self._unique = os.urandom(8).hex()
        self._numbers = itertools.count()
        self._durable: set[tuple[int, int]] = set()
        self._buffers = ReadBuffers()
        try:
            if required_key:
                os.stat(f"{self.root}/{required_key}")
            else:
                os.makedirs(self.root, mode=stat.S_IRWXU, exist_ok=True)
            self._root_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if required_key and isinstance(error, FileNotFoundError | NotADirectoryError):
                message = f"the store is not there, and is not made anew: is its disk mounted? path=`{self.root}`"
                raise FatalError(Reason.STORE_MISSING, message) from error
            if isinstance(error, FileExistsError | NotADirectoryError):
                message = f"the store is not a directory: name another one with --store. path=`{self.root}`"
                raise FatalError(Reason.STORE_MISCONFIGURED, message) from error
            raise_store_error(error, "opening the store's directory", self.root)
        self._temp_fd = -1
        try:
            found = os.fstat(self._root_fd)
            self._identity = (found.st_dev, found.st_ino)
            self._group = found.st_mode & stat.S_IRWXG
            self._directory_mode = stat.S_IRWXU | self._group | found.st_mode & stat.S_ISGID
            self._file_mode = stat.S_IRUSR | stat.S_IWUSR | self._group & ~stat.S_IXGRP
            self._fsync_parent_of_root()
            with suppress(FileExistsError):
                self._mkdir(TEMP_DIRECTORY, self._root_fd)
            self._temp_fd = os.open(TEMP_DIRECTORY, _OPEN_DIRECTORY, dir_fd=self._root_fd)
            _sweep(self._temp_fd, now_s=self._probe())
        except OSError as error:
            self.close()
            raise_store_error(error, "opening the store's directory", self.root)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors. No other method may be called afterwards."""
        os.close(self._root_fd)
        if self._temp_fd >= 0:
            os.close(self._temp_fd)

    def check_root(self) -> None:
        """Raises FatalError if the path no longer names the directory that was opened."""
        try:
            found = os.stat(self.root)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._vanished() from error
        except OSError as error:
            raise_store_error(error, "looking at the store's directory", self.root)
        if (found.st_dev, found.st_ino) != self._identity:
            raise self._vanished()

    def exists(self, key: str) -> bool:
        """Whether a file or directory exists at `key`, by one stat(2). Raises FatalError if the store has vanished, instead of
        False."""
        try:
            found = os.stat(f"{self.root}/{key}", follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            self.check_root()
            return False
        except OSError as error:
            raise_store_error(error, "looking for an object", key)
        return not stat.S_ISDIR(found.st_mode)

    def put_if_absent(self, key: str, data: Iterable[memoryview]) -> bool:
        """Create an object durably. True: this call created it. False: the key exists."""
        temp = None
        try:
            for _ in range(CREATE_TRIES):
                with self._parent(key, create=True) as (fds, name):
                    if _occupied(fds[-1], name, key):
                        # The creator may not have synced this directory yet, and our caller will rely on the object's presence.
                        os.fsync(fds[-1])
                        return False
                    if temp is None:
                        temp = self._write_temp(data)
                    if self.link_temp(temp, fds[-1], name):
                        return True
            raise _vanishing(key)
        except OSError as error:
            raise_store_error(error, "creating an object", key)
        finally:
            if temp is not None:
                self.remove_temp(temp)

    def put(self, key: str, data: Sequence[memoryview]) -> None:
        """Create or replace an object durably."""
        temp = None
        renamed = False
        try:
            temp = self._write_temp(data)
            for _ in range(CREATE_TRIES):
                with self._parent(key, create=True) as (fds, name):
                    _occupied(fds[-1], name, key)
                    with suppress(FileNotFoundError):
                        os.rename(temp, name, src_dir_fd=self._temp_fd, dst_dir_fd=fds[-1])
                        renamed = True
                    if renamed:
                        os.fsync(fds[-1])
                        self.check_root()
                        return
            raise _vanishing(key)
        except OSError as error:
            raise_store_error(error, "writing an object", key)
        finally:
            if temp is not None and not renamed:
                self.remove_temp(temp)

    def keep(self, key: str, source: str, *, copy: bool) -> bool:
        """Create an object durably: a second name of a file outside of the store, or a copy of it (`interface.Keeps`)."""
        if copy:
            try:
                with open(source, "rb") as file:
                    # If it is there, an earlier try made it, whose answer was lost.
                    self.put_if_absent(key, iter(lambda: memoryview(file.read(SYNC_STEP_BYTES)), memoryview(b"")))
            except FileNotFoundError as error:
                raise not_found(source) from error
            return True
        try:
            _sync_file(source)
            for _ in range(CREATE_TRIES):
                with self._parent(key, create=True) as (fds, name):
                    try:
                        os.link(source, name, dst_dir_fd=fds[-1])
                    except FileExistsError:
                        # An earlier try made it, whose answer was lost.
                        if not os.path.samestat(os.stat(source), os.stat(name, dir_fd=fds[-1], follow_symlinks=False)):
                            raise
                    except FileNotFoundError as error:
                        if not os.path.exists(source):
                            raise not_found(source) from error
                        continue  # the directory was removed meanwhile
                    os.fsync(fds[-1])
                    self.check_root()
                    return True
            raise _vanishing(key)
        except FileNotFoundError as error:
            raise not_found(source) from error
        except OSError as error:
            # Another file system, one without links, too many links, or a file that its owner lets nobody link.
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
                return False
            raise_store_error(error, "linking an object", key)

    def get(self, key: str) -> bytes:
        """The whole object. Raises InvalidError(NOT_FOUND)."""
        return self.get_range(key, 0, None)

    def get_range(self, key: str, start: int, length: int | None) -> bytes:
        """`length` bytes from `start`, fewer at the object's end; `length` None reads to the end. Raises
        InvalidError(NOT_FOUND)."""
        fd = self.open_file(key)
        try:
            size = os.fstat(fd).st_size
            return _read(fd, start, size if length is None else min(size, start + length))
        except OSError as error:
            raise_store_error(error, "reading an object", key)
        finally:
            os.close(fd)

    def get_ranges(self, key: str, wanted: Sequence[Ranges]) -> list[memoryview]:
        """For each reader the bytes of its ascending ranges, one behind the other; fewer only if the file ends before them.
        Raises InvalidError(NOT_FOUND)."""
        fd = self.open_file(key)
        try:
            return read_ranges(fd, wanted, [self._buffers.take(sum([length for _, length in ranges])) for ranges in wanted])
        except OSError as error:
            raise_store_error(error, "reading an object", key)
        finally:
            os.close(fd)

    def open_file(self, key: str) -> int:
        """A descriptor of an object; the caller closes it. Raises InvalidError(NOT_FOUND)."""
        self.check_root()
        try:
            with self._parent(key, create=False) as (fds, name):
                fd = os.open(name, _OPEN_FILE, dir_fd=fds[-1])
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise not_found(key)
            return fd
        except FileNotFoundError as error:
            raise not_found(key) from error
        except OSError as error:
            raise_store_error(error, "reading an object", key)

    def listing(self, prefix: str, start_after: str, limit: int) -> list[ObjectInfo]:
        """Up to `limit` objects in key order, below `prefix` and after `start_after`. Reads only directories that can hold a
        result."""
        self.check_root()
        found: list[ObjectInfo] = []
        base = prefix[: prefix.rfind("/") + 1]
        try:
            # The base key, a slash and one more name: that name is never opened and only makes the base a directory.
            with self._parent(base + "x", create=False) as (fds, _):
                # A descriptor of its own: the position within a directory belongs to the descriptor, and all threads share the
                # root's.
                fd = os.open(".", _OPEN_DIRECTORY, dir_fd=fds[-1])
            try:
                _list(fd, base, prefix, start_after, limit, found)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return []
        except InvalidError as error:
            if error.reason is Reason.NOT_FOUND:
                return []
            raise
        except OSError as error:
            raise_store_error(error, "listing objects", prefix)
        return found

    def delete(self, key: str) -> None:
        """Remove an object, if it exists, and the directories that the deletion leaves empty."""
        self.check_root()
        parts = key.split("/")
        try:
            with self._parent(key, create=False) as (fds, name):
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=fds[-1])
                for depth in range(len(fds) - 1, 0, -1):
                    os.rmdir(parts[depth - 1], dir_fd=fds[depth - 1])
        except FileNotFoundError:
            return
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise_store_error(error, "deleting an object", key)

    @contextmanager
    def place(self, key: str) -> Iterator[tuple[int, str]]:
        """The directory (a descriptor) and the name of an object to create. Raises OSError, InvalidError, FatalError."""
        with self._parent(key, create=True) as (fds, name):
            if _occupied(fds[-1], name, key):
                raise InvalidError(Reason.INVALID_REQUEST, f"the file to be created exists. key=`{key}`")
            yield fds[-1], name

    def create_temp(self, flags: int = 0) -> tuple[str, int]:
        """Create an empty file in the temporary directory. Returns its name and a descriptor. Raises OSError, FatalError."""
        # The name contains the process id: a forked process has the same counter.
        name = f"{self._unique}-{os.getpid()}-{next(self._numbers)}"
        try:
            fd = os.open(name, _CREATE_TEMP | flags, self._file_mode, dir_fd=self._temp_fd)
        except FileNotFoundError as error:
            raise self._vanished() from error
        if self._group:
            try:
                os.fchmod(fd, self._file_mode)  # the umask may have removed the group's permissions
            except OSError:
                os.close(fd)
                raise
        return name, fd

    def _mkdir(self, name: str, parent_fd: int) -> None:
        os.mkdir(name, self._directory_mode, dir_fd=parent_fd)
        if self._group:
            os.chmod(name, self._directory_mode, dir_fd=parent_fd)

    def link_temp(self, temp: str, directory_fd: int, name: str) -> bool:
        """Make a temporary file an object, durably. Returns False if the name is taken or the directory vanished; then begin
        again.

        Raises OSError, FatalError.
        """
        try:
            os.link(temp, name, src_dir_fd=self._temp_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            return False
        os.fsync(directory_fd)
        self.check_root()
        return True

    def remove_temp(self, name: str) -> None:
        """Unlink a temporary file. If that fails, the next sweep unlinks it."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._temp_fd)

    def _write_temp(self, data: Iterable[memoryview]) -> str:
        name, fd = self.create_temp()
        try:
            for part in data:
                for at in range(0, part.nbytes, SYNC_STEP_BYTES):
                    write_all(fd, part[at : at + SYNC_STEP_BYTES])
                    if at + SYNC_STEP_BYTES < part.nbytes:
                        os.fdatasync(fd)
            # A new file every time: after a failed fsync the kernel calls the pages clean, and a second fsync would lie.
            os.fsync(fd)
        except BaseException:
            self.remove_temp(name)
            raise
        finally:
            os.close(fd)
        return name

    @contextmanager
    def _parent(self, key: str, *, create: bool) -> Iterator[tuple[list[int], str]]:
        """Descriptors of the directories on the path to a key, the root's first, and the key's last name.

        Raises OSError. Raises InvalidError if a file is in the way: NOT_FOUND for a read, INVALID_REQUEST for a
        creation.
        """
        *directories, name = key.split("/")
        if create:
            self.check_root()
        fds = [self._root_fd]
        try:
            tries = 0
            while len(fds) <= len(directories):
                fd = self._enter(fds[-1], directories[len(fds) - 1], key, create)
                if fd is not None:
                    fds.append(fd)
                    continue
                tries += 1
                if tries == CREATE_TRIES:
                    raise _vanishing(key)
                while len(fds) > 1:
                    os.close(fds.pop())
            yield fds, name
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _enter(self, parent: int, part: str, key: str, create: bool) -> int | None:
        """A directory's descriptor. None: `parent` vanished before the directory could be created in it."""
        for _ in range(CREATE_TRIES):
            try:
                fd = os.open(part, _OPEN_DIRECTORY, dir_fd=parent)
            except FileNotFoundError:
                if not create:
                    raise
                try:
                    self._mkdir(part, parent)
                except FileExistsError:
                    continue
                except FileNotFoundError:
                    return None
                continue
            except NotADirectoryError as error:
                if stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
                raise (key_conflict(key) if create else not_found(key)) from error
            if create:
                self._make_durable(fd, parent)
            return fd
        raise _vanishing(key)

    def _make_durable(self, fd: int, parent: int) -> None:
        """Make a directory's entry in its parent durable. Another process may have made the entry and not synced it yet."""
        try:
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) not in self._durable:
                os.fsync(parent)
                if len(self._durable) >= DURABLE_DIRECTORIES_MAX:
                    self._durable.clear()
                self._durable.add((found.st_dev, found.st_ino))
        except BaseException:
            os.close(fd)
            raise

    def _probe(self) -> float:
        """Prove that files can be created and linked here. Returns the file system's own time, in seconds."""
        name, fd = self.create_temp()
        try:
            now_s = os.fstat(fd).st_mtime
            os.link(name, name + ".link", src_dir_fd=self._temp_fd, dst_dir_fd=self._temp_fd, follow_symlinks=False)
            os.unlink(name + ".link", dir_fd=self._temp_fd)
        finally:
            os.close(fd)
            self.remove_temp(name)
        return now_s

    def _fsync_parent_of_root(self) -> None:
        """Make the root's own entry durable. An unreadable parent belongs to another user, and is older than this process."""
        with suppress(PermissionError):
            parent = os.open(os.path.dirname(os.path.realpath(self.root)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)

    def _vanished(self) -> FatalError:
        message = f"the store's directory vanished or was replaced while in use. path=`{self.root}`"
        return FatalError(Reason.STORE_MISCONFIGURED, message)


def _occupied(directory: int, name: str, key: str) -> bool:
    """Whether an object exists there. Removes an empty directory left by a dying process; raises InvalidError for a full
    one."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return True
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise key_conflict(key) from error
        if error.errno != errno.ENOENT:
            raise
    return False


def _list(fd: int, base: str, prefix: str, start_after: str, limit: int, found: list[ObjectInfo]) -> None:
    """Append the keys below one directory, in byte order. A directory is sorted with a slash behind its name, as in its
    keys."""
    candidates: list[tuple[str, os.DirEntry[str]]] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if not is_name(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                key = f"{base}{entry.name}/"
                wanted = key.startswith(prefix) or prefix.startswith(key)
                wanted = wanted and (key > start_after or start_after.startswith(key))
            else:
                key = base + entry.name
                wanted = key.startswith(prefix) and key > start_after and entry.is_file(follow_symlinks=False)
            if wanted:
                candidates.append((key, entry))
        candidates.sort(key=lambda candidate: candidate[0])
        for key, entry in candidates:
            # An entry may have been deleted since the directory was read; a file may even have taken a directory's name.
            with suppress(FileNotFoundError, NotADirectoryError):
                if key.endswith("/"):
                    child = os.open(entry.name, _OPEN_DIRECTORY, dir_fd=fd)
                    try:
                        _list(child, key, prefix, start_after, limit, found)
                    finally:
                        os.close(child)
                else:
                    row = entry.stat(follow_symlinks=False)
                    found.append(ObjectInfo(key, row.st_size, row.st_mtime_ns // 1_000_000))
            if len(found) >= limit:
                return


def _sweep(temp_fd: int, now_s: float) -> None:
    """Unlink temporary files of which the owner died."""
    with os.scandir(temp_fd) as entries:
        for entry in entries:
            with suppress(FileNotFoundError, IsADirectoryError):
                if entry.stat(follow_symlinks=False).st_mtime < now_s - TEMP_AGE_S_MAX:
                    os.unlink(entry.name, dir_fd=temp_fd)


def _sync_file(path: str) -> None:
    """Write what the kernel holds of a file to its disk: its writer may not have waited for that. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _vanishing(key: str) -> RetryError:
    return RetryError(Reason.STORE_UNAVAILABLE, f"creating an object failed: its directory keeps vanishing. key=`{key}`")


def _read(fd: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of a file; fewer if the file ends earlier, because it may be cut meanwhile. Raises OSError."""
    if start >= end:
        return b""
    data = os.pread(fd, end - start, start)
    if len(data) == end - start or not data:
        return data
    parts = [data]
    start += len(data)
    while start < end and (data := os.pread(fd, end - start, start)):
        parts.append(data)
        start += len(data)
    return b"".join(parts)
