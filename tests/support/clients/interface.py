"""The one small interface that wraps every foreign client.

A test gives a client the records to write, and the client answers with the offset of each record, in the given order. A test
asks a client to read, and the client answers with every record from the log start to the end of each partition; the client
itself finds that end. The wrapper retries nothing that the client's own library would not retry, and repairs nothing that the
library shows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from tests.support.records import Read, Record

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

DEADLINE_S = 60.0
"""Longest time without progress in one produce or consume call. No test judges by it: it only ends a hang with a message."""

BATCH_BYTES = 1_000_000
"""The producers' batch size: just below Kafka's default `max.message.bytes`, so that a partition's records share a batch."""

REQUEST_BYTES = 8 << 20
"""The producers' request size: far above every test record, so that only the broker's limits count."""

FETCH_BYTES = 8 << 20
"""The consumers' limit for one partition in one fetch."""


class ClientError(Exception):
    """The client's library reported an error. `code` is Kafka's error code, or None when the library gave none."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"{message} (kafka error {code})")
        self.code = code


class Client(Protocol):
    """A foreign Kafka client. Methods block; every call opens and closes its own connections."""

    name: str
    empty_records: bool
    """False: the client's producer refuses a record with neither key nor value."""
    null_header_values: bool
    """False: the client's producer cannot write a header with a null value."""
    header_order: bool
    """False: the client keeps headers grouped by key, as a producer and as a consumer."""

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[int]:
        """Write all records, in order, and wait for the acks. Returns each record's offset (-1 with acks=0). Raises ClientError."""

    def consume(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> Mapping[int, list[Read]]:
        """Read every record from the log start to the end of each partition, in the order shown. Raises ClientError."""


class Deadline:
    """Ends a loop that waits for a client."""

    def __init__(self, what: str, seconds: float = DEADLINE_S) -> None:
        self._what = what
        self._seconds = seconds
        self._ends = time.monotonic() + seconds
        self._done = 0

    def check(self, done: int = 0, *details: object) -> None:
        """Raises AssertionError if `done`, the count of what the loop has so far, has not changed for too long.

        A loop that waits for one event has no such count, and all its time is limited.
        """
        if done != self._done:
            self._done, self._ends = done, time.monotonic() + self._seconds
        if time.monotonic() > self._ends:
            raise AssertionError(f"{self._what} does not end. seconds=`{self._seconds}` done=`{done}` details=`{details}`")
