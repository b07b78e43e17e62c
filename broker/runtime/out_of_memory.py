"""The end of a process without free memory: the process reports the fault and ends at once.

A MemoryError in the middle of the broker's own work leaves that work half done: a batch that has an offset and never reaches the
log, or a lost callback. No code can continue from there, and an orderly end may need memory, too. Ending at once is as safe as
SIGKILL. A MemoryError ends only the request if the memory belongs to the request and the request has changed nothing yet.
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
    """Report work to the loop's exception handler that ran out of memory and may have changed something already."""
    loop.call_exception_handler({"message": "out of memory", "exception": error})


class OutOfMemory:
    """Ends the process when it has no free memory.

    Args:
        name: the process's name, in front of its message.
    """

    def __init__(self, name: str) -> None:
        # Made in advance: later there may be no memory for them.
        self._line = f"{name}: out of memory: it ends at once, which loses nothing that was acked\n".encode()
        self._still = f"{name}: the event loop stands still, for want of memory or by a defect: it ends at once\n".encode()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the process when a callback of the loop, a task that no caller awaits, or a destructor has no memory."""
        loop.set_exception_handler(self._on_loop)
        sys.unraisablehook = self._on_unraisable

    def end(self) -> NoReturn:
        """Print the message, and end the process."""
        os.write(2, self._line)
        os._exit(EXIT_CODE)

    def end_still(self) -> NoReturn:
        """End a process with a blocked event loop."""
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
