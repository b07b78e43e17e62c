"""Clients that take more than their share: the broker holds each to its limit, and the others do not notice.

Runs: a real broker with tight limits; pipelines of thousands of requests, readers that do not read, senders that send a byte at
a time, thousands of idle connections, connections that vanish, more bytes in flight than allowed. Compared: answers come whole
and in request order; resident memory stays under the bound of the limits; a healthy client works while the others misbehave and
afterwards; file descriptors are released. A mismatch means that one client can starve or kill the broker.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection

import pytest

from headgate.broker.runtime.descriptors import HTTP_MAX, OTHERS_MAX, SHARE
from tests.compat.topics import create_topic, eventually, fresh
from tests.e2e.hostile import MIB, check_healthy, check_raw, connect, fetch_values, fill, produce
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.waiting import until
from tests.support.wire import ClosedByPeer, RawConnection, framed, request_header

INFLIGHT_BYTES = 32 * MIB
TAIL_BYTES = 16 * MIB
FETCH_BYTES = 8 * MIB
LIMITS = {
    "HEADGATE_INFLIGHT_BYTES_MAX": str(INFLIGHT_BYTES),
    "HEADGATE_CONNECTION_INFLIGHT_BYTES_MAX": str(8 * MIB),
    "HEADGATE_TAIL_BYTES": str(TAIL_BYTES),
    "HEADGATE_READ_CACHE_BYTES": str(4 * MIB),
    "HEADGATE_FRAME_BYTES_MAX": str(16 * MIB),
    "HEADGATE_FETCH_BYTES_MAX": str(FETCH_BYTES),
    "HEADGATE_CONNECTIONS_MAX": "2100",
    "HEADGATE_FRAME_TIMEOUT_MS": "2000",
    "HEADGATE_FETCH_WAIT_MAX_MS": "600s",
}
MEMORY_BOUND_BYTES = 90 * MIB + INFLIGHT_BYTES * 2 + TAIL_BYTES * 2 + FETCH_BYTES * 2 + 32 * MIB
"""Bound of memory: an idle broker, incoming and outgoing bytes at their limits, the tail with room to turn over, pending
answers, slack."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    home = tmp_path_factory.mktemp("hostile-load")
    with BrokerProcess(home / "store", home / "broker.log", env=LIMITS) as broker:
        broker.start()
        yield broker
        check_healthy(broker)
        assert broker.terminate() == 0
    broker.check_output()


@pytest.fixture(autouse=True)
def unharmed(broker: BrokerProcess) -> Iterator[None]:
    """After each test the same process answers."""
    pid = broker.pid
    yield
    check_raw(broker)
    assert broker.pid == pid


