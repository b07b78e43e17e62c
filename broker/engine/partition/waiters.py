"""Readers that wait for one partition."""

from __future__ import annotations

from collections.abc import Callable


class Waiters:
    """Calls waiters on the loop after each change of what they wait for, in the order of their subscriptions.

    `live` wait for records, `at_window` for the history of a window: live records behind the window do not concern them.
    """

    __slots__ = ("at_window", "live")

    def __init__(self) -> None:
        self.live: dict[Callable[[], None], None] = {}
        self.at_window: dict[Callable[[], None], None] = {}

    def add(self, waiter: Callable[[], None], *, at_window: bool = False) -> None:
        """Call `waiter` from now on after each move of the high watermark, until `remove`.

        Args:
            at_window: call it only when a window has changed (`view.is_waiting`), or when the log is closed.
        """
        (self.at_window if at_window else self.live)[waiter] = None

    def remove(self, waiter: Callable[[], None]) -> None:
        self.live.pop(waiter, None)
        self.at_window.pop(waiter, None)

    def wake(self) -> None:
        """Make all waiters look again."""
        for waiter in (*self.live, *self.at_window):
            waiter()

    def wake_live(self) -> None:
        """Make the waiters for live records look again."""
        for waiter in list(self.live):
            waiter()
