"""Bytes that no client would send: each gets an answer or a closed connection, never a crash, a hang or unbounded memory.

Runs: a real broker; other protocols, lengths at the edges of their type, frames that never come, unknown APIs and versions, and
requests that Hypothesis cuts, lengthens and rewrites (`test_mutated_frames.py` has more of them). Compared: every case ends with an
answer or the end of the connection within the timeout. Afterwards a healthy client works, the process never restarted, its memory
stayed under a bound and its output has no traceback. A mismatch means that one client can take the broker away from the others.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compat.topics import create_topic
from tests.e2e.hostile import MIB, check_healthy, check_raw, connect
from tests.support import oracle, wire
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.examples import examples
from tests.support.requests import ordinary
from tests.support.wire import ClosedByPeer, RawConnection, request_header

TOPIC = "hostile"
MEMORY_BOUND_BYTES = 400 * MIB
"""An idle broker uses less than 90 MB; the test's frames may cost the memory that admission allows, not the announced one."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    home = tmp_path_factory.mktemp("hostile-frames")
    limits = {"HEADGATE_FETCH_WAIT_MAX_MS": "20", "HEADGATE_PARTITIONS_PER_TOPIC_MAX": "100"}
    with BrokerProcess(home / "store", home / "broker.log", env=limits) as broker:
        broker.start()
        create_topic(broker.bootstrap, TOPIC, 1)
        yield broker
        check_healthy(broker)
        assert broker.terminate() == 0
    broker.check_output()


@pytest.fixture(autouse=True)
def unharmed(broker: BrokerProcess) -> Iterator[None]:
    """After each test the same process answers, within its memory bound."""
    pid = broker.pid
    yield
    check_raw(broker)
    assert broker.pid == pid
    assert broker.resident_bytes() < MEMORY_BOUND_BYTES, f"memory grew. bytes=`{broker.resident_bytes():,}`"


def ends(connection: RawConnection) -> bytes | None:
    """Wait for one answer, or for the end of the connection (None). A timeout is a hang and fails the test."""
    try:
        return connection.receive_frame()
    except ClosedByPeer:
        return None


SERVED = {
    oracle.PRODUCE: (3, 12),
    oracle.FETCH: (4, 12),
    oracle.LIST_OFFSETS: (1, 10),
    oracle.METADATA: (0, 13),
    oracle.API_VERSIONS: (0, 4),
    oracle.CREATE_TOPICS: (2, 7),
    oracle.DELETE_TOPICS: (1, 6),
    oracle.DELETE_RECORDS: (0, 2),
    oracle.INIT_PRODUCER_ID: (0, 5),
    oracle.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    oracle.DESCRIBE_CONFIGS: (1, 4),
    oracle.ALTER_CONFIGS: (0, 2),
    oracle.DESCRIBE_LOG_DIRS: (1, 4),
    oracle.CREATE_PARTITIONS: (0, 3),
    oracle.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    oracle.DESCRIBE_CLUSTER: (0, 2),
    oracle.DESCRIBE_PRODUCERS: (0, 0),
    oracle.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}


def test_other_protocols(broker: BrokerProcess) -> None:
    """First bytes of tools that people point at the wrong port."""
    for greeting in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 600,  # TLS ClientHello
        b"*1\r\n$4\r\nPING\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ):
        with connect(broker) as connection:
            connection.send(greeting)
            assert connection.is_closed_by_peer(within_s=20), greeting


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, -1, -(2**31), 2**31 - 1, 100 * MIB + 1, 1 << 30])
def test_impossible_lengths(broker: BrokerProcess, length: int) -> None:
    """Lengths that are too short for a request, negative, or beyond `frame_bytes_max`: the broker allocates nothing and closes."""
    before = broker.resident_bytes()
    for _ in range(20):
        with connect(broker) as connection:
            connection.send(struct.pack(">i", length) + b"\x00" * 16)
            assert connection.is_closed_by_peer(within_s=20)
    assert broker.resident_bytes() - before < 32 * MIB