class Watch:
    """The broker's largest resident size while the block runs."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker, self._stop = broker, threading.Event()
        self.peak_bytes = broker.resident_bytes()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self._broker.resident_bytes())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        assert self.peak_bytes < MEMORY_BOUND_BYTES, f"memory grew. peak=`{self.peak_bytes:,}` bound=`{MEMORY_BOUND_BYTES:,}`"


def test_a_thousand_requests_at_once(broker: BrokerProcess) -> None:
    """All kinds of requests, sent in one write, read only afterwards: a thousand answers in the order of the requests."""
    topic = create_topic(broker.bootstrap, fresh("pipeline"), 1)
    kinds = [
        (oracle.API_VERSIONS, 0, b""),
        (oracle.PRODUCE, 9, _produce_body(topic, batch([b"x" * 100]))),
        (oracle.METADATA, 1, struct.pack(">i", 0)),
        (oracle.FETCH, 11, oracle.encode(oracle.FETCH, 11, fetch_values(topic, 0, max_bytes=1_000, max_wait_ms=0))),
    ]
    requests = [kinds[number % len(kinds)] for number in range(1_000)]
    with connect(broker) as connection:
        connection.send(
            b"".join(
                framed(request_header(api_key, version, number, flexible=oracle.is_flexible(api_key, version)) + body)
                for number, (api_key, version, body) in enumerate(requests)
            )
        )
        for number, (api_key, version, _) in enumerate(requests):
            answer = connection.receive_frame()
            assert struct.unpack_from(">i", answer)[0] == number, "answers are not in the order of the requests"
            oracle.decode(api_key, version, answer[4:])


def _produce_body(topic: str, records: bytes, acks: int = -1) -> bytes:
    data = {"name": topic, "partition_data": ({"index": 0, "records": records},)}
    return oracle.encode(oracle.PRODUCE, 9, {"acks": acks, "timeout": 60_000, "topic_data": (data,)})


@pytest.mark.parametrize("value_bytes", [10, 200_000])
def test_produce_and_fetch_on_one_pipelined_connection(broker: BrokerProcess, value_bytes: int) -> None:
    """Far more than the connection's limit in both directions at once: no deadlock, answers in order, nothing lost."""
    topic = create_topic(broker.bootstrap, fresh("both-ways"), 1)
    count = 600 if value_bytes > 1_000 else 4_000
    body = _produce_body(topic, batch([b"x" * value_bytes]))
    fetch = oracle.encode(oracle.FETCH, 11, fetch_values(topic, 0, max_bytes=max(20_000, 2 * value_bytes), max_wait_ms=0))
    with connect(broker, timeout_s=60) as connection, Watch(broker) as watch, ThreadPoolExecutor(1) as pool:

        def send() -> None:
            for number in range(count):
                connection.send(framed(request_header(oracle.PRODUCE, 9, 2 * number, flexible=True) + body))
                connection.send(framed(request_header(oracle.FETCH, 11, 2 * number + 1) + fetch))

        sending = pool.submit(send)
        offsets = []
        for number in range(2 * count):
            answer = connection.receive_frame()
            assert struct.unpack_from(">i", answer)[0] == number
            if number % 2 == 0:
                one = oracle.decode(oracle.PRODUCE, 9, answer[4:]).responses[0].partition_responses[0]
                assert one.error_code == 0
                offsets.append(one.base_offset)
        sending.result()
    assert offsets == list(range(count))
    watch.check()


def test_a_reader_that_reads_slowly_gets_everything(broker: BrokerProcess) -> None:
    """A slow client is not hostile: the broker does not cut off a client that takes 50 kB at a time while it makes progress."""
    topic = create_topic(broker.bootstrap, fresh("slow"), 1)
    fill(broker, topic, 5 * MIB)
    # The first bytes may have to wait until clients of other tests have released theirs.
    body = oracle.encode(oracle.FETCH, 11, fetch_values(topic, 0, max_wait_ms=10_000))
    with RawConnection(HOST, broker.kafka_port, receive_buffer_bytes=8_192) as connection:
        connection.send(framed(request_header(oracle.FETCH, 11, 1) + body))
        (length,) = struct.unpack(">i", connection.receive_exactly(4))
        received = bytearray()
        while len(received) < length:
            received += connection.receive_exactly(min(50_000, length - len(received)))
            time.sleep(0.03)
    answer = oracle.decode(oracle.FETCH, 11, bytes(received[4:]))
    assert len(answer.responses[0].partitions[0].records) >= 4 * MIB


