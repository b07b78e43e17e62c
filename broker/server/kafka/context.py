"""What a handler of a Kafka API knows besides the request itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.broker.engine.coordinator import Coordinator
    from headgate.broker.engine.engine import Engine
    from headgate.broker.runtime.config import Settings
    from headgate.broker.runtime.turns import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One request's surroundings.

    `host` and `port` are where this listener tells clients to connect; `client_id` is what the client calls itself, `client_host`
    where it comes from. `reader` is the connection, for windows in which history is to come (engine/windows.py).

    `turn` is the request's share of the loop's time. A handler goes through everything that a request or a cluster can have many of
    with `turn.each`: a loop over it without pauses would stall the broker (`tests/e2e/test_turns.py` finds such loops).
    """

    engine: Engine
    groups: Coordinator
    settings: Settings
    client_id: str | None
    client_host: str
    api_version: int
    turn: Turn
    host: str
    port: int
    reader: int = 0
