"""Kafka's requests over gRPC, as raw messages of `Kafka.Ask`."""

from __future__ import annotations

from typing import Any

from headgate.broker.wire.grpc.headgate.v1 import kafka_pb2
from headgate.broker.wire.kafka.header import request_header

HEADER_BYTES = 5
"""Of a flexible answer: every carried one is."""


def asked(request: Any, **fields: Any) -> kafka_pb2.KafkaRequest:
    """The envelope of a request. `fields`: of the envelope."""
    head = request_header(request.API_KEY, request.CARRIED, flexible=True)
    return kafka_pb2.KafkaRequest(request=head + request.encode_carried(), **fields)


def answer(kind: Any, found: kafka_pb2.KafkaAnswer) -> Any:
    """The answer in an envelope, of that class."""
    return kind.decode_carried(found.answer, HEADER_BYTES)
