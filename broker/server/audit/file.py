"""Where audit lines go: a file of their own, or the broker's log."""

from __future__ import annotations

import os
import stat

from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.threads import Pool

logger = get_logger("audit")

WAITING_MAX = 10_000
"""Lines that wait for a slow disk; each is below 20 KB. Above it lines go to the broker's log."""
MODE = 0o640


def to_log(row: dict[str, object], line: str) -> None:
    """Write a line to the broker's log."""
    fields = {name: value if isinstance(value, int) else _text(value) for name, value in row.items() if name != "time"}
    (logger.warning if row["outcome"] == "refused" else logger.info)("audit", **fields)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class AuditFile:
    """Appends lines to a file, in a thread. A file that was moved away is begun anew, so that it can be rotated.

    Raises FatalError(INVALID_CONFIG) if the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._waiting = 0
        try:
            self._open()
        except OSError as error:
            raise FatalError(Reason.INVALID_CONFIG, f"the audit file cannot be written: {error.strerror}. path=`{path}`") from error
        self._pool = Pool(1, "audit")

    def __call__(self, row: dict[str, object], line: str) -> None:
        if self._waiting >= WAITING_MAX:
            to_log(row, line)
            return
        self._waiting += 1
        self._pool.submit(self._write, row, line)

    def close(self) -> None:
        """Write the lines that wait."""
        self._pool.shutdown()
        os.close(self._descriptor)

    def _write(self, row: dict[str, object], line: str) -> None:
        self._waiting -= 1
        data = (line + "\n").encode()
        try:
            self._follow()
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            logger.error("audit_file_failed", path=self._path, error=error.strerror or str(error))
            to_log(row, line)

    def _follow(self) -> None:
        """Open the file again if another one, or none, has its name."""
        try:
            there = os.stat(self._path)
            if os.path.samestat(there, os.fstat(self._descriptor)):
                return
        except FileNotFoundError:
            pass
        self._open()

    def _open(self) -> None:
        fresh = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
        if not stat.S_ISREG(os.fstat(fresh).st_mode):
            os.close(fresh)
            raise OSError(0, "it is no regular file")
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = fresh
