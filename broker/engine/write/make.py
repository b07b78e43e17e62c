"""The choice of the WAL: by the store, and by the settings."""

from __future__ import annotations

import asyncio

from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.write.wal import AppendWal, InlineWal, Wal, WalObserver
from headgate.broker.engine.write.wal_group import GroupWriter
from headgate.broker.engine.write.wal_put import PutWal
from headgate.broker.store.open import PRIVATE_URLS

CHUNK_MS = 3600 * 1000
"""Greatest age, in ms, of an incomplete chunk with records. Then the WAL completes the chunk, so that retention by time can
delete it."""


def make_wal(lifecycle: Lifecycle, observer: WalObserver, loop: asyncio.AbstractEventLoop) -> Wal:
    """The WAL of one incarnation; call its `start` next. `observer`: receives its reports."""
    settings = lifecycle.settings
    if lifecycle.store.appender is not None:
        # A private store has no disk, so the loop never waits for a write.
        in_memory = lifecycle.store.url in PRIVATE_URLS
        writer = GroupWriter(
            appender=lifecycle.store.appender,
            incarnation_id=lifecycle.incarnation_id,
            synced=settings.wal_fsync == "always" and not in_memory,
            chunk_bytes=settings.wal_chunk_bytes,
            chunk_ms=CHUNK_MS,
            clock=lifecycle.clock,
        )
        return (InlineWal if in_memory else AppendWal)(writer, loop, observer)
    return PutWal(
        store=lifecycle.store,
        incarnation_id=lifecycle.incarnation_id,
        flush_bytes=settings.wal_flush_bytes,
        flush_interval_ms=settings.wal_flush_interval_ms,
        puts_max=settings.wal_inflight_puts_max,
        clock=lifecycle.clock,
        loop=loop,
        observer=observer,
    )
