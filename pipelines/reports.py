"""Tells the cluster's leader how far floods are, for the pages of the brokers. A report is only for people: when one is lost,
nothing else fails."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from headgate.broker.client.gate_admin import FloodReport
from headgate.broker.runtime.errors import HeadgateError, InvalidError
from headgate.pipelines.connection import Connection
from headgate.pipelines.progress import Phase, Progress

PAUSE_S = 1.0
"""Pause between two reports."""
REPEAT_S = 10.0
"""Pause after which an unchanged report is sent again: a new leader must learn of the flood, and a silent driver is suspect."""
LAST_S = 3.0
"""Longest time for the last reports of a run that ends."""
MESSAGE_CHARS_MAX = 300


class Reports:
    """The reports of one run, sent from the connection's thread. A context manager: an error reports the run's floods as
    failed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._newest: dict[tuple[str, str], FloodReport] = {}
        self._sent: dict[tuple[str, str], tuple[FloodReport, float]] = {}

    def __enter__(self) -> Self:
        self._repeated = self._connection.every(PAUSE_S, self._send)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._repeated.stop()
        if error is not None:
            why = error.message if isinstance(error, HeadgateError) else type(error).__name__
            for key, report in list(self._newest.items()):
                if report.phase != Phase.DONE:
                    self._newest[key] = report.with_end("failed", why[:MESSAGE_CHARS_MAX])
        self._connection.call(self._send_last())

    def tell(self, topic: str, flood_id: str, progress: Progress) -> None:
        """Note the progress of a flood, from any thread; it is sent within a second."""
        before = self._newest.get((topic, flood_id), FloodReport(topic=topic, flood_id=flood_id, phase=progress.phase))
        self._newest[topic, flood_id] = before.with_progress(
            str(progress.phase), progress.rows_done, progress.rows_total, progress.message[:MESSAGE_CHARS_MAX]
        )

    async def _send_last(self) -> None:
        try:
            async with asyncio.timeout(LAST_S):
                await self._send()
        except TimeoutError:
            return  # the leader is busy or gone, and the page shows when it heard of the flood last

    async def _send(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for key, report in list(self._newest.items()):
            sent, at_s = self._sent.get(key, (None, 0.0))
            if sent == report and (report.is_over or now_s - at_s < REPEAT_S):
                continue
            try:
                await self._connection.gates.report_flood(report)
            except InvalidError:
                pass  # refused, and told again no sooner than an unchanged one
            except HeadgateError:
                continue  # sent again with the next one
            self._sent[key] = report, now_s
