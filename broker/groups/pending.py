"""Positions of one group in transactions without an outcome, and which producers have some in a shard. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.broker.groups.records import OffsetKey, OffsetValue, PendingKey

PENDING_MAX = 10_000
"""Positions of one transaction for one group. Its end is one batch with two rows for each, which must fit into a record batch of
16 MiB."""


class Pending:
    """The pending positions of one group."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, tuple[int, dict[tuple[str, int], OffsetValue]]] = {}
        """By producer id: (epoch, values by topic and partition). No empty inner dictionaries."""

    def __bool__(self) -> bool:
        return bool(self._producers)

    def __len__(self) -> int:
        return sum(len(values) for _, values in self._producers.values())

    def set(self, key: PendingKey, epoch: int, value: OffsetValue | None) -> None:
        """Store a position, or delete it. A newer epoch replaces all positions of older ones."""
        known = self._producers.get(key.producer_id)
        place = key.topic, key.partition
        if value is None:
            if known is not None:
                known[1].pop(place, None)
                if not known[1]:
                    del self._producers[key.producer_id]
        elif known is not None and known[0] == epoch:
            known[1][place] = value
        else:
            self._producers[key.producer_id] = epoch, {place: value}

    def epoch(self, producer_id: int) -> int:
        """The epoch of a producer with pending positions; -1 without any."""
        known = self._producers.get(producer_id)
        return -1 if known is None else known[0]

    def count(self, producer_id: int) -> int:
        """The number of positions of a producer."""
        known = self._producers.get(producer_id)
        return 0 if known is None else len(known[1])

    def has(self, topic: str, partition: int) -> bool:
        """True if a partition has a pending position."""
        return any((topic, partition) in values for _, values in self._producers.values())

    def items(self, group: str) -> Iterator[tuple[PendingKey, int, OffsetValue]]:
        """Every position: key, epoch, value."""
        for producer_id, (epoch, values) in self._producers.items():
            for (topic, partition), value in values.items():
                yield PendingKey(group, topic, partition, producer_id), epoch, value


def offset_key(key: PendingKey) -> OffsetKey:
    """The key of a position once its transaction is committed."""
    return OffsetKey(key.group, key.topic, key.partition)


class Producers:
    """The producers with pending positions in one shard, and the consents of their coordinators.

    A commit asks for a token, then the coordinator whether the group is part of the transaction. The end of the transaction
    makes the token invalid: a commit that was late would otherwise stay pending for ever.
    """

    __slots__ = ("_asked", "_asks", "_groups")

    def __init__(self) -> None:
        self._groups: dict[int, dict[str, None]] = {}
        """Ids of groups by producer id."""
        self._asked: dict[int, int] = {}
        self._asks = 0

    def ask(self, producer_id: int) -> int:
        """The token for a commit of a producer."""
        if producer_id not in self._asked:
            if len(self._asked) >= PENDING_MAX:
                del self._asked[next(iter(self._asked))]
            self._asks += 1
            self._asked[producer_id] = self._asks
        return self._asked[producer_id]

    def is_valid(self, producer_id: int, token: int) -> bool:
        """True if the producer's transaction has not ended since `ask`."""
        return self._asked.get(producer_id) == token

    def note(self, producer_id: int, group_id: str) -> None:
        """A group has a pending position of a producer."""
        self._groups.setdefault(producer_id, {})[group_id] = None

    def end(self, producer_id: int) -> list[str]:
        """The producer's transaction ends. Returns the groups that may have positions of it; they stay noted until `forget`."""
        self._asked.pop(producer_id, None)
        return list(self._groups.get(producer_id, ()))

    def forget(self, producer_id: int, group_id: str) -> None:
        """A group has no position of a producer any more."""
        groups = self._groups.get(producer_id)
        if groups is not None:
            groups.pop(group_id, None)
            if not groups:
                del self._groups[producer_id]

    def clear(self) -> None:
        self._groups.clear()
        self._asked.clear()
