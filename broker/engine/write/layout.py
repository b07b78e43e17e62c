"""The order of a group's batches in its chunk."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter

from headgate.broker.engine.partition.log import PartitionLog, Pending

_log_of = itemgetter(0)


def by_partition(group: list[Pending]) -> list[Pending]:
    """The batches of a group with those of each partition together, in their order.

    A reader of one partition then finds one stretch in each group, instead of one batch here and one there. A group counts only
    as a whole, so the order of its partitions means nothing.
    """
    if not 1 < len(set(map(_log_of, group))) < len(group):
        return group
    logs: defaultdict[PartitionLog, list[Pending]] = defaultdict(list)
    for pending in group:
        logs[pending[0]].append(pending)
    return [pending for own in logs.values() for pending in own]
