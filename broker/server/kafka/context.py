"""The surroundings of a request that the handler of a Kafka API needs besides the request itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.runtime.config import Settings
    from headgate.broker.runtime.turns import Turn
    from headgate.broker.server.access.rights import Rights
    from headgate.broker.server.access.sasl import Sasl
    from headgate.broker.server.audit.audit import Audit
    from headgate.broker.transactions.broker_calls import TransactionCalls
    from headgate.broker.transactions.coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One request's surroundings.

    `host` and `port` are the address that this listener, named `listener`, announces to clients. `client_id` is the client's
    own name, `client_host` its address. `reader` is the connection, for windows that wait for their history
    (engine/partition/windows.py).
    `audit`: notes what the request did; None: nothing is noted. `door`: the port through which it came: kafka; grpc, from a
    Headgate client; http, from a person at the page.
    `sasl`: the connection's logins, on a listener with SASL. `rights`: what the client may do; None: everything. The rules in
    `server/access/` check requests; a handler needs `rights` only for what it finds itself.

    A handler calls `unserved` with the name of a feature that the client asked for and that this broker does not have: the log
    then tells why the client does not go on.

    `turn` is the request's share of the loop's time. A handler iterates with `turn.each` over all items that a request or a
    cluster can have many of: a loop over them without pauses would stall the broker (`tests/e2e/test_turns.py` finds such
    loops).
    """

    engine: Engine
    groups: Coordinator
    transaction_calls: TransactionCalls
    settings: Settings
    client_id: str | None
    client_host: str
    api_version: int
    turn: Turn
    host: str
    port: int
    listener: str = ""
    reader: int = 0
    sasl: Sasl | None = None
    rights: Rights | None = None
    audit: Audit | None = None
    door: str = "kafka"
    unserved: Callable[[str], None] = lambda _: None

    @property
    def is_carried(self) -> bool:
        """Whether the request came from Headgate itself, not over a Kafka port."""
        return self.door != "kafka"

    @property
    def transactions(self) -> TransactionCoordinator:
        """The coordinator of this broker's transactional ids."""
        return self.transaction_calls.coordinator
