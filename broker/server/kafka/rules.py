"""What the rules of Kafka APIs share: the texts and rows of refusals, and rules of one shape.

`declared.py` says how a rule works.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, TypeVar

from headgate.broker.cluster.acl import CLUSTER_NAME, Operation, Resource
from headgate.broker.server.kafka.constants import NO_OPERATIONS
from headgate.broker.server.kafka.declared import Asked, Message, Rule
from headgate.broker.server.kafka.errors import ErrorCode

TOPIC_CONFIG = 2
"""Kafka's number for resources with settings that are topics."""
_T = TypeVar("_T")

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


def made(kind: type[_T], /, **fields: Any) -> _T:
    """A row or an answer, with Kafka's text for its error code."""
    if "error_message" in kind.__slots__ and "error_message" not in fields:  # type: ignore[attr-defined]
        fields["error_message"] = TEXTS.get(fields.get("error_code", 0))
    return kind(**fields)


def on_cluster(operation: Operation, answer: type[Message], **fields: Any) -> Rule:
    """The whole request needs an operation on the cluster."""

    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        if asked.rights.on_cluster(operation):
            yield None
        else:
            yield made(answer, error_code=CLUSTER_REFUSED, **fields)

    return rule


def on_group(operation: Operation, answer: type[Message], **fields: Any) -> Rule:
    """The whole request needs an operation on its group."""

    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        if asked.rights.on_group(operation, request.group_id):
            yield None
        else:
            yield made(answer, error_code=GROUP_REFUSED, **fields)

    return rule


def on_partitions(
    operation: Operation,
    topic_row: type[Message],
    row: type[Message],
    *,
    name: str = "name",
    number: str = "partition_index",
    **fields: Any,
) -> Rule:
    """Each topic of `request.topics` needs an operation; the answer names each refused partition in `response.topics`."""

    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        refused = await asked.drop(request.topics, lambda row: asked.rights.on_topic(operation, getattr(row, name)))
        response = yield None
        async for topic in asked.context.turn.each(refused):
            numbers = (
                topic.partition_indexes
                if hasattr(topic, "partition_indexes")
                else [getattr(partition, number) for partition in topic.partitions]
            )
            rows = [made(row, **{number: value}, error_code=TOPIC_REFUSED, **fields) for value in numbers]
            response.topics.append(made(topic_row, **{name: getattr(topic, name)}, partitions=rows))

    return rule


def on_configs(operation: Operation, row: type[Message], rows: str) -> Rule:
    """Each resource needs an operation on its topic, or the cluster; the answer names the refused ones in `rows`."""

    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        def may(row: Message) -> bool:
            if row.resource_type == TOPIC_CONFIG:
                return asked.rights.on_topic(operation, row.resource_name)
            return asked.rights.on_cluster(operation)

        refused = await asked.drop(request.resources, may)
        response = yield None
        for one in refused:
            code = TOPIC_REFUSED if one.resource_type == TOPIC_CONFIG else CLUSTER_REFUSED
            refusal = made(row, error_code=code, resource_type=one.resource_type, resource_name=one.resource_name)
            getattr(response, rows).append(refusal)

    return rule


async def limit(rows: Iterable[Message], asked: Asked, field: str, resource: Resource, name: Callable[[Message], str]) -> None:
    """Replace the operations of the rows by those that the client may do."""
    async for row in asked.context.turn.each(rows):
        if getattr(row, field) != NO_OPERATIONS:
            setattr(row, field, asked.rights.operations(resource, name(row)))


def limit_cluster(response: Message, asked: Asked) -> None:
    """Replace the operations on the cluster by those that the client may do."""
    if response.cluster_authorized_operations != NO_OPERATIONS:
        response.cluster_authorized_operations = asked.rights.operations(Resource.CLUSTER, CLUSTER_NAME)


def may_see_id(asked: Asked, topic_id: Any) -> bool:
    """True if no topic has this id, or the client may know its topic."""
    topic = asked.context.engine.manifest.topics_by_id.get(topic_id)
    return topic is None or asked.rights.on_topic(Operation.DESCRIBE, topic.name)
