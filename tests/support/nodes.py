"""Whole brokers for tests: real nodes over any store, without ports.

All of them have the same address, as the runs of one broker process have. So each one takes over from the one before at once, also
if that one still runs.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc

from headgate.broker.node import Address, Network, Node, assemble
from headgate.broker.runtime.clock import Clock, SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.ending import Ending
from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason
from headgate.broker.store.interface import Store

GRACE_S = 90.0
"""Ends a hang; no test judges by it."""


class Offline:
    """A `Network` that reaches no other process."""

    advertised = Address(host="broker.test", kafka_port=9092, grpc_port=9093)

    def connections(self) -> int:
        return 0

    def connect(self, address: str) -> grpc.aio.Channel:
        raise AssertionError(f"this broker has no network: it is the only one. address={address}")

    async def open(self, node: Node) -> None:
        """Open nothing."""


def make(
    settings: Settings, store: Store, clock: Clock, fail: Callable[[HeadgateError], None], network: Network | None = None
) -> Node:
    """A node that has not started yet."""
    return assemble(settings, store, SteadyClock(clock, settings.clock_difference_max_ms), network or Offline(), fail=fail)


async def end(node: Node) -> None:
    """End a node as SIGTERM does. Raises its first error."""
    ending = Ending(None, GRACE_S)
    await node.drain(ending)
    await node.close(ending)
    if ending.error is not None:
        raise ending.error


async def bury(node: Node) -> None:
    """Stop the tasks and threads of a node that has failed, or whose store is dead."""
    ending = Ending(FatalError(Reason.CLOSED, "this process is dead"), GRACE_S)
    await node.drain(ending)
    await node.close(ending)
    assert not ending.stuck
