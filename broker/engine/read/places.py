"""The queue of readers that take turns at a lead's history. No I/O."""

from __future__ import annotations

import asyncio
from itertools import count

KEPT_MAX = 10_000
"""Most places that are kept for readers that went away. With more, the oldest ones are given up: those clients did not return."""


class Places:
    """One reader at a time has the turn, in the order of places.

    A reader whose patience ends keeps its place for its next attempt. Otherwise readers that were served would stand before it each
    time, and with more readers than the turns of one wait the same ones would be sent away for ever.
    """

    def __init__(self) -> None:
        self._holder: int | None = None
        """The place that has the turn."""
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """The readers that wait, by place."""
        self._kept: dict[int, int] = {}
        """Places of readers that went away, the oldest first."""

    @property
    def is_taken(self) -> bool:
        """True while a reader has the turn."""
        return self._holder is not None

    def place(self, reader: int | None) -> int:
        """The kept place of a reader, or a new one behind all others. For `take`, and for `keep` if the reader goes away."""
        kept = None if reader is None else self._kept.pop(reader, None)
        return next(self._numbers) if kept is None else kept

    async def take(self, place: int) -> None:
        """Wait for the turn. The caller ends it with `leave`; after a cancellation it does not have it."""
        if self._holder is None:
            self._holder = place
            return
        coming = self._waiting[place] = asyncio.get_running_loop().create_future()
        try:
            await coming
        except asyncio.CancelledError:
            if self._waiting.pop(place, None) is None:
                self.leave(place)  # the turn came together with the cancellation
            raise

    def leave(self, place: int) -> None:
        """End the turn of a place, unless it has ended: the waiting reader with the first place has it now."""
        if self._holder == place:
            # A reader that was just cancelled is still in the queue.
            self._holder = min((place for place, coming in self._waiting.items() if not coming.done()), default=None)
            if self._holder is not None:
                self._waiting.pop(self._holder).set_result(None)

    def keep(self, reader: int | None, place: int) -> None:
        """Keep the place of a reader that goes away without an answer. Without a number it has none to return to."""
        if reader is None:
            return
        self._kept[reader] = place
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
