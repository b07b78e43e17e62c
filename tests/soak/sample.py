"""Samples of a run: the memory of a broker, and the contents of its store. A thread takes them, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_snapshot
from headgate.broker.engine.base import keys
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.store.interface import Store
from headgate.broker.store.journal import Journal
from headgate.broker.store.open import open_store
from tests.support.broker_process import BrokerProcess
from tests.support.children import children

_PAGE = 1000


class Sampler:
    """Samples until the end of its context. `rows` may be read meanwhile; `add` marks the newest sample with a value of its own.

    Args:
        broker: it must run all the time.
        every_s: pause between two samples.
    """

    def __init__(self, broker: BrokerProcess, every_s: float) -> None:
        self._broker, self._every_s = broker, every_s
        self.rows: list[dict[str, float | None]] = []
        self.folded = 0
        """Most folded chunks that one sample saw."""
        self.files = 0
        """Most files of live records that one sample saw."""
        self.missed = 0
        """Samples without a manifest: it changed faster than it could be read."""
        self._began = time.monotonic()
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def check(self) -> None:
        """Raise the error that ended the sampling."""
        if self._error is not None:
            raise self._error

    def add(self, name: str, value: float) -> None:
        """Add a row with one value that was measured now."""
        self.rows.append({"at_s": self.elapsed_s, name: value})

    def _run(self) -> None:
        try:
            asyncio.run(self._sample_all())
        except BaseException as error:  # noqa: BLE001  # `check` raises it in the main thread
            self._error = error

    async def _sample_all(self) -> None:
        store = open_store(self._broker.store)
        try:
            while not self._over.is_set():
                row: dict[str, float | None] = {
                    "at_s": self.elapsed_s,
                    "rss_bytes": self._broker.resident_bytes(),
                    "encoders_bytes": _resident_bytes_of_children(self._broker.pid),
                    "open_files": self._broker.open_files(),
                }
                try:
                    row |= await self._of_store(store)
                except HeadgateError:
                    self.missed += 1
                self.rows.append(row)
                await asyncio.to_thread(self._over.wait, self._every_s)
        finally:
            await store.close()

    async def _of_store(self, store: Store) -> dict[str, float | None]:
        objects = size_bytes = folded = files = 0
        after = ""
        while True:
            page = await store.list("", after, _PAGE)
            objects += len(page)
            size_bytes += sum(row.size_bytes for row in page)
            folded += sum(".fold-" in row.key for row in page)
            files += sum("/" in row.key and keys.is_folded(row.key) for row in page)
            if len(page) < _PAGE:
                break
            after = page[-1].key
        self.folded, self.files = max(self.folded, folded), max(self.files, files)
        loaded = await Journal(store, keys.MANIFEST).load()
        manifest = Manifest() if loaded.snapshot is None else decode_snapshot(loaded.snapshot)
        for edit in loaded.edits:
            manifest.apply(decode_edits(edit))
        return {"objects": objects, "store_bytes": size_bytes, "manifest_bytes": len(encode_snapshot(manifest))}


def _resident_bytes_of_children(pid: int) -> int:
    total = 0
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            lines = Path(f"/proc/{child}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    return total
