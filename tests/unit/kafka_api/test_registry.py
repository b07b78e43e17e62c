"""The registry and the error table: complete, consistent with the schemas, and cheap to import.

A mismatch means that the broker advertises a version without a handler, that a reason has no code, or that start-up imports
modules too early.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import kio.schema.errors
import pytest

from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka import api_index
from headgate.broker.server.kafka.apis import APIS, PRODUCE, request_bytes_max
from headgate.broker.server.kafka.errors import MESSAGE_LENGTH_MAX, ErrorCode, error_code, error_message
from headgate.broker.server.kafka.index import index
from headgate.broker.server.kafka.listener import ENDS_TOLD_MAX, UNSERVED_TOLD_MAX, KafkaServer
from headgate.broker.server.kafka.pending_requests import PendingRequests
from headgate.broker.wire.kafka.primitives import DecodeError
from tests.support.messages import message_module


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_code(reason: Reason) -> None:
    code = error_code(HeadgateError(reason, "message"))
    assert isinstance(code, ErrorCode)
    assert code is not ErrorCode.NONE


def test_codes_are_kafkas() -> None:
    foreign = kio.schema.errors.ErrorCode
    for code in ErrorCode:
        assert foreign[code.name.lower()] == int(code), code


def test_messages_fit_into_a_response() -> None:
    long = error_message(InvalidError(Reason.UNKNOWN_TOPIC, "ä" * 40_000))
    assert len(long) == MESSAGE_LENGTH_MAX
    assert len(long.encode()) < 32_767


def test_keys_ascend_and_are_theirs() -> None:
    assert list(APIS) == sorted(APIS)
    assert all(key == api.key for key, api in APIS.items())


@pytest.mark.parametrize("key", APIS)
def test_rows_fit_the_schema_and_load(key: int) -> None:
    api = APIS[key]
    messages = message_module(f"{api.name}Request")
    for kind in ("Request", "Response"):
        message = getattr(messages, api.name + kind)
        assert key == message.API_KEY
        assert message.VERSIONS[0] <= api.min_version <= api.max_version <= message.VERSIONS[1]
        assert api.flexible_from == message.FLEXIBLE_FROM
    if api.module is not None:
        declared, requests = api.load(), getattr(messages, api.name + "Request")
        assert (declared.key, declared.versions, declared.request) == (key, (api.min_version, api.max_version), requests)
        assert callable(declared.decode) and callable(declared.handle) and callable(declared.rule)


def test_the_index_is_what_the_files_declare() -> None:
    assert index() == Path(api_index.__file__).read_text(), "python -m headgate.broker.server.kafka.index"


VERSIONS_MIN = {
    "Produce": (3, 13),
    "Fetch": (4, 17),
    "ListOffsets": (1, 10),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 9),
    "OffsetFetch": (1, 9),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "DescribeLogDirs": (1, 4),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "OffsetDelete": (0, 0),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "DescribeTopicPartitions": (0, 0),
}
"""The versions that clients are promised: the broker serves at least these."""


def test_the_versions_that_clients_are_promised() -> None:
    """Only Produce advertises lower versions than it serves."""
    served = {api.name: (api.min_version, api.max_version) for api in APIS.values()}
    for name, (low, high) in VERSIONS_MIN.items():
        assert served[name][0] <= low and high <= served[name][1], name
    assert {api.name for api in APIS.values() if api.advertised_min_version != api.min_version} == {"Produce"}


@pytest.mark.parametrize("key", [key for key in APIS if key != PRODUCE])
async def test_requests_that_are_too_large_are_not_decoded(key: int) -> None:
    """Small elements make large objects: the size of a request bounds its memory after decoding."""
    server = KafkaServer(Settings(), Clock(), ("host", 9092))
    frame = key.to_bytes(2, "big") + APIS[key].max_version.to_bytes(2, "big") + bytes(request_bytes_max(key))
    with pytest.raises(DecodeError, match="too large"):
        await PendingRequests(server.common, cast(Any, None)).answer(frame, cast(Any, None))


async def test_the_log_is_not_flooded_by_connections_that_are_ended(caplog: pytest.LogCaptureFixture) -> None:
    """The first ones of each second are logged one by one, the others as a number."""
    caplog.set_level("INFO")
    server = KafkaServer(Settings(), Clock(), ("host", 9092))
    for _ in range(2):
        for _ in range(ENDS_TOLD_MAX + 7):
            server.tell_end("malformed_request", "127.0.0.1:1", "frame size is out of range")
        await server.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == [*["malformed_request"] * ENDS_TOLD_MAX, "more_connections_ended"] * 2


async def test_an_unserved_request_is_told_once_for_each_client_and_cause(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning, which `headgate up` shows: a client that waits for ever does not say what it waits for."""
    caplog.set_level("WARNING")
    server = KafkaServer(Settings(), Clock(), ("host", 9092))
    for _ in range(3):
        for host, reason in (("10.0.0.1", "a"), ("10.0.0.1", "b"), ("10.0.0.2", "a")):
            server.tell_unserved(host, reason)
    assert [record.getMessage() for record in caplog.records] == ["not_served"] * 3
    for number in range(UNSERVED_TOLD_MAX):
        server.tell_unserved("10.0.0.3", str(number))
    caplog.clear()
    server.tell_unserved("10.0.0.1", "a")  # the oldest are forgotten: memory has a bound
    server.tell_unserved("10.0.0.3", "999")
    assert [(record.getMessage(), vars(record)["fields"]["host"]) for record in caplog.records] == [("not_served", "10.0.0.1")]
    await server.close()


def test_the_first_answer_needs_nothing_heavy() -> None:
    heavy = ("grpc", "boto3", "botocore", "starlette", "uvicorn", "prometheus_client", "rich", "typer", "msgspec", "pydantic")
    script = (
        "import sys; import headgate.broker.server.kafka.api.api_versions; import headgate.broker.wire.kafka.header; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
