"""A foreign directory, from which objects are read. It is never written to."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from contextlib import ExitStack

from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.tasks import outlast
from headgate.broker.store.keys import check_key, check_range, not_found
from headgate.broker.store.os_errors import raise_store_error

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class ReadableDirectory:
    """Files below `root`. `root` may itself be a symbolic link; below it no link is followed.

    Raises FatalError(STORE_MISCONFIGURED) if it is not a directory.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        if not os.path.isdir(self._root):
            raise FatalError(Reason.STORE_MISCONFIGURED, f"this is not a directory on the broker's machine. path=`{self._root}`")

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only at the object's end. Raises InvalidError(NOT_FOUND)."""
        check_key(key)
        check_range(start, length)
        return await asyncio.get_running_loop().run_in_executor(None, self._read, key, start, length)

    async def open_file(self, key: str) -> int:
        """A descriptor of an object, for another process to read from. The caller closes it."""
        check_key(key)
        return await descriptor_of(asyncio.get_running_loop().run_in_executor(None, self._open, key))

    async def close(self) -> None:
        """Do nothing: no descriptor is held open."""

    def _read(self, key: str, start: int, length: int) -> bytes:
        descriptor = self._open(key)
        try:
            parts: list[bytes] = []
            while length > 0 and (part := os.pread(descriptor, length, start)):
                parts.append(part)
                start, length = start + len(part), length - len(part)
            return b"".join(parts)
        except OSError as error:
            raise_store_error(error, "reading", key)
        finally:
            os.close(descriptor)

    def _open(self, key: str) -> int:
        *parents, name = key.split("/")
        try:
            with ExitStack() as opened:
                descriptor = _keep(opened, os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                for parent in parents:
                    descriptor = _keep(opened, os.open(parent, _DIRECTORY, dir_fd=descriptor))
                found = os.open(name, _FILE, dir_fd=descriptor)
            if not stat.S_ISREG(os.fstat(found).st_mode):
                os.close(found)
                raise not_found(key)
            return found
        except OSError as error:
            # ELOOP is a symbolic link. It counts as a missing object, like a directory in the place of a file.
            if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or error.errno == errno.ELOOP:
                raise not_found(key) from error
            raise_store_error(error, "reading", key)


async def descriptor_of(opening: asyncio.Future[int]) -> int:
    """The descriptor that a thread opens. It is closed if the caller is cancelled meanwhile."""
    try:
        return await outlast(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())


def _keep(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor
