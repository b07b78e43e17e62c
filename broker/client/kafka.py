"""Kafka's own requests over the address and the login of gRPC: how topics, groups, rules and quotas are administered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headgate.broker.client.cluster import Cluster
from headgate.broker.runtime.errors import Reason
from headgate.broker.wire.grpc.headgate.v1 import kafka_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.carried import REASONS, RETRIABLE, TIMEOUT_MS, answer_of, check, first, frame
from headgate.broker.wire.kafka.message import Message

__all__ = ["REASONS", "RETRIABLE", "TIMEOUT_MS", "ask", "ask_broker", "change", "check", "first"]

ASK = methods(kafka_pb2.DESCRIPTOR.services_by_name["Kafka"])["Ask"]

_A = TypeVar("_A", bound=Message)
_T = TypeVar("_T")


async def ask(cluster: Cluster, request: Message, kind: type[_A], read: Callable[[_A], _T]) -> _T:
    """What the answer to a question says.

    Args:
        kind: the class of the answer.
        read: returns what the answer says, or raises its error (`check`). A RetryError is repeated.
    """
    found: _T = await cluster.call(ASK, _asked(request), retry=True, read=partial(_read, kind, read))
    return found


async def change(
    cluster: Cluster, request: Message, kind: type[_A], read: Callable[[_A], _T], *, already: Reason | None = None
) -> _T | None:
    """`ask` for a change, repeated as `Cluster.change` does it: None when only `already` confirms it."""
    found: _T | None = await cluster.change(ASK, _asked(request), already=already, read=partial(_read, kind, read))
    return found


async def ask_broker(cluster: Cluster, broker_id: int, request: Message, kind: type[_A], read: Callable[[_A], _T]) -> _T:
    """One attempt to ask a certain broker. The broker that answered last passes the request on to it."""
    found: _T = await cluster.once(ASK, _asked(request, broker_id), partial(_read, kind, read))
    return found


def _asked(request: Message, broker_id: int | None = None) -> kafka_pb2.KafkaRequest:
    return kafka_pb2.KafkaRequest(request=frame(request), broker_id=broker_id)


def _read(kind: type[_A], read: Callable[[_A], _T], response: kafka_pb2.KafkaAnswer) -> _T:
    return read(answer_of(kind, response.answer))
