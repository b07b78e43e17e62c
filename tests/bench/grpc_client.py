"""A bare gRPC client process: whole record batches in and out, no codec of the client library. Prints one JSON object::

python -m tests.bench.grpc_client publish PORT TOPIC BATCH_BYTES BATCHES
python -m tests.bench.grpc_client subscribe PORT TOPIC RESPONSE_BYTES TOTAL_BYTES
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from headgate.broker.wire.grpc.headgate.v1 import log_pb2
from tests.bench import frames

INFLIGHT_BYTES = 16 << 20
"""Bytes that are sent and not acked, or requested and not received."""
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
_PAYLOAD_TAG = b"\x7a"
"""Field 15, length-delimited."""


def _channel(port: str) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)


def publish(port: str, topic: str, batch_bytes: str, batches: str) -> dict[str, Any]:
    """Publishes this many batches on one stream; the time ends with the last ack."""
    batch = frames.batch(int(batch_bytes))
    payload = _PAYLOAD_TAG + frames.uvarint(len(batch)) + batch
    total = int(batches)
    room = threading.Semaphore(max(INFLIGHT_BYTES // len(batch), 2))

    def requests() -> Iterator[bytes]:
        for sequence in range(1, total + 1):
            room.acquire()
            head = log_pb2.PublishRequest(sequence=sequence)
            if sequence == 1:
                head.topic = topic
                head.options.ack_batches = 1
            yield head.SerializeToString() + payload

    with _channel(port) as channel:
        grpc.channel_ready_future(channel).result(30)
        call: Any = channel.stream_stream("/headgate.v1.Log/Publish", response_deserializer=log_pb2.PublishResponse.FromString)
        start = time.perf_counter()
        acked = 0
        for response in call(requests(), wait_for_ready=True):
            if response.failures:
                raise SystemExit(f"a batch was refused. error=`{response.failures[0].error.message}`")
            room.release(response.acked_sequence - acked)
            acked = response.acked_sequence
        seconds = time.perf_counter() - start
    if acked != total:
        raise SystemExit(f"the stream ended early. acked=`{acked}` sent=`{total}`")
    return {"bytes": total * len(batch), "seconds": seconds, "cpu_s": time.process_time()}


def subscribe(port: str, topic: str, response_bytes: str, total_bytes: str) -> dict[str, Any]:
    """Reads partition 0 from its start until this many bytes have come; responses are not parsed."""
    wanted = int(total_bytes)
    changes: queue.SimpleQueue[log_pb2.SubscribeRequest | None] = queue.SimpleQueue()
    start_at = log_pb2.Position(earliest=True)
    one = log_pb2.Subscription(subscription=1, generation=1, topic=topic, partition=0, position=start_at)
    changes.put(log_pb2.SubscribeRequest(add=[one], credit_bytes=INFLIGHT_BYTES, max_bytes=int(response_bytes)))
    seen = returned = responses = 0
    with _channel(port) as channel:
        grpc.channel_ready_future(channel).result(30)
        call: Any = channel.stream_stream(
            "/headgate.v1.Log/Subscribe", request_serializer=log_pb2.SubscribeRequest.SerializeToString
        )
        start = time.perf_counter()
        for response in call(iter(changes.get, None), wait_for_ready=True):
            seen += len(response)
            responses += 1
            if seen >= wanted:
                break
            if seen - returned > INFLIGHT_BYTES // 4:
                changes.put(log_pb2.SubscribeRequest(credit_bytes=seen - returned))
                returned = seen
        seconds = time.perf_counter() - start
        changes.put(None)
    return {"bytes": seen, "seconds": seconds, "responses": responses, "cpu_s": time.process_time()}


RUNS: dict[str, Callable[..., dict[str, Any]]] = {"publish": publish, "subscribe": subscribe}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(RUNS[sys.argv[1]](*sys.argv[2:])) + "\n")
