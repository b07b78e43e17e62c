"""Processes that a process has begun, from /proc: `ps` cuts long command lines where COLUMNS is set, and is not on each machine."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> dict[int, str]:
    """The command lines of a process's children, by process id; those that end meanwhile are left out."""
    found: dict[int, str] = {}
    # A thread may end meanwhile; its children then belong to another one.
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in listed.read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    found[int(child)] = (
                        Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
                    )
    return found
