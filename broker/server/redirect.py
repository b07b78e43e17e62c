"""Which readers of history go to a lane: one rule for Kafka's fetches and for those of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.broker.cluster import lanes

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Incarnation
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.engine.read.view import Reach


def lane_for(engine: Engine, log: PartitionLog, reached: Reach | None, rack: str = "") -> Incarnation | None:
    """The lane for a reader at a lead. None: the lead serves it, because little history lies ahead, or no lane runs.

    Args:
        reached: what the reader's next read covers.
        rack: of the client.
    """
    if engine.lane is not None or reached is None or reached[2] is None:
        return None
    there = engine.lanes()
    if not there and not engine.starts_lanes:
        return None
    sealed = log.sealed
    ahead = (sealed.extents[row] for row in range(sealed.find(reached[0]), len(sealed)))
    if not lanes.is_far(ahead, reached[0], engine.settings.history_lane_bytes):
        return None
    engine.lane_wanted()
    # The units of adopted files have rows of all partitions, so one lane reads them all.
    spread = 0 if reached[2][0].adopted else log.number
    return lanes.choose(there, rack, engine.broker_id, spread) if there else None
