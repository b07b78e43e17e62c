"""Messages in a schema registry's frame as the page shows them: decoded to JSON, as long as the registry answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headgate.broker.log.records import Record
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.tasks import looked_at
from headgate.broker.schemas.decoder import Decoder

WAIT_S = 3.0
"""Longest wait of a page for the registry, in seconds. Schemas are fetched once, so most pages wait for nothing."""
REST_S = 30.0
"""Seconds for which a registry that did not answer is not asked again: a person who turns pages should not wait on each one."""

Found = Sequence[tuple[int, Record]]
"""(partition, record)."""


class Framed:
    """Decodes what a page found.

    Args:
        url: of the registry; empty: nothing is decoded.
        now_s: a monotonic clock, in seconds.
    """

    def __init__(self, url: str, now_s: Callable[[], float]) -> None:
        self._decoder = Decoder.of(url) if url else None
        self._now_s = now_s
        self._rests_until_s = 0.0
        self._trouble = ""

    async def decoded(self, found: Found) -> tuple[Found, str]:
        """The records with keys and values decoded, and a sentence if they are shown as they are because the registry does not
        answer."""
        if self._decoder is None or not found:
            return found, ""
        if self._now_s() < self._rests_until_s:
            return found, self._trouble
        # A thread: parsing takes milliseconds, and a schema that is not known yet a request.
        work = asyncio.get_running_loop().run_in_executor(None, _decode, self._decoder, found)
        work.add_done_callback(looked_at)
        try:
            async with asyncio.timeout(WAIT_S):
                return await asyncio.shield(work), ""
        except TimeoutError:
            why = f"it did not answer within {WAIT_S:g} s"
        except HeadgateError as error:
            why = error.message
        self._trouble = f"keys and values are shown as they are, because the schema registry cannot be asked: {why}"
        self._rests_until_s = self._now_s() + REST_S
        return found, self._trouble


def _decode(decoder: Decoder, found: Found) -> Found:
    return [
        (partition, record._replace(key=decoder.text(record.key), value=decoder.text(record.value))) for partition, record in found
    ]
