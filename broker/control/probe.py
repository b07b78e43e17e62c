"""Probes the address of another broker, and measures how late this process runs."""

from __future__ import annotations

import asyncio
import errno

from headgate.broker.cluster.liveness import TICK_S, Answer, Attention
from headgate.broker.runtime.clock import Clock

LOOKS = 5
"""Turns of the event loop, spread over the time limit of a probe, that look for the answer. If this process stands still, an
answer that came meanwhile is read before the next look."""
LATE_PARTS = 2.0
"""If an unsuccessful probe took this many times its time limit, it says nothing: this process was late itself."""

_UNREACHED = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})


async def ask(host: str, port: int, timeout_s: float, clock: Clock) -> Answer:
    """Connect to an address, and close the connection."""
    if not host or not port:
        return Answer.UNKNOWN
    began_s = clock.monotonic()
    connecting = asyncio.create_task(asyncio.open_connection(host, port), name="connect")
    connecting.add_done_callback(_close)
    try:
        for _ in range(LOOKS):
            if not connecting.done():
                await asyncio.wait((connecting,), timeout=timeout_s / LOOKS)
    finally:
        connecting.cancel()
        await asyncio.wait((connecting,))
    if connecting.cancelled():
        return Answer.UNREACHED if clock.monotonic() - began_s < LATE_PARTS * timeout_s else Answer.UNKNOWN
    error = connecting.exception()
    if error is None:
        return Answer.ACCEPTED
    if isinstance(error, ConnectionRefusedError):
        return Answer.REFUSED
    if not isinstance(error, OSError):
        raise error
    # Other errors come from this process or machine: no free descriptors, no name server.
    return Answer.UNREACHED if error.errno in _UNREACHED else Answer.UNKNOWN


def _close(connecting: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Close the connection, also if the probe was cancelled."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[1].close()


async def attend(attention: Attention, clock: Clock) -> None:
    """Report every wake-up to `attention`. Never returns."""
    while True:
        await asyncio.sleep(TICK_S)
        attention.woke(clock.monotonic())