def test_answers_from_the_store_leave_in_pieces(broker: BrokerProcess) -> None:
    """Megabytes from the store, to a client that reads them slowly, fast, or not to the end: whole and in order."""
    topic = create_topic(broker.bootstrap, fresh("cold"), 1)
    sent = [batch([b"%06d" % number + random.Random(number).randbytes(900_000)]) for number in range(24)]
    with connect(broker, timeout_s=60) as writer:
        for data in sent:
            produce(writer, topic, data)

    def ask(connection: RawConnection, correlation_id: int, offset: int) -> None:
        body = oracle.encode(oracle.FETCH, 11, fetch_values(topic, offset, max_bytes=3 * MIB, max_wait_ms=10_000))
        connection.send(framed(request_header(oracle.FETCH, 11, correlation_id) + body))

    def bare(data: bytes | bytearray) -> bytes:
        """A batch without the fields that a broker writes: base offset and leader epoch."""
        return bytes(data[8:12] + data[16:])

    def check(answer: bytes, offset: int) -> int:
        records = oracle.decode(oracle.FETCH, 11, answer).responses[0].partitions[0].records
        size = len(sent[offset])
        found = [records[at : at + size] for at in range(0, len(records), size)]
        assert 1 <= len(found) <= 3, "what there is room for, but never nothing"
        for number, data in enumerate(found, offset):
            assert struct.unpack_from(">q", data)[0] == number
            assert bare(data) == bare(sent[number])
        return len(found)

    for _ in range(10):
        with connect(broker) as rude:
            ask(rude, 1, 0)
            assert rude.receive_frame_start() > 2 * MIB
    for pause_s in (0.0, 0.01):
        with RawConnection(HOST, broker.kafka_port, receive_buffer_bytes=32_768) as connection:
            asked = (0, None, 1, 20, 2, 3)  # the batch at 20 is in memory
            for correlation_id, offset in enumerate(asked):
                if offset is None:
                    connection.send(framed(request_header(oracle.API_VERSIONS, 0, correlation_id)))
                else:
                    ask(connection, correlation_id, offset)
            for correlation_id, offset in enumerate(asked):
                left = connection.receive_frame_start()
                answer = bytearray()
                while len(answer) < left:
                    answer += connection.receive_exactly(min(50_000, left - len(answer)))
                    time.sleep(pause_s)
                assert struct.unpack_from(">i", answer)[0] == correlation_id
                if offset is not None:
                    check(bytes(answer[4:]), offset)
    with connect(broker) as fast:
        for _ in range(2 * INFLIGHT_BYTES // (3 * MIB)):
            ask(fast, 1, 0)
            assert check(fast.receive_frame()[4:], 0) == 3, "what was taken makes room again"


def test_frames_that_come_a_byte_at_a_time(broker: BrokerProcess) -> None:
    """Senders that never finish a frame lose their connection after `frame_timeout_ms`; senders that finish in time get an
    answer."""
    frame = framed(request_header(oracle.METADATA, 1, 7) + struct.pack(">i", 0))
    with connect(broker) as patient:
        for byte in frame:
            patient.send(bytes([byte]))
            time.sleep(0.005)
        assert patient.receive_frame()[:4] == struct.pack(">i", 7)
    slow = [connect(broker) for _ in range(50)]
    try:
        for connection in slow:
            connection.send(frame[:-1])
        check_raw(broker)
        for connection in slow:
            assert connection.is_closed_by_peer(within_s=20)
    finally:
        for connection in slow:
            connection.close()
    # Single bytes now and then do not keep a frame alive.
    with connect(broker) as dripping:
        deadline = time.monotonic() + 30
        with pytest.raises(ClosedByPeer):
            for byte in struct.pack(">i", 100_000) + frame[4:] + b"\x00" * 1_000:
                assert time.monotonic() < deadline, "a frame that drips is kept for ever"
                dripping.send(bytes([byte]))
                time.sleep(0.2)


def test_two_thousand_idle_connections(tmp_path_factory: pytest.TempPathFactory, report: Callable[[str], None]) -> None:
    """Each connection costs little, healthy clients do not notice, and all is released. The test uses a fresh broker, whose
    memory no other test has grown."""
    home = tmp_path_factory.mktemp("crowd")
    with BrokerProcess(home / "store", home / "broker.log") as broker:
        broker.start()
        check_healthy(broker)
        before_bytes, before_files = broker.resident_bytes(), broker.open_files()
        connections = [connect(broker) for _ in range(2_000)]
        try:
            for connection in connections:
                connection.send_request(oracle.API_VERSIONS, 0, b"")
            for connection in connections:
                connection.receive_frame()
            each_bytes = (broker.resident_bytes() - before_bytes) / len(connections)
            report(f"hostile: 2,000 idle connections cost {each_bytes / 1000:.1f} kB each, on {before_bytes / 1e6:.0f} MB")
            assert each_bytes < 30_000
            check_healthy(broker)
        finally:
            for connection in connections:
                connection.close()
        left = eventually(broker.open_files, lambda count: count <= before_files + 5)
        assert left <= before_files + 5, "descriptors are not given back"
    broker.check_output()


def test_sigterm_while_nobody_reads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A broker can end although clients do not take their answers or do not finish their requests."""
    home = tmp_path_factory.mktemp("stuck")
    with BrokerProcess(home / "store", home / "broker.log") as broker:
        broker.start()
        topic = create_topic(broker.bootstrap, fresh("unread"), 1)
        fill(broker, topic, 20 * MIB)
        body = oracle.encode(oracle.FETCH, 11, fetch_values(topic, 0))
        connections = [RawConnection(HOST, broker.kafka_port, receive_buffer_bytes=4_096) for _ in range(10)]
        try:
            for connection in connections:
                connection.send(framed(request_header(oracle.FETCH, 11, 1) + body))
                connection.send(struct.pack(">i", 1_000_000) + b"half a frame")
            check_raw(broker)
            assert broker.terminate() == 0
        finally:
            for connection in connections:
                connection.close()
    broker.check_output()


def test_the_connection_limit(broker: BrokerProcess) -> None:
    """One connection too many is closed at once; when one ends, the next is accepted."""
    connections: list[RawConnection] = []
    try:
        with pytest.raises((ClosedByPeer, ConnectionError)):  # raised by the step that notices first
            for _ in range(2_200):
                connection = connect(broker)
                connections.append(connection)
                connection.call(oracle.API_VERSIONS, 0, b"")
        refused = connections.pop()
        assert refused.is_closed_by_peer(within_s=20)
        refused.close()
        assert len(connections) <= 2_100
        # The open connections keep working.
        connections[0].call(oracle.API_VERSIONS, 0, b"")
        connections[-1].call(oracle.API_VERSIONS, 0, b"")
        for connection in connections[100:]:
            connection.close()
        eventually(broker.open_files, lambda count: count < 1_000)
        check_raw(broker)
    finally:
        for connection in connections:
            connection.close()


def test_connections_that_vanish(broker: BrokerProcess) -> None:
    """Connections are closed, reset and half-closed in every state, thousands of times: no descriptor and no memory leaks."""
    topic = create_topic(broker.bootstrap, fresh("vanish"), 1)
    waiting = oracle.encode(oracle.FETCH, 11, fetch_values(topic, 0, max_wait_ms=20_000))
    check_raw(broker)
    before = broker.open_files()
    draw = random.Random(3)
    states: list[Callable[[RawConnection], object]] = [
        lambda connection: None,
        lambda connection: connection.send(b"\x00\x00"),
        lambda connection: connection.send(struct.pack(">i", 1_000_000) + b"x" * 1_000),
        lambda connection: connection.send_request(oracle.METADATA, 1, struct.pack(">i", 0)),
        lambda connection: connection.send_request(oracle.FETCH, 11, waiting),
        lambda connection: connection.send_request(oracle.PRODUCE, 9, _produce_body(topic, batch([b"x"])), flexible=True),
    ]
    for _ in range(1_500):
        connection = connect(broker)
        draw.choice(states)(connection)
        how = draw.randrange(3)
        if how == 0:  # a reset instead of an end
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == 1:
            connection.socket.shutdown(socket.SHUT_WR)
        connection.close()
    assert eventually(broker.open_files, lambda count: count <= before + 5) <= before + 5, "descriptors are not given back"
    check_healthy(broker)


@pytest.mark.parametrize(("door", "most"), [("grpc", (2_100 + OTHERS_MAX) // SHARE), ("http", HTTP_MAX)])
def test_silent_connections_to_another_door(broker: BrokerProcess, door: str, most: int) -> None:
    """However many connections there are, descriptors remain for the log and for Kafka's clients."""
    port = {"grpc": broker.grpc_port, "http": broker.http_port}[door]
    before = broker.open_files()
    connections: list[socket.socket] = []

    def closed() -> int:
        return sum(_is_over(connection) for connection in connections)

    try:
        for _ in range(most + 100):
            connections.append(socket.create_connection((HOST, port), timeout=20))
            connections[-1].setblocking(False)
        assert eventually(closed, lambda count: count >= 100) >= 100
        assert broker.open_files() <= before + most + 10
        check_healthy(broker)
    finally:
        for connection in connections:
            connection.close()


def test_health_beside_requests_that_never_end(broker: BrokerProcess) -> None:
    """Five hundred connections each send the beginning of a request: health and metrics are answered at once."""
    address = (HOST, broker.http_port)
    half_open: list[socket.socket] = []
    try:
        for number in range(500):
            half_open.append(socket.create_connection(address, timeout=20))
            with suppress(ConnectionError):
                half_open[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "[: 1 + number % 40])
            if number % 50 == 49:
                assert _http_status(address, "/healthz") == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert _http_status(address, path) == 200
        # A request that does not progress is ended, even if no new request comes.
        for connection in half_open:
            connection.setblocking(False)
        assert eventually(lambda: sum(map(_is_over, half_open)), lambda count: count == 500) == 500
    finally:
        for connection in half_open:
            connection.close()


def _http_status(address: tuple[str, int], path: str) -> int:
    connection = HTTPConnection(*address, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _is_over(connection: socket.socket) -> bool:
    """Whether the other end has closed it. Reads the bytes that it sent before."""
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_half_open_connections(broker: BrokerProcess) -> None:
    """Clients that stop sending but keep their socket hold nothing that others need."""
    connections = [connect(broker) for _ in range(200)]
    try:
        for connection in connections:
            connection.socket.shutdown(socket.SHUT_WR)
        check_healthy(broker)
        for connection in connections:
            assert connection.is_closed_by_peer(within_s=20)
    finally:
        for connection in connections:
            connection.close()


def test_more_bytes_in_flight_than_are_allowed(broker: BrokerProcess) -> None:
    """Forty clients send 3 MB requests at once, four times the allowed bytes in flight: all are served in turn, within the
    bound."""
    topic = create_topic(broker.bootstrap, fresh("flood"), 8, max_message_bytes=str(4 * MIB))
    records = batch([b"x" * 3_000_000])

    def send(number: int) -> list[int]:
        with connect(broker, timeout_s=60) as connection:
            return [produce(connection, topic, records, number % 8) for _ in range(3)]

    with Watch(broker) as watch, ThreadPoolExecutor(40) as pool:
        offsets = list(pool.map(send, range(40)))
    for partition in range(8):
        mine = sorted(offset for number in range(40) if number % 8 == partition for offset in offsets[number])
        assert mine == list(range(15))
    watch.check()


def test_a_slow_fetch_never_blocks_a_produce(broker: BrokerProcess) -> None:
    """Long polls that wait for more bytes than will ever come, on 50 connections, while another client writes to the same
    partition."""
    topic = create_topic(broker.bootstrap, fresh("long-poll"), 1)
    body = oracle.encode(oracle.FETCH, 11, fetch_values(topic, 0, max_wait_ms=600_000, min_bytes=FETCH_BYTES))
    waiting = [connect(broker, timeout_s=60) for _ in range(50)]
    try:
        for connection in waiting:
            connection.send(framed(request_header(oracle.FETCH, 11, 1) + body))
        with connect(broker) as writer:
            for number in range(100):
                assert produce(writer, topic, batch([b"x"])) == number
        for connection in waiting:  # all polls still wait
            connection.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.socket.recv(1)
    finally:
        for connection in waiting:
            connection.close()


def test_a_fetch_waits_for_records_and_gets_them(broker: BrokerProcess) -> None:
    """The record that a long poll waits for answers it, not its timeout."""
    topic = create_topic(broker.bootstrap, fresh("wake"), 1)
    with connect(broker, timeout_s=60) as reader, connect(broker) as writer:
        for number in range(20):
            body = oracle.encode(oracle.FETCH, 11, fetch_values(topic, number, max_wait_ms=600_000))
            reader.send(framed(request_header(oracle.FETCH, 11, number) + body))
            produce(writer, topic, batch([b"value %d" % number]))
            answer = oracle.decode(oracle.FETCH, 11, reader.receive_frame()[4:])
            assert b"value %d" % number in answer.responses[0].partitions[0].records


def test_garbage_on_the_other_ports(broker: BrokerProcess) -> None:
    """The gRPC and HTTP ports get random bytes, HTTP/2 prefaces and requests that never end; the Kafka port does not notice."""
    draw = random.Random(4)
    for port in (broker.grpc_port, broker.http_port):
        for payload in (
            draw.randbytes(1),
            draw.randbytes(10_000),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(2_000),
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
            b"POST /metrics HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
            b"\x16\x03\x01" + draw.randbytes(500),
        ):
            with RawConnection(HOST, port) as connection:
                try:
                    connection.send(payload)
                    connection.socket.settimeout(0.2)
                    connection.receive_exactly(1)
                except (ClosedByPeer, TimeoutError):
                    pass
    check_healthy(broker)
    with RawConnection(HOST, broker.http_port) as connection:
        connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert connection.receive_exactly(12) == b"HTTP/1.1 200"


def test_idle_connections_are_closed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The broker closes a connection after `connection_idle_ms` without a request; a connection with occasional requests stays."""
    home = tmp_path_factory.mktemp("idle")
    with BrokerProcess(home / "store", home / "broker.log", env={"HEADGATE_CONNECTION_IDLE_MS": "2500"}) as broker:
        broker.start()
        with connect(broker) as idle, connect(broker) as busy:

            def closed() -> bool:
                busy.call(oracle.API_VERSIONS, 0, b"")
                return idle.is_closed_by_peer(within_s=0.1)

            until(closed, "the idle connection is closed", pause_s=0)
            busy.call(oracle.API_VERSIONS, 0, b"")
    broker.check_output()


def test_a_pipeline_of_large_answers_that_nobody_reads(broker: BrokerProcess) -> None:
    """A thousand requests at once, with answers of 260 kB each: the broker makes no answer before the client has taken earlier
    ones, and serves other clients in between."""
    topic, other = fresh("wide"), create_topic(broker.bootstrap, fresh("others"), 1)
    wide = {"name": topic, "num_partitions": 10_000, "replication_factor": 1}
    with connect(broker) as admin, RawConnection(HOST, broker.kafka_port, receive_buffer_bytes=4_096) as greedy:
        assert oracle.call(admin, oracle.CREATE_TOPICS, 5, {"topics": (wide,), "timeout": 10_000}).topics[0].error_code == 0
        body = oracle.encode(oracle.METADATA, 9, {"topics": ({"name": topic},)})
        with Watch(broker) as watch:
            greedy.send(framed(request_header(oracle.METADATA, 9, 0, flexible=True) + body) * 1_000)
            with connect(broker) as healthy:
                assert [produce(healthy, other, batch([b"x"])) for _ in range(100)] == list(range(100))
        watch.check()
        assert (
            oracle.call(admin, oracle.DELETE_TOPICS, 4, {"topic_names": (topic,), "timeout": 10_000}).responses[0].error_code == 0
        )
