"""The Admin service, over real gRPC: topics through their life, status, and every wrong request with its status."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from headgate.broker import __version__
from headgate.broker.cluster.topic_config import KEYS
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.server.grpc import handlers
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2 as pb
from headgate.broker.wire.grpc.headgate.v1 import log_pb2
from tests.support.waiting import until_async
from tests.unit.grpc.conftest import Served, Start, batch, refused, status_of


async def described(served: Served, name: str) -> pb.TopicDescription:
    response: pb.DescribeTopicsResponse = await served.call("Admin.DescribeTopics", pb.DescribeTopicsRequest(names=[name]))
    return response.topics[0]


async def test_topics_are_described(served: Served) -> None:
    await served.create("clicks", 3, retention_ms="1000")
    await served.create("a")
    listed = (await served.call("Admin.ListTopics", pb.ListTopicsRequest())).topics
    assert [(topic.name, topic.partitions, len(topic.id)) for topic in listed] == [("a", 2, 16), ("clicks", 3, 16)]
    await served.fill("clicks", 1, batch(b"x", b"y"), batch(b"z"))
    row, missing = (await served.call("Admin.DescribeTopics", pb.DescribeTopicsRequest(names=["clicks", "none"]))).topics
    assert row.topic == listed[1] and not row.HasField("error") and missing.error.reason == "unknown_topic"
    assert [(part.partition, part.leader, part.log_start, part.high_watermark) for part in row.partitions] == [
        (0, 1, 0, 0),
        (1, 1, 0, 3),
        (2, 1, 0, 0),
    ]
    assert row.partitions[1].size_bytes > 0
    config = {entry.name: entry for entry in row.config}
    assert list(config) == list(KEYS)
    assert (config["retention.ms"].value, config["retention.ms"].is_default) == ("1000", False)
    assert config["retention.bytes"].is_default and config["retention.bytes"].documentation
    assert config["max.message.bytes"].value == str(served.settings.message_bytes_max)


async def test_status(start: Start) -> None:
    served: Served = await start(message_bytes_max=5000, kafka_port=19092, http_port=19090)
    await served.create("b", 3)
    await served.create("a", 1)
    await served.fill("b", 0, batch(b"1", b"2"))
    response: pb.StatusResponse = await served.call("Admin.Status", pb.StatusRequest())
    assert response.cluster_id == served.engine.cluster_id
    assert [broker.id for broker in response.brokers] == [response.broker_id] == [1]
    broker = response.brokers[0]
    assert (broker.host, broker.kafka_port, broker.grpc_port, broker.http_port) == ("127.0.0.1", 19092, served.port, 19090)
    assert (broker.version, broker.incarnation_id, broker.trouble) == (__version__, served.engine.incarnation_id, "")
    assert broker.memory_bytes > 1 << 20 and broker.uptime_ms >= 0
    assert [(topic.name, topic.partitions, topic.records) for topic in response.topics] == [("a", 1, 0), ("b", 3, 2)]
    assert response.topics[1].size_bytes > 0
    assert not response.topics[0].HasField("records_in_per_second")


async def test_rates(served: Served) -> None:
    await served.create("a")
    response: pb.StatusResponse = await served.call("Admin.Status", pb.StatusRequest(rate_window_ms=1))
    assert response.topics[0].HasField("records_in_per_second")
    assert response.topics[0].records_in_per_second == response.topics[0].bytes_in_per_second == 0


@pytest.mark.parametrize(
    ("name", "message", "code", "reason"),
    [
        ("Status", pb.StatusRequest(rate_window_ms=10_001), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        ("DescribeTopics", pb.DescribeTopicsRequest(names=["x"] * 1001), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        ("DescribeTopics", b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        ("DescribeTopics", b"\x0a\x02\xff\xfe", grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
    ],
)
async def test_wrong_requests(served: Served, name: str, message: object, code: grpc.StatusCode, reason: str) -> None:
    await served.create("there")
    assert (await refused(served.call(f"Admin.{name}", message)))[:2] == (code, reason)
    # The next request is served.
    assert len((await served.call("Admin.ListTopics", pb.ListTopicsRequest())).topics) == 1


async def test_an_rpc_and_a_service_that_are_not_there(served: Served) -> None:
    """A client of an earlier version learns that it is older, for a method that is gone."""
    for path, reason in (("/headgate.v1.Admin/CreateTopic", "unsupported"), ("/headgate.v2.Admin/Status", "")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.channel.unary_unary(path)(b"")
        code, found, details = status_of(caught.value)
        assert (code, found) == (grpc.StatusCode.UNIMPLEMENTED, reason)
        assert (
            not reason
            or f"{__version__} do not have this call: use the client of that version. call=`Admin/CreateTopic`" in details
        )


async def test_a_message_larger_than_the_limit(start: Start) -> None:
    served: Served = await start(frame_bytes_max=2 << 20)
    code, _, _ = await refused(served.call("Admin.CheckRecords", pb.CheckRecordsRequest(topic="x" * (2 << 20))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await served.call("Admin.ListTopics", pb.ListTopicsRequest())


async def test_an_error_nobody_foresaw_tells_nothing_and_is_logged(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(served.engine, "topics", broken)
    code, reason, details = await refused(served.call("Admin.ListTopics", pb.ListTopicsRequest()))
    assert (code, reason) == (grpc.StatusCode.INTERNAL, "internal")
    assert "secret" not in details
    assert "grpc_call_failed" in caplog.text and "ZeroDivisionError" in caplog.text


async def test_a_server_that_has_stopped_is_no_error_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    """A process that was paused learns that it was replaced: its handlers still read from a server that has stopped."""

    async def broken(_: object) -> None:
        raise grpc.aio.InternalError("Server already stopped")

    class Context:
        def cancelled(self) -> bool:
            return False

        def add_done_callback(self, _: object) -> None:
            pass

        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def auth_context(self) -> dict[str, list[bytes]]:
            return {}

        def invocation_metadata(self) -> tuple[()]:
            return ()

    class Details:
        method = "/headgate.v1.Log/Publish"

    service = log_pb2.DESCRIPTOR.services_by_name["Log"]
    names = ("init_producer", "publish", "fetch", "list_offsets", "subscribe")
    made = handlers.service_handler(service, SimpleNamespace(**dict.fromkeys(names, broken)), handlers.CallCounts())
    handler: Any = made.service(Details())  # type: ignore[arg-type]
    with pytest.raises(asyncio.CancelledError):
        await handler.stream_stream(None, Context())
    assert "grpc_call_failed" not in caplog.text


async def test_calls_are_counted(served: Served) -> None:
    metrics = Metrics()
    served.server.register(metrics)
    await served.call("Admin.ListTopics", pb.ListTopicsRequest())
    await refused(served.call("Admin.CheckRecords", pb.CheckRecordsRequest(topic="none")))
    await refused(served.call("Admin.CheckRecords", b"\xff"))
    stream = served.stream("Log.Subscribe")
    await stream.write(log_pb2.SubscribeRequest(credit_bytes=1))
    await until_async(lambda: served.server._counts.open == 1)
    assert b"headgate_grpc_open_calls 1.0" in metrics.render()
    stream.call.cancel()
    await until_async(lambda: served.server._counts.open == 0)
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith("headgate_grpc_calls_total")]
    # gRPC reports a client's end and its cancellation one after the other: a stream may end between the two.
    lines = [line.replace('Subscribe",status="ok"', 'Subscribe",status="cancelled"') for line in lines]
    assert sorted(lines) == [
        'headgate_grpc_calls_total{method="Admin/CheckRecords",status="invalid_argument"} 1.0',
        'headgate_grpc_calls_total{method="Admin/CheckRecords",status="not_found"} 1.0',
        'headgate_grpc_calls_total{method="Admin/ListTopics",status="ok"} 1.0',
        'headgate_grpc_calls_total{method="Log/Subscribe",status="cancelled"} 1.0',
    ]


async def test_a_port_that_is_taken_is_one_line(served: Served, start: Start) -> None:
    from headgate.broker.runtime.errors import FatalError
    from headgate.broker.server.grpc.server import GrpcServer

    await served.stop()
    await served.start()
    with pytest.raises(FatalError, match=r"--grpc-port .*127\.0\.0\.1:\d+"):
        await GrpcServer(served.node, served.settings).start()
