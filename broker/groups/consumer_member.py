"""A member of a consumer group (KIP-848), and how it moves from its present partitions to its target. No I/O.

A member first gives up what it must not have, then gets what is free::

    STABLE ──target has other partitions──▶ UNREVOKED: it was told to give some up, and has not said yet that it did
       ▲                                        │ it has
       └──────── it has all of the target ──────┴──▶ UNRELEASED: others still have some of its target

With the epoch of the target it may commit. It keeps its epoch while it gives up partitions, so that it can commit them.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from enum import IntEnum

from headgate.broker.groups.assignors import Partition

LEAVES = -1
LEAVES_FOR_NOW = -2
"""A static member that will come back."""
NOTHING: frozenset[Partition] = frozenset()


class Progress(IntEnum):
    """With Kafka's numbers."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True)
class Classic:
    """A member that still uses JoinGroup and SyncGroup. `protocols`: (name, metadata) in its order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a member has said about itself. `topics`: names that it reads; `pattern`: those of more topics. `classic`: None for a
    member that uses ConsumerGroupHeartbeat."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: Classic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a member has. `revoking`: partitions that it must give up; none of them is in `assigned`."""

    epoch: int = 0
    epoch_before: int = 0
    progress: Progress = Progress.STABLE
    assigned: frozenset[Partition] = NOTHING
    revoking: frozenset[Partition] = NOTHING

    @property
    def all(self) -> frozenset[Partition]:
        return self.assigned | self.revoking


def reconcile(
    holding: Holding,
    target: frozenset[Partition],
    target_epoch: int,
    owned: Set[Partition] | None,
    is_free: Callable[[Partition], bool],
) -> Holding:
    """The next step of a member towards its target.

    Args:
        owned: the partitions that the member says it has; None: it says nothing.
        is_free: True if no other member has a partition.
    """
    if holding.progress is Progress.UNREVOKED:
        if owned is None or owned & holding.revoking:
            return holding
    elif holding.progress is Progress.STABLE and holding.epoch == target_epoch:
        return holding
    keeps = holding.assigned & target
    gives_up = holding.assigned - target
    if gives_up and (owned is None or owned & gives_up):
        return replace(holding, progress=Progress.UNREVOKED, assigned=keeps, revoking=gives_up)
    missing = target - keeps
    gets = frozenset(topic for topic in missing if is_free(topic))
    return Holding(
        epoch=target_epoch,
        epoch_before=holding.epoch if holding.epoch != target_epoch else holding.epoch_before,
        progress=Progress.STABLE if gets == missing else Progress.UNRELEASED,
        assigned=keeps | gets,
    )
