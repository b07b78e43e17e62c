"""The assignors of consumer groups (KIP-848): which member reads which partitions. Pure functions.

Both keep partitions where they are as far as balance allows: each partition that moves pauses its records until the old owner has
given it up.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeAlias

Partition: TypeAlias = tuple[uuid.UUID, int]
"""Topic id and number."""
Assignment: TypeAlias = Mapping[str, frozenset[Partition]]
"""By member id."""

STEPS_MAX = 2_000_000
"""Comparisons of members in one assignment, about a second of CPU time. Then the result may be a little less even."""


def uniform(subscriptions: Mapping[str, frozenset[uuid.UUID]], counts: Mapping[uuid.UUID, int], current: Assignment) -> Assignment:
    """All members get the same number of partitions, give or take one, as far as their subscriptions allow.

    Args:
        subscriptions: the topics of each member.
        counts: partitions of each topic.
        current: the assignment before this one.
    """
    if not subscriptions:
        return {}
    kept: dict[str, list[Partition]] = {}
    taken: set[Partition] = set()
    for member in sorted(subscriptions):
        topics = subscriptions[member]
        mine = [
            partition
            for partition in sorted(current.get(member, ()))
            if partition[0] in topics and partition[1] < counts.get(partition[0], 0)
        ]
        kept[member] = [partition for partition in mine if partition not in taken]
        taken.update(kept[member])
    if len(set(subscriptions.values())) == 1:
        return _even(kept, _all_of(next(iter(subscriptions.values())), counts), taken)
    return _balanced(subscriptions, counts, kept, taken)


def _all_of(topics: frozenset[uuid.UUID], counts: Mapping[uuid.UUID, int]) -> list[Partition]:
    return [(topic, number) for topic in sorted(topics) for number in range(counts.get(topic, 0))]


def _even(kept: dict[str, list[Partition]], everything: list[Partition], taken: set[Partition]) -> Assignment:
    """All members have the same topics. Those with the most partitions now get the larger share."""
    floor, larger = divmod(len(everything), len(kept))
    quotas: dict[str, int] = {}
    for at, member in enumerate(sorted(kept, key=lambda member: (-len(kept[member]), member))):
        quotas[member] = floor + (at < larger)
        taken.difference_update(kept[member][quotas[member] :])
        del kept[member][quotas[member] :]
    free = iter([partition for partition in everything if partition not in taken])
    for member, mine in kept.items():
        mine += [next(free) for _ in range(quotas[member] - len(mine))]
    return {member: frozenset(mine) for member, mine in kept.items()}


def _balanced(
    subscriptions: Mapping[str, frozenset[uuid.UUID]],
    counts: Mapping[uuid.UUID, int],
    kept: dict[str, list[Partition]],
    taken: set[Partition],
) -> Assignment:
    """Members have different topics. A partition goes to the reader of its topic with the fewest partitions."""
    readers: dict[uuid.UUID, list[str]] = defaultdict(list)
    for member, topics in sorted(subscriptions.items()):
        for topic in topics:
            readers[topic].append(member)
    owners = {partition: member for member, mine in kept.items() for partition in mine}
    loads = {member: len(mine) for member, mine in kept.items()}
    everything = _all_of(frozenset(readers), counts)
    everything.sort(key=lambda partition: len(readers[partition[0]]))  # the topics with the fewest choices first
    for partition in everything:
        if partition not in taken:
            owners[partition] = min(readers[partition[0]], key=loads.__getitem__)
            loads[owners[partition]] += 1
    steps = max(sum(len(readers[topic]) for topic, _ in everything), 1)
    for _ in range(max(STEPS_MAX // steps, 1)):
        moved = False
        for partition in everything:
            least = min(readers[partition[0]], key=loads.__getitem__)
            owner = owners[partition]
            if loads[owner] > loads[least] + 1:
                loads[owner] -= 1
                loads[least] += 1
                owners[partition] = least
                moved = True
        if not moved:
            break
    result: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    for partition, member in owners.items():
        result[member].add(partition)
    return {member: frozenset(mine) for member, mine in result.items()}


def by_range(subscriptions: Mapping[str, frozenset[uuid.UUID]], counts: Mapping[uuid.UUID, int], current: Assignment) -> Assignment:
    """Neighbouring partitions of each topic go to one member. Topics with equal subscribers and numbers of partitions are split
    alike, so that a member can join their records. `current` does not matter: the order of the members decides."""
    result: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    readers: dict[uuid.UUID, list[str]] = defaultdict(list)
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            readers[topic].append(member)
    for topic, members in readers.items():
        floor, larger = divmod(counts.get(topic, 0), len(members))
        start = 0
        for at, member in enumerate(members):
            end = start + floor + (at < larger)
            result[member].update((topic, number) for number in range(start, end))
            start = end
    return {member: frozenset(mine) for member, mine in result.items()}


ASSIGNORS: dict[str, Callable[[Mapping[str, frozenset[uuid.UUID]], Mapping[uuid.UUID, int], Assignment], Assignment]] = {
    "uniform": uniform,
    "range": by_range,
}
"""The first one is the default."""
DEFAULT_ASSIGNOR = "uniform"
