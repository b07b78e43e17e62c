"""Probes the address of another broker, and measures how late this process runs."""

from __future__ import annotations

import asyncio
import errno

from headgate.broker.cluster.liveness import TICK_S, Answer, Attention
from headgate.broker.runtime.clock import Clock

LATE_PARTS = 2.0
"""If an unsuccessful probe took this many times its time limit, it says nothing: this process was late itself."""

_UNREACHED = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})


async def ask(host: str, port: int, timeout_s: float, clock: Clock) -> Answer:
    """Connect to an address, and close the connection."""
    if not host or not port:
        return Answer.UNKNOWN
    began_s = clock.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return Answer.REFUSED
    except TimeoutError:
        return Answer.UNREACHED if clock.monotonic() - began_s < LATE_PARTS * timeout_s else Answer.UNKNOWN
    except OSError as error:
        # Other errors come from this process or machine: no free descriptors, no name server.
        return Answer.UNREACHED if error.errno in _UNREACHED else Answer.UNKNOWN
    writer.close()
    return Answer.ACCEPTED


async def attend(attention: Attention, clock: Clock) -> None:
    """Report every wake-up to `attention`. Never returns."""
    while True:
        await asyncio.sleep(TICK_S)
        attention.woke(clock.monotonic())
