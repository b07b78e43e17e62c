"""Checkpoints of the state of idempotent producers: objects in the store that survive the lead of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.log.crc import crc32c
from headgate.broker.log.producers import ProducerState
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason
from headgate.broker.store.interface import Store

PRODUCERS_MAGIC = b"HGp2"
"""First bytes of a checkpoint of producer state. Then: CRC-32C of the rest, number of states, states."""
PRODUCERS_MAGIC_BEFORE = b"HGpr"
"""First bytes of a checkpoint from an older release, which has no CRC. Then: number of states, states."""
Producers: TypeAlias = dict[bytes, tuple[int, ProducerState]]
"""By stream key: (offset up to which the state is known, the state)."""


def encode_producers(states: Mapping[bytes, tuple[int, bytes]]) -> bytes:
    """Encode a checkpoint of producer state: by stream key, (offset up to which it is known, `ProducerState.encode`)."""
    parts = [len(states).to_bytes(4, "little")]
    for stream, (offset, state) in states.items():
        parts += [stream, offset.to_bytes(8, "little"), len(state).to_bytes(4, "little"), state]
    body = b"".join(parts)
    return PRODUCERS_MAGIC + crc32c(body).to_bytes(4, "little") + body


async def encode_states(logs: Iterable[PartitionLog]) -> bytes:
    """A checkpoint of the durable producer state of some partitions. Yields to the loop after each partition: one takes up to 10
    ms."""
    states: dict[bytes, tuple[int, bytes]] = {}
    for partition in list(logs):
        if not partition.producers_state.is_empty:
            durable = partition.high_watermark
            states[partition.stream] = durable, partition.producers_state.encode(durable)
            await asyncio.sleep(0)
    return encode_producers(states)


def decode_producers(data: bytes) -> Producers:
    """The inverse of `encode_producers`. Raises CorruptError."""
    view = memoryview(data)
    states: Producers = {}
    if view[:4] == PRODUCERS_MAGIC and len(view) >= 12 and crc32c(view[8:]) == int.from_bytes(view[4:8], "little"):
        view = view[8:]
    elif view[:4] == PRODUCERS_MAGIC_BEFORE and len(view) >= 8:
        view = view[4:]
    else:
        raise CorruptError(Reason.CORRUPT_STORE, "producer checkpoint is not what was written")
    cut_off = CorruptError(Reason.CORRUPT_STORE, f"producer checkpoint is cut off. bytes=`{len(data)}`")
    position = 4
    for _ in range(int.from_bytes(view[:4], "little")):
        if position >= len(view):
            raise cut_off
        stream = bytes(view[position : position + 20])
        offset = int.from_bytes(view[position + 20 : position + 28], "little")
        size = int.from_bytes(view[position + 28 : position + 32], "little")
        position += 32 + size
        states[stream] = offset, ProducerState.decode(view[position - size : position])
    if position != len(view):
        raise cut_off
    return states


async def load_producers(store: Store, objects: Iterable[str], damaged: dict[str, CorruptError] | None = None) -> Producers:
    """The newest state of every stream in some checkpoints.

    Args:
        damaged: takes the error of each damaged or lost checkpoint, which is then left out. None: the error is raised.

    Raises:
        CorruptError: a checkpoint is damaged or lost. RetryError.
    """
    newest: Producers = {}
    for key in objects:
        try:
            states = await _load_checkpoint(store, key)
        except CorruptError as error:
            if damaged is None:
                raise
            damaged[key] = error
            continue
        for stream, (offset, state) in states.items():
            if stream not in newest or newest[stream][0] <= offset:
                newest[stream] = offset, state
    return newest


async def _load_checkpoint(store: Store, key: str) -> Producers:
    try:
        return decode_producers(await store.get(key))
    except InvalidError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        raise CorruptError(Reason.CORRUPT_STORE, f"a checkpoint of producers is missing. key=`{key}`") from error
    except CorruptError as error:
        raise CorruptError(error.reason, f"{error.message} key=`{key}`") from error
