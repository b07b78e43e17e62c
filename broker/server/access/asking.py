"""What the rules of Kafka's APIs share: a request's surroundings, and answers for what is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from headgate.broker.cluster.acl import Operation
from headgate.broker.server.access.rights import Rights
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.primitives import ZERO_UUID

_T = TypeVar("_T")
Message: TypeAlias = Any
"""A generated message: each rule knows its own."""
Handler: TypeAlias = Callable[[Message, Context], Awaitable[Message]]
Rule: TypeAlias = Callable[[Message, "Asked"], AsyncGenerator[Message | None, Message]]

TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TEXTS = {
    TOPIC_REFUSED: "Topic authorization failed.",
    GROUP_REFUSED: "Group authorization failed.",
    CLUSTER_REFUSED: "Cluster authorization failed.",
    TRANSACTION_REFUSED: "Transactional Id authorization failed.",
}
"""Kafka's own texts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's surroundings for its rule."""

    rights: Rights
    context: Context

    def topic(self, operation: Operation) -> Callable[[str], bool]:
        return lambda name: self.rights.on_topic(operation, name)

    def group(self, operation: Operation) -> Callable[[str], bool]:
        return lambda name: self.rights.on_group(operation, name)

    def on_named(self, operation: Operation, one: Message) -> bool:
        """Whether the client may do it to the topic of a row, which has a name or an id. An id that no topic has harms nobody: the
        handler answers it."""
        topic_id = getattr(one, "topic_id", ZERO_UUID)
        if topic_id == ZERO_UUID:
            return self.rights.on_topic(operation, one.name)
        topic = self.context.engine.manifest.topics_by_id.get(topic_id)
        return topic is None or self.rights.on_topic(operation, topic.name)

    async def drop(self, items: list[_T], may: Callable[[_T], bool]) -> list[_T]:
        """Take items out of a list that the client may not touch. Returns these."""
        dropped: list[_T] = []
        kept: list[_T] = []
        async for one in self.context.turn.each(list(items)):
            (kept if may(one) else dropped).append(one)
        items[:] = kept
        return dropped


def made(module: str, name: str, /, **fields: Any) -> Message:
    """A row or an answer of a module of messages, with Kafka's text for its error code."""
    kind = getattr(import_module(f"headgate.broker.wire.kafka.messages.{module}"), name)
    if "error_message" in kind.__slots__ and "error_message" not in fields:
        fields["error_message"] = TEXTS.get(fields.get("error_code", 0))
    return kind(**fields)
