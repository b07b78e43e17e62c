"""Registers the topics' tables in a catalog of the user's (`table_catalog`), beside the cluster's own.

The leader tells this part each table's newest metadata. A catalog that does not answer, or refuses a table, is reported once, and
tried again with growing pauses until it takes it; then that is reported, too. Nothing waits for it: what is not registered yet
is remembered by table, the newest metadata only.
"""

from __future__ import annotations

import asyncio

from headgate.broker.control.catalog_process import Forget, Register, Request, Worker
from headgate.broker.runtime.logging import get_logger

logger = get_logger("tables")

PAUSE_S = 1.0
PAUSE_S_MAX = 60.0
"""Longest pause between two attempts at a catalog that fails, in seconds."""
FAILURES_MAX = 3
"""Failures after which an attempt at many tables ends: the catalog itself is probably gone."""


class TableCatalog:
    """The registrations of one term.

    Args:
        namespace: of the tables in the catalog.
        prefix: of the addresses of all metadata of this cluster.
    """

    def __init__(self, worker: Worker, namespace: str, prefix: str) -> None:
        self._worker = worker
        self._namespace = namespace
        self._prefix = prefix
        self._metadata: dict[str, str] = {}
        """The newest metadata of each table, by the name of its topic."""
        self._due: set[str] = set()
        self._stale = False
        """True if the catalog may have tables of topics that are gone."""
        self._news = asyncio.Event()
        self._failing: set[str] = set()
        """Tables whose last request failed; "" for the list of tables."""

    def show(self, topic: str, metadata: str) -> None:
        """A table has new metadata."""
        if self._metadata.get(topic) != metadata:
            self._metadata[topic] = metadata
            self._due.add(topic)
            self._news.set()

    def forget(self, topic: str) -> None:
        """A topic is gone."""
        self._metadata.pop(topic, None)
        self._due.discard(topic)
        self._failing.discard(topic)
        self.all_shown()

    def all_shown(self) -> None:
        """All tables were shown: others of this cluster are of topics that are gone."""
        self._stale = True
        self._news.set()

    async def run(self) -> None:
        """Keep the catalog in step, until the term ends."""
        pause_s = PAUSE_S
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if await self.run_once():
                    pause_s = PAUSE_S
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
                    self._news.set()
        finally:
            await self._worker.close()

    async def run_once(self) -> bool:
        """Register what is due. Returns False if something failed, and is still due."""
        before, failures = bool(self._failing), 0
        # Tables that failed come last, so that they do not keep the others waiting.
        for topic in sorted(self._due, key=lambda name: (name in self._failing, name)):
            if failures == FAILURES_MAX:
                break
            metadata = self._metadata.get(topic)
            if metadata is None:
                continue
            if await self._do(topic, Register(self._namespace, topic, metadata, self._prefix)):
                if self._metadata.get(topic) == metadata:
                    self._due.discard(topic)
            else:
                failures += 1
        if self._stale and failures < FAILURES_MAX:
            self._stale = False
            self._stale |= not await self._do("", Forget(self._namespace, sorted(self._metadata), self._prefix))
        if before and not self._failing:
            logger.info("table_catalog_works_again", namespace=self._namespace)
        return not self._due and not self._stale

    async def _do(self, topic: str, request: Request) -> bool:
        """Do a request, and report the first of several failures."""
        error = await self._worker.do(request)
        if not error:
            self._failing.discard(topic)
            return True
        if not self._failing:
            logger.warning("table_catalog_failed", namespace=self._namespace, topic=topic, error=error)
        self._failing.add(topic)
        return False
