"""A store that forgets its WAL: `null:`. It measures the broker without a medium; nothing survives, old records cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.broker.store.interface import Appender, AppendFile, Buffer
from headgate.broker.store.memory import MemoryStore


class NullStore(MemoryStore):
    """A MemoryStore with append files that drop all bytes."""

    @property
    def url(self) -> str:
        return "null:"

    @property
    def appender(self) -> Appender | None:
        return _NullAppender()


class _NullAppender:
    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        return _NullAppendFile()

    def exists(self, key: str) -> bool:
        return False


class _NullAppendFile:
    @property
    def alignment_bytes(self) -> int:
        return 1

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Do nothing: nothing here is durable."""

    def truncate(self, size_bytes: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
