"""Turns positions, as written in requests, into offsets."""

from __future__ import annotations

from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.wire.grpc.headgate.v1 import log_pb2


async def resolve(engine: Engine, partition: PartitionLog, position: log_pb2.Position) -> tuple[int, int | None]:
    """(offset, timestamp in ms of the record there if the request asked for a time and such a record exists, otherwise None).

    Raises:
        InvalidError: OFFSET_OUT_OF_RANGE; INVALID_REQUEST if the request has no position.
        RetryError: the store does not answer, or another broker may lead the partition by now.
    """
    at = position.WhichOneof("at")
    if at == "offset":
        await engine.check_range(partition, position.offset)
        return position.offset, None
    await engine.confirm(partition)
    match at:
        case "earliest":
            return partition.log_start, None
        case "latest":
            return partition.stable_end, None
        case "timestamp_ms":
            found = await engine.offset_for_timestamp(partition, position.timestamp_ms)
        case "max_timestamp":
            found = await engine.max_timestamp(partition)
        case _:
            raise InvalidError(Reason.INVALID_REQUEST, "no position is given: set one of its fields")
    # Readers see committed records only, so a record of an open transaction counts as not written yet.
    return (partition.stable_end, None) if found is None or found[1] >= partition.stable_end else (found[1], found[0])
