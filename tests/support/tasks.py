"""Tasks for the processes of a flood, which import this module: they are pickled by their names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.pipelines.columns.errors import UnlikeError


def divided(text: str) -> Iterator[tuple[int, bytes]]:
    """(bucket, row) of the letters of a text, over three buckets."""
    return ((number % 3, letter.encode()) for number, letter in enumerate(text))


def gathered(writer: int, rows: Iterable[tuple[int, bytes]]) -> list[tuple[int, list[tuple[int, bytes]]]]:
    return [(writer, sorted(rows))]


def failing(kind: str) -> list[object]:
    """Raise an error of a kind."""
    errors = {
        "invalid": InvalidError(Reason.INVALID_RECORD, "a row is wrong. row=`7`"),
        "unlike": UnlikeError("a text is not UTF-8"),
        "retry": RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer"),
    }
    raise errors.get(kind) or TypeError(kind)


def dying(path: str) -> list[object]:
    """Note the try, then die as a process does that the system kills for want of memory."""
    with Path(path).open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def waiting(path: str) -> list[object]:
    """Note the process, then work for longer than any test."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(600)
    return []
