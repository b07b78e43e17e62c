"""The state that all Kafka connections of a broker share. It does no I/O and knows no event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Labels
from headgate.broker.server.kafka.frames import Inbox

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.runtime.config import Settings
    from headgate.broker.runtime.turns import Turns
    from headgate.broker.server.audit.audit import Audit
    from headgate.broker.transactions.broker_calls import TransactionCalls

MEMORY, STORE, WAITED = FETCHES = ("memory", "store", "waited")
"""A fetch was answered from memory at once; its records came from the store; or it waited for new records, as its client asked."""
ROOM_BYTES_MIN = 1 << 20
"""Least bytes of an answer that has room at all. Just below the limit, each read from the store would otherwise give one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedListener:
    """A listener, as its clients see it: `host` and `port` are announced to them."""

    name: str
    protocol: str
    host: str
    port: int


class Common:
    """What connections share.

    Args:
        advertised: the listener of `kafka_port`.
        now: a monotonic clock, seconds. now_ms: the wall clock, ms.
        turns: shared by the requests of all connections. Replaced by the engine's once the engine is open.
        opened: waits until the engine is open, and returns it.
        ended: logs the reason for which a connection ends: (event, peer, reason).
        unserved: logs a request that the broker does not serve: (host, reason).
    """

    def __init__(
        self,
        settings: Settings,
        advertised: AdvertisedListener,
        *,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        turns: Turns,
        opened: Callable[[], Awaitable[Engine]],
        ended: Callable[[str, str, str], None],
        unserved: Callable[[str, str], None],
    ) -> None:
        self.settings = settings
        self.advertised = advertised
        self.now = now
        self.now_ms = now_ms
        self.turns = turns
        self.opened = opened
        self.ended = ended
        self.unserved = unserved
        self.engine: Engine | None = None
        """None until the engine is open."""
        self.groups: Coordinator | None = None
        self.transaction_calls: TransactionCalls | None = None
        self.audit: Audit | None = None
        """Notes administrative acts and refusals; None: nothing is noted."""
        self.has_quotas = False
        """Whether any quota exists. Without one no request looks for its client's."""
        self.inbox = Inbox(settings.frame_bytes_max, settings.inflight_bytes_max)
        self.outgoing_bytes = 0
        """Bytes held for clients: answers to fetches from the moment they are read, and all answers that clients have not taken
        yet."""
        self.has_writers = True
        """Whether a producer may wait for an ack: then long answers leave in pieces. False once a sweep passed without a batch."""
        self._batches = -1
        self.requests: dict[str, int] = {"produce": 0, "fetch": 0, "other": 0}
        self.produce_s = Histogram(LATENCY_BUCKETS_S)
        """Time from the arrival of records until they are acked. Requests that arrived together have one time."""
        self.fetch_s: dict[Labels, Histogram] = {(kind,): Histogram(LATENCY_BUCKETS_S) for kind in FETCHES}
        """Time from the arrival of a fetch until its answer is ready, by `FETCHES`."""

    def note_batches(self, count: int) -> None:
        """Called at each sweep. `count`: batches of all producers since the start."""
        self.has_writers = count != self._batches
        self._batches = count

    def fetch_room(self) -> int:
        """Bytes that one answer may have now: what is left of the limit, and none beyond the limit."""
        settings = self.settings
        left = settings.inflight_bytes_max - self.outgoing_bytes
        return min(settings.fetch_bytes_max, max(left, ROOM_BYTES_MIN)) if left >= 0 else 0