def test_large_frames_that_never_come(broker: BrokerProcess) -> None:
    """A hundred clients announce 100 MB each and send nothing more: the broker does not allocate the announced memory."""
    announced = struct.pack(">i", 100 * MIB) + request_header(oracle.PRODUCE, 9, 1, flexible=True)
    connections = [connect(broker) for _ in range(100)]
    try:
        for connection in connections:
            connection.send(announced)
        for _ in range(5):
            check_raw(broker)
        assert broker.resident_bytes() < MEMORY_BOUND_BYTES, f"memory grew. bytes=`{broker.resident_bytes():,}`"
    finally:
        for connection in connections:
            connection.close()
    check_healthy(broker)


def attempt(
    broker: BrokerProcess, connection: RawConnection, api_key: int, version: int, body: bytes, *, flexible: bool
) -> RawConnection:
    """Send one request, and an ordinary one behind it: the second is answered, or the connection ends.

    The second one is needed because a mutated request may be one that gets no answer (acks=0). Returns an open connection: this
    one, or a new one in its place.
    """
    try:
        connection.send_request(api_key, version, body, flexible=flexible)
        last = connection.send_request(oracle.METADATA, 1, struct.pack(">i", 0))
        while (answer := connection.receive_frame())[:4] != struct.pack(">i", last):
            assert len(answer) >= 4
    except TimeoutError:
        raise AssertionError(f"no answer and no end. api=`{api_key}` version=`{version}` body=`{body.hex()}`") from None
    except ClosedByPeer:
        connection.close()
        return connect(broker)
    return connection


def test_a_fetch_of_more_partitions_than_anybody_has(broker: BrokerProcess) -> None:
    """A frame with records may be as large. But this request is read and answered in one turn: all other clients would wait for
    seconds."""
    ordinary_fetch = ordinary(TOPIC)[oracle.FETCH]
    (topic,) = ordinary_fetch["topics"]
    one, two = (
        oracle.encode(oracle.FETCH, 11, {**ordinary_fetch, "topics": ({**topic, "partitions": topic["partitions"] * count},)})
        for count in (1, 2)
    )
    # Where they differ ends the count of partitions. (To encode all of them takes ten seconds.)
    begin = next(at for at, (left, right) in enumerate(zip(one, two, strict=False)) if left != right) + 1
    end = begin + len(two) - len(one)
    assert two == one[: begin - 4] + struct.pack(">i", 2) + one[begin:end] * 2 + one[end:]
    body = one[: begin - 4] + struct.pack(">i", 160_000) + one[begin:end] * 160_000 + one[end:]
    with connect(broker) as connection, pytest.raises(ClosedByPeer):
        connection.call(oracle.FETCH, 11, body)


def test_unknown_apis_and_versions(broker: BrokerProcess) -> None:
    served = wire.api_versions(HOST, broker.kafka_port)
    draw = random.Random(2)
    for api_key in (*range(-2, 110), 1_000, 32_767, -32_768):
        low, high = served.get(api_key, (0, -1))
        for version in (-32_768, -1, low - 1, high + 1, 99, 32_767):
            if low <= version <= high:
                continue
            with connect(broker) as connection:
                connection.send_request(api_key, version, draw.randbytes(40), flexible=True)
                answer = ends(connection)
                if api_key == oracle.API_VERSIONS:
                    assert answer is not None, f"ApiVersions v{version} must be told what the broker has"
                    assert oracle.decode(api_key, 0, answer[4:]).error_code == wire.UNSUPPORTED_VERSION
                    # The client asks again, on the same connection.
                    asked = {"client_software_name": "x", "client_software_version": "1"}
                    assert oracle.call(connection, api_key, 3, asked).error_code == 0
                else:
                    assert answer is None, f"an unknown request was answered. api=`{api_key}` version=`{version}`"


@pytest.mark.parametrize("api_key", sorted(SERVED))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzzed_bodies(broker: BrokerProcess, api_key: int, data: st.DataObject) -> None:
    """Hypothesis cuts, repeats and rewrites ordinary requests, and generates bodies of its own."""
    low, high = SERVED[api_key]
    version = data.draw(st.integers(low, high), label="version")
    body = bytearray(oracle.encode(api_key, version, ordinary(TOPIC)[api_key]))
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        position = data.draw(st.integers(0, len(body)), label="position")
        removed = data.draw(st.integers(0, 8), label="removed")
        body[position : position + removed] = data.draw(st.binary(max_size=12), label="inserted")
    body += data.draw(st.binary(max_size=16), label="appended")
    attempt(broker, connect(broker), api_key, version, bytes(body), flexible=oracle.is_flexible(api_key, version)).close()
