"""The state that all Kafka connections of a broker share. It does no I/O and knows no event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headgate.broker.server.kafka.frames import Inbox

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.runtime.config import Settings
    from headgate.broker.runtime.turns import Turns


class Common:
    """What connections share.

    Args:
        now: a monotonic clock, seconds. now_ms: the wall clock, ms.
        turns: shared by the requests of all connections. Replaced by the engine's once the engine is open.
        opened: waits until the engine is open, and returns it.
        ended: logs the reason for which a connection ends: (event, peer, reason).
    """

    def __init__(
        self,
        settings: Settings,
        advertised: tuple[str, int],
        *,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        turns: Turns,
        opened: Callable[[], Awaitable[Engine]],
        ended: Callable[[str, str, str], None],
    ) -> None:
        self.settings = settings
        self.advertised = advertised
        """(host, port) that the broker announces to clients."""
        self.now = now
        self.now_ms = now_ms
        self.turns = turns
        self.opened = opened
        self.ended = ended
        self.engine: Engine | None = None
        """None until the engine is open."""
        self.groups: Coordinator | None = None
        self.inbox = Inbox(settings.frame_bytes_max, settings.inflight_bytes_max)
        self.outgoing_bytes = 0
        """Bytes held for clients: answers to fetches from the moment they are read, and all answers that clients have not taken
        yet."""
        self.requests: dict[str, int] = {"produce": 0, "fetch": 0, "other": 0}

    def fetch_room(self) -> int:
        """Bytes that one answer may have: none while clients have not read the bytes that the broker holds for them."""
        if self.outgoing_bytes > self.settings.inflight_bytes_max:
            return 0
        return self.settings.fetch_bytes_max
