"""Manual orders to the leader: the command waits for them, and says what it waits for."""

from __future__ import annotations

from functools import partial

from headgate.broker.cli import output
from headgate.broker.client.control import ORDER_S, Control, Decision


def ordering(cluster: str, command: str) -> Control:
    """A client for orders of `headgate COMMAND`."""
    return Control(cluster, on_wait=partial(tell, command))


def tell(command: str, waited_s: float, decision: Decision) -> None:
    """Report on stderr that an order is under way."""
    topics = ", ".join(decision.topics) or "no topic"
    output.fail(
        f"under way for {waited_s:.0f} s: {decision.kind} of {topics}, which takes several calls of the store in turn; "
        f"waiting up to {ORDER_S - waited_s:.0f} s more",
        command,
    )
