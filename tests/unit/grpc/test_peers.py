"""Brokers that ask one another, while others come and go.

Runs: two real gRPC servers as brokers, one of which answers late; the test sets the list of live brokers. Compared: the results
of the callers. A mismatch means that a command about the whole cluster is cut short because some broker was lost meanwhile.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.server.grpc.peers import Peers
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2
from headgate.broker.wire.grpc.methods import methods

LIST = methods(admin_pb2.DESCRIPTOR.services_by_name["Admin"])["ListTopics"]
HOST = "127.0.0.1"


async def serve(asked: asyncio.Event, may_answer: asyncio.Event) -> tuple[grpc.aio.Server, int]:
    async def answer(request: bytes, context: Any) -> bytes:
        asked.set()
        await may_answer.wait()
        return admin_pb2.ListTopicsResponse().SerializeToString()

    server = grpc.aio.server()
    service, name = LIST.path.lstrip("/").split("/")
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    return server, port


async def test_who_waits_for_a_broker_that_is_lost_meanwhile_is_not_cancelled() -> None:
    asked, slow, quick = asyncio.Event(), asyncio.Event(), asyncio.Event()
    quick.set()
    servers = [await serve(asked, slow), await serve(asyncio.Event(), quick)]
    lost, other = (
        Incarnation(id=str(port), broker_id=number, leader_epoch=number, opened_ms=1, host=HOST, grpc_port=port)
        for number, (_, port) in enumerate(servers)
    )
    live = [lost]
    engine: Any = SimpleNamespace(brokers=lambda: live, incarnation_id="mine")
    peers = Peers(engine)
    try:
        waiting = asyncio.create_task(peers.call(lost, LIST, admin_pb2.ListTopicsRequest(), timeout_s=30))
        await asyncio.wait_for(asked.wait(), 30)
        live[:] = [other]
        await peers.call(other, LIST, admin_pb2.ListTopicsRequest(), timeout_s=30)
        slow.set()
        assert await waiting == admin_pb2.ListTopicsResponse()
        await peers._channels.pop(f"{HOST}:{other.grpc_port}").close()
        await peers.call(other, LIST, admin_pb2.ListTopicsRequest(), timeout_s=30)
        assert list(peers._channels) == [f"{HOST}:{other.grpc_port}"], "what nobody waits for is given back"
    finally:
        await peers.close()
        for server, _ in servers:
            await server.stop(0)
