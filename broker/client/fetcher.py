"""Records as a client reads them from the brokers, as columns: `Fetcher`. No record becomes a Python object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from headgate.broker.client.backoff import Backoff
from headgate.broker.client.cluster import LOG, ClusterClient
from headgate.broker.client.lanes import LaneWays
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.wire.grpc.headgate.v1 import log_pb2

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_BYTES = 16 << 20
WAIT_MS = 1_000
"""Longest wait of a broker for records, when there are none yet."""
LANE_S = 10.0
"""Longest wait, in seconds, for the answer of a lane. Then the lead answers."""
STALL_MS = 60_000
"""Longest wait for records that must exist: below the high watermark, and not behind an open gate."""


class Fetcher(ClusterClient):
    """Fetches from the leads of partitions, and follows changes of leads; history comes from lanes where they run. An async context
    manager.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
    """

    def __init__(self, cluster: str, *, timeout_ms: int = 60_000) -> None:
        super().__init__(cluster, timeout_ms=timeout_ms)
        self._timeout_s = timeout_ms / 1000
        self._ways = LaneWays()

    async def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES, wait_ms: int = 0
    ) -> log_pb2.FetchResponse:
        """One answer of the current lead, or of a lane; waits through a change of leads. Raises HeadgateError."""
        loop, key = asyncio.get_running_loop(), (topic, partition)
        deadline = loop.time() + self._timeout_s
        backoff = Backoff()
        refresh = False
        request = log_pb2.FetchRequest(
            topic=topic, partition=partition, offset=offset, max_bytes=max_bytes, max_wait_ms=wait_ms, min_bytes=1
        )
        answer: log_pb2.FetchResponse
        while True:
            if (lane := self._ways.address(key)) is not None:
                try:
                    answer = await self._cluster.link(lane).call(LOG["Fetch"], request, min(LANE_S, self._timeout_s))
                except HeadgateError:
                    self._ways.back(key, loop.time())  # the lead has the records, or says what is wrong
                else:
                    self._ways.served(key)
                    return answer
            request.follows_lanes = self._ways.may_go(key, loop.time())
            try:
                view = await self._cluster.topic(topic, refresh=refresh)
                answer = await self._cluster.leader(view, partition).call(LOG["Fetch"], request, self._timeout_s + wait_ms / 1000)
                if not answer.HasField("lane"):
                    return answer
                self._ways.go(key, self._cluster.address_of(answer.lane), loop.time())
            except RetryError:
                pause_s = backoff.pause_s()
                if loop.time() + pause_s >= deadline:
                    raise
                refresh = True
                await asyncio.sleep(pause_s)

    async def read(
        self, topic: str, partition: int, start: int, end: int, *, with_timestamp_type: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """The records with offsets in [start, end), in `headgate.broker.log.history_columns.SCHEMA`; control batches are skipped.

        `end` is at most the high watermark, and no open gate may stand before it. The next batch arrives while the caller
        handles one.

        Args:
            with_timestamp_type: add the column `timestampType`, see `headgate.broker.log.history_columns.timestamp_types`.

        Raises:
            RetryError: TIMED_OUT when no records come for a minute, because an open gate stands before them.
        """
        import pyarrow as pa

        from headgate.broker.log.history_columns import decode_batches, timestamp_types

        position = start
        waited_ms = 0
        coming = asyncio.create_task(self.fetch(topic, partition, position)) if start < end else None
        try:
            while coming is not None:
                answer = await coming
                coming = None
                batches = memoryview(answer.batches)
                if not len(batches):
                    waited_ms += WAIT_MS
                    if waited_ms > STALL_MS:
                        raise RetryError(
                            Reason.TIMED_OUT,
                            "records do not come: an open gate stands before them. "
                            f"topic=`{topic}` partition=`{partition}` offset=`{position}`",
                        )
                    coming = asyncio.create_task(self.fetch(topic, partition, position, wait_ms=WAIT_MS))
                    continue
                waited_ms = 0
                first, position = position, last_offset(batches) + 1
                if position < end:
                    coming = asyncio.create_task(self.fetch(topic, partition, position))
                try:
                    rows = await asyncio.to_thread(decode_batches, [batches], start=first, end=end)
                except InvalidError as error:
                    raise InvalidError(
                        error.reason,
                        f"{error.message} topic=`{topic}` partition=`{partition}` first=`{first}` last=`{position - 1}`: to find "
                        f"the batch, run `headgate topic check {topic} --partition {partition}`",
                    ) from error
                if with_timestamp_type:
                    types = timestamp_types(batches, rows.column("offset").to_numpy())
                    rows = rows.append_column("timestampType", pa.array(types))
                yield rows
        finally:
            if coming is not None:
                await end_tasks((coming,))


def last_offset(batches: memoryview) -> int:
    """The last offset of contiguous whole batches."""
    from headgate.broker.log.batch import parse_header, split

    last = -1
    for batch in split(batches):
        last = parse_header(batch).next_offset - 1
    return last
