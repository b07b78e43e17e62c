"""What a process does that has no memory left: it ends, at once, and says so.

A MemoryError in the middle of the broker's own work leaves that work half done: a batch that has an offset and never reaches the
log, a callback that is lost. No code can go on from there, and an orderly end may need memory, too. Ending at once is safe, as is
SIGKILL. Only where the memory is a request's own, and nothing was changed yet, does a MemoryError end no more than the request.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import asyncio
    from sys import UnraisableHookArgs

EXIT_CODE = 1


def left_half_done(loop: asyncio.AbstractEventLoop, error: MemoryError) -> None:
    """Tell the loop's exception handler of work that ended for want of memory and may have changed something already."""
    loop.call_exception_handler({"message": "out of memory", "exception": error})


class OutOfMemory:
    """Ends the process where it has no memory left.

    Args:
        name: of the process, in front of what it says.
    """

    def __init__(self, name: str) -> None:
        # Made now: later there may be no memory for them.
        self._line = f"{name}: out of memory: it ends at once, which loses nothing that was acked\n".encode()
        self._still = f"{name}: the event loop stands still, for want of memory or by a defect: it ends at once\n".encode()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the process where a callback of the loop, a task that no caller awaits, or a destructor has no memory."""
        loop.set_exception_handler(self._on_loop)
        sys.unraisablehook = self._on_unraisable

    def end(self) -> NoReturn:
        """Say it, and end the process."""
        os.write(2, self._line)
        os._exit(EXIT_CODE)

    def end_still(self) -> NoReturn:
        """End a process whose event loop stands still."""
        os.write(2, self._still)
        os._exit(EXIT_CODE)

    def _on_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), MemoryError):
            self.end()
        loop.default_exception_handler(context)

    def _on_unraisable(self, failure: UnraisableHookArgs) -> None:
        if isinstance(failure.exc_value, MemoryError) or failure.exc_type is MemoryError:
            self.end()
        sys.__unraisablehook__(failure)
