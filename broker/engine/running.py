"""The parts that work while an engine runs: the WAL, the checkpointer that lists its chunks, and the upkeep."""

from __future__ import annotations

import asyncio

from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.upkeep.deletion import Deletion
from headgate.broker.engine.upkeep.file_fold_process import Worker
from headgate.broker.engine.upkeep.file_folder import FileFolder
from headgate.broker.engine.upkeep.handover import Handover
from headgate.broker.engine.upkeep.retention import Sweeper
from headgate.broker.engine.write.checkpoint import Checkpointer
from headgate.broker.engine.write.make import make_wal
from headgate.broker.engine.write.path import WritePath
from headgate.broker.engine.write.wal_watch import WalWatch

CHECKPOINT_BYTES_MAX = 64 << 20
"""Largest number of bytes in complete chunks that the manifest does not list yet. It bounds the bytes that the next start must
read."""


class Running:
    """Makes these parts, and starts and ends them in the right order. Made when the incarnation is open in the manifest."""

    def __init__(self, lifecycle: Lifecycle, leads: Leads, writes: WritePath, deletion: Deletion, worker: Worker) -> None:
        settings, loop = lifecycle.settings, asyncio.get_running_loop()
        self._lifecycle = lifecycle
        self._writes = writes
        self.wal = make_wal(lifecycle, writes, loop)
        self.checkpointer = Checkpointer(
            store=lifecycle.store,
            catalog=lifecycle.catalog,
            incarnation_id=lifecycle.incarnation_id,
            logs=leads.all,
            listed=lambda: self.sweeper.chunks_listed(),
            fail=lifecycle.fail,
            chunks_max=settings.wal_checkpoint_chunks,
            bytes_max=CHECKPOINT_BYTES_MAX,
            interval_s=settings.wal_checkpoint_interval_ms / 1000,
        )
        self.sweeper = Sweeper(lifecycle, leads, deletion, self.wal, self.checkpointer)
        self.offline = FileFolder(lifecycle, leads, worker, self.sweeper.wake, self.sweeper.list_open)
        self.handover = Handover(lifecycle, leads, self.wal, self.checkpointer, writes.durable)
        self._watch: WalWatch | None = None

    def start(self) -> None:
        """Begin their work."""
        self._writes.start(self.wal, self.checkpointer.add)
        self.wal.start()
        self._watch = WalWatch(self.wal, asyncio.get_running_loop())
        self.checkpointer.start()
        self.sweeper.start()
        self.offline.start()

    async def close(self) -> None:
        """Make all accepted records durable, list them in the manifest, and seal the incarnation."""
        if self._watch is not None:
            self._watch.close()
        await self.offline.close()
        # Close both together. The sweeper may wait for the WAL, and the WAL may wait for a store that does not answer, until
        # `close` ends it.
        await asyncio.gather(self.sweeper.close(), self.wal.close())
        await asyncio.sleep(0)
        await self.checkpointer.close()
        # If the WAL is incomplete, the broker must not seal: sealing would drop the records that the manifest does not list. The
        # next start recovers them instead.
        if self._lifecycle.failed is None and self.wal.complete:
            await self.handover.seal_all()
            await self.sweeper.sweep_own()
