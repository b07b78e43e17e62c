"""A broker can be told to end while its gRPC server starts."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from headgate.broker.server.grpc.server import GrpcServer
from tests.unit.grpc.conftest import Served


@pytest.mark.parametrize("turns", range(6))
async def test_a_start_that_is_cancelled_leaves_no_error_behind(served: Served, turns: int) -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    earlier = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        server = GrpcServer(served.node, dataclasses.replace(served.settings, grpc_port=0))
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait((starting,))
        await server.close(grace_s=5)
        del server, starting
        for _ in range(5):
            await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(earlier)
    assert reported == []
