"""`headgate.pipelines.connection`: asyncio's client for callers that have no loop.

Compared: the ended work with the cancelled work. A mismatch means that work continues after its caller gave it up.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading

import pytest

from headgate.pipelines.connection import Connection


def test_a_call_that_is_broken_off_ends_its_work() -> None:
    ended = threading.Event()
    caller = threading.get_ident()

    async def work() -> None:
        try:
            signal.pthread_kill(caller, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # stands for code that closes sockets
            ended.set()

    with Connection("127.0.0.1:1") as connection:
        with pytest.raises(KeyboardInterrupt):
            connection.call(work())
        gc.collect()  # the event loop alone does not keep a task from being collected
    assert ended.is_set()
