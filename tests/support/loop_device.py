"""A file system on a loop device, which can lose its power, freeze and be full. Needs root.

A power loss is the kernel's own. EXT4_IOC_SHUTDOWN without a flush of the journal ends all I/O of the file system at once, so
that everything in the page cache and in the running journal transaction is lost. Then the file system is mounted again and
recovers from its journal. The device itself keeps every write that reached it: it stands for a disk without a volatile cache.

The loop device is attached and detached explicitly, and never while the image has another one: two devices over one image have two
caches, and the older cache could write over the newer one. In the end e2fsck reads the whole file system. A damaged one is an error
of its own, so nobody takes it for records that a broker lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)."""
_NO_LOG_FLUSH = 2
_FREEZE, _THAW = 0xC0045877, 0xC0045878
"""FIFREEZE and FITHAW: _IOWR('X', 119 and 120, int)."""
UNMOUNT_S = 30.0
"""Longest wait for processes that use the file system or the loop device."""
COMMIT_S = 300
"""Pause between two commits of the journal. It is long, so that only synced data survives a power loss."""


class LoopDevice:
    """An ext4 file system of `size_bytes` in a file, mounted at `path`. Use it as a context manager.

    Attributes:
        image: the file. It is deleted at the end, unless the block raises or `keeps` is set.
    """

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.image, self.path, self._size_bytes = directory / "device.img", directory / "mount", size_bytes
        self.keeps = False
        self._filler = self.path / "filler"
        self._device = ""
        """The loop device, as /dev/loop0; empty: none is attached."""
        self._has_power = True

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        with self.image.open("wb") as file:
            file.truncate(self._size_bytes)
        _run("mkfs.ext4", "-q", "-m", "0", str(self.image))
        self._mount()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raises AssertionError where the file system is damaged, and keeps the image."""
        with contextlib.suppress(OSError):
            self.thaw()
        self._unmount()
        if kind is not None:
            return
        if self._has_power:
            # Without power its journal is not replayed, and e2fsck would read an older state.
            damage = damage_of(self.image)
            assert damage is None, f"the file system is damaged: the test proves nothing. image=`{self.image}`\n{damage}"
        if not self.keeps:
            self.image.unlink()

    def _mount(self) -> None:
        assert not (attached := devices_of(self.image)), f"the image has a loop device already. devices=`{attached}`"
        self._device = _run("losetup", "--find", "--show", str(self.image)).strip()
        try:
            _run("mount", "-o", f"commit={COMMIT_S}", self._device, str(self.path))
        except BaseException:
            self._detach()
            raise

    def _unmount(self) -> None:
        """Unmount and detach, once the last killed process has closed its files."""
        _until(lambda: not subprocess.run(["umount", str(self.path)], check=False, capture_output=True).returncode, "unmounted")
        self._detach()

    def _detach(self) -> None:
        """The kernel detaches a device that somebody else reads (another losetup, say) only after that one closed it."""
        _run("losetup", "--detach", self._device)
        _until(lambda: not devices_of(self.image), "detached")
        self._device = ""

    def _control(self, request: int, argument: bytes) -> None:
        place = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(place, request, argument)
        finally:
            os.close(place)

    def lose_power(self) -> None:
        """Let no write reach the device from now on; every I/O fails with EIO. `restore_power` ends it."""
        self._control(_SHUTDOWN, struct.pack("=I", _NO_LOG_FLUSH))
        self._has_power = False

    def restore_power(self) -> None:
        """Mount the device's content again. All processes that used the file system must have ended."""
        self._unmount()
        self._mount()
        self._has_power = True

    def freeze(self) -> None:
        """Let writes wait until `thaw`."""
        self._control(_FREEZE, struct.pack("=i", 0))

    def thaw(self) -> None:
        """End the freeze. Raises OSError (EINVAL) if the file system is not frozen."""
        self._control(_THAW, struct.pack("=i", 0))

    def fill(self) -> None:
        """Use up all free space. `empty` frees it again."""
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            piece, at = 1 << 24, 0
            while piece >= 1 << 12:
                try:
                    os.posix_fallocate(file, at, piece)
                    at += piece
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
        finally:
            os.close(file)

    def empty(self) -> None:
        """Free the space durably, so that a power loss does not fill the file system again."""
        self._filler.unlink(missing_ok=True)
        place = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def devices_of(image: Path) -> list[str]:
    """The loop devices that an image has."""
    return [line.partition(":")[0] for line in _run("losetup", "--associated", str(image)).splitlines()]


def damage_of(image: Path) -> str | None:
    """What e2fsck finds wrong with an image that is not mounted. None: nothing. It changes nothing."""
    done = subprocess.run(["e2fsck", "-f", "-n", str(image)], check=False, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _until(question: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + UNMOUNT_S
    while not question():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the file system cannot be {what}. waited_s=`{UNMOUNT_S}`")
        time.sleep(0.05)


def refused() -> str | None:
    """The reason why loop devices cannot be used here; None: they can."""
    with tempfile.TemporaryDirectory() as place:
        try:
            with LoopDevice(Path(place) / "try", 1 << 24):
                pass
        except (subprocess.CalledProcessError, FileNotFoundError):
            return "mounting a loop device is not allowed here (it needs root and mkfs.ext4)"
    return None
