"""An S3 that is slow and fails now and then: real faults of S3, at a rate high enough for a short test.

Every PUT is delayed for a random time before it takes effect. So a PUT of a killed broker may take effect long after its
successor has started, and PUTs of one broker overtake each other. Some requests are refused, some take effect and are answered
with an error, some end without an answer.
"""

from __future__ import annotations

import random
import threading
import time

from tests.support.s3_proxy import Break, S3Proxy
from tests.support.s3_server import S3Server

_FAULTS: tuple[Break, ...] = ("stored_then_500", "slow_down", "internal_error", "conflict", "reset")


class S3Chaos(S3Proxy):
    """An S3 proxy with random faults.

    Args:
        fault_rate: share of requests that fail.
        hold_ms: longest delay of a PUT; one in twenty takes up to ten times as long.
    """

    def __init__(self, server: S3Server, seed: str, *, fault_rate: float = 0.03, hold_ms: int = 40) -> None:
        super().__init__(server)
        self.faults = 0
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self._fault_rate, self._hold_s = fault_rate, hold_ms / 1000

    def take(self, method: str) -> Break | None:
        with self._lock:
            self.requests[method] += 1
            if self._draw.random() >= self._fault_rate:
                return None
            self.faults += 1
            # Reads are truncated; writes and other requests fail as S3 does.
            return "truncate" if method == "GET" and self._draw.random() < 0.5 else self._draw.choice(_FAULTS)

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if method == "PUT":
            with self._lock:
                hold_s = self._draw.random() * self._hold_s * (10 if self._draw.random() < 0.05 else 1)
            time.sleep(hold_s)
        return super().forward(method, path, headers, body)
