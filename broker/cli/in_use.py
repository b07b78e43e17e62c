"""Is a store in use? `headgate up` asks before it starts brokers, which would take the store over from the running ones."""

from __future__ import annotations

import asyncio

from headgate.broker.client import Admin
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.catalog import read_manifest
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.store.open import PRIVATE_URLS, open_store

ANSWER_MS = 2_000
"""Longest wait for the answer of a broker that the store names. A dead one refuses the connection at once."""


async def check_unused(settings: Settings) -> None:
    """Raise InvalidError if brokers serve the store, with their addresses."""
    brokers = await _running(settings)
    if brokers:
        kafka = ",".join(f"{broker.host}:{broker.kafka_port}" for broker in brokers)
        grpc = ",".join(f"{broker.host}:{broker.grpc_port}" for broker in brokers)
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"a cluster serves this store already. kafka=`{kafka}` grpc=`{grpc}` store=`{settings.store}` "
            f"(point clients there, or stop it first; `headgate status --cluster {grpc}` shows it)",
        )


async def _running(settings: Settings) -> list[Incarnation]:
    """The brokers of the store that answer. None if the store cannot be read: the broker that starts will say why."""
    if settings.store in PRIVATE_URLS:
        return []
    try:
        store = open_store(settings.store, required_key=keys.CLUSTER_ID)
        try:
            manifest = await read_manifest(store)
        finally:
            await store.close()
    except HeadgateError:
        return []
    open_ones = [incarnation for incarnation in manifest.incarnations.values() if not incarnation.sealed and incarnation.grpc_port]
    answers = await asyncio.gather(*map(_answers, open_ones))
    return [address for address, answered in zip(open_ones, answers, strict=True) if answered]


async def _answers(broker: Incarnation) -> bool:
    """True if this very run of the broker serves at its address."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(broker.host, broker.grpc_port), ANSWER_MS / 1000)
        writer.close()
        async with Admin(f"{broker.host}:{broker.grpc_port}", timeout_ms=ANSWER_MS) as admin:
            status = await admin.status(rate_window_ms=0)
    except (OSError, TimeoutError, HeadgateError):
        return False
    return any(member.incarnation_id == broker.id for member in status.brokers)
