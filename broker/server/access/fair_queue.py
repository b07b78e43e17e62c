"""Who may use a scarce resource next. No I/O.

Sources take turns, and within a source names take turns. So a crowd behind one source delays the others by one use at a time, and
within its own source it delays a name by one use for each other name.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items that wait, by source and name.

    Args:
        source_max: most items of one source.
        total_max: most items of all.
    """

    def __init__(self, source_max: int, total_max: int) -> None:
        self._source_max, self._total_max = source_max, total_max
        self._waiting: dict[tuple[str, str], dict[str, deque[Item]]] = {}
        """By source and name. The first source, and its first name, are next."""
        self._count: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return sum(self._count.values())

    def add(self, source: tuple[str, str], name: str, item: Item) -> Item | None:
        """Add an item. Returns the item that has no place: the newest of the source and name with the most, or `item` itself."""
        left_out = None
        if self._count.get(source, 0) >= self._source_max:
            left_out = self._newest(source, name)
        elif len(self) >= self._total_max:
            left_out = self._newest(max(self._count, key=lambda owner: self._count[owner]), name)
        if left_out is None and (self._count.get(source, 0) >= self._source_max or len(self) >= self._total_max):
            return item
        self._waiting.setdefault(source, {}).setdefault(name, deque()).append(item)
        self._count[source] = self._count.get(source, 0) + 1
        return left_out

    def _newest(self, source: tuple[str, str], name: str) -> Item | None:
        """Take out the newest item of the name with the most in a source; None: `name` itself has as many."""
        names = self._waiting.get(source)
        if not names:
            return None
        most = max(names, key=lambda name: len(names[name]))
        if len(names[most]) <= len(names.get(name, ())) or len(names[most]) == 1:
            return None
        self._count[source] -= 1
        return names[most].pop()

    def next(self) -> Item | None:
        """Take out the next item; None: nothing waits."""
        if not self._waiting:
            return None
        source = next(iter(self._waiting))
        names = self._waiting.pop(source)
        name = next(iter(names))
        items = names.pop(name)
        item = items.popleft()
        if items:
            names[name] = items  # behind the other names
        self._count[source] -= 1
        if names:
            self._waiting[source] = names  # behind the other sources
        else:
            del self._count[source]
        return item
