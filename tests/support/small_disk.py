"""A small file system in memory, which tests fill. Needs root."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(place: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of this size, mounted at `place`."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "headgate-test", str(place)], check=True)
    try:
        yield place
    finally:
        # Unmounts lazily: the broker may still hold files when a test has failed.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_disk(place: Path) -> Path:
    """Fill the file system to its last byte. Returns the file that fills it."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"\x00" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return ballast
