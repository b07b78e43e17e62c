"""The replicas that clients choose for partitions, and their effect on a topic. No I/O.

Theory of operation. The store makes the copies, so the first broker of a chosen list is what counts: it is to lead. `Reassign`
notes the list in the topic's `targets`. While a target's broker does not lead, the reassignment is in progress: the leader orders
moves (`reassign_orders.py`), again and again if some fail, and the next leader continues. When the broker leads, the manifest moves
the list to the topic's `replicas`, in the same step of its fold (`settled`). So each broker knows all reassignments in progress,
and none can be lost.

The placement may move a lead later, for its load or because the broker is gone, but it neither merges the segment nor gives it to a
broker without segments (`reassign_orders.placed`). The list stays, and the first broker of it is Kafka's preferred leader:
ElectLeaders makes it a target again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

REPLICAS_MAX = 10
"""Largest number of replicas of one partition, as for new topics."""


Chosen = Mapping[int, list[int]]
"""Replicas by partition."""


def reassigned(targets: Chosen, replicas: Chosen) -> dict[int, list[int]]:
    """A topic's targets after a client chose these replicas. []: the reassignment in progress is given up."""
    return {number: brokers for number, brokers in {**targets, **replicas}.items() if brokers}


def settled(
    targets: Chosen, replicas: Chosen, lead: Callable[[int], int | None]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """A topic's targets and replicas, once the reassignments that are done have ended.

    Args:
        lead: returns the id of the broker that leads a partition; None: no broker does.
    """
    done = {number: target for number, target in targets.items() if lead(number) == target[0]}
    return {number: target for number, target in targets.items() if number not in done}, {**replicas, **done}
