"""AlterConfigs and IncrementalAlterConfigs: each resource of a request is altered alone, and has its own result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.broker_configs import check_broker
from headgate.broker.server.kafka.configs import BROKER, TOPIC, find_topic, unsupported_resource
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Handler, Message
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.requests import repeated

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Topic


class Change(NamedTuple):
    """The new settings of a resource, made from the present ones: if it is a broker, and if it is a topic."""

    broker: Callable[[Mapping[str, str]], Mapping[str, str]]
    topic: Callable[[Topic], Mapping[str, str]]


def altering(response: type[Message], row: type[Message], change: Callable[[Message, Context], Awaitable[Change]]) -> Handler:
    """The handler of an API. A resource that occurs twice in a request is not altered, and its only result says so.

    Args:
        change: reads a resource of the request. Raises InvalidError.
    """

    async def handle(request: Message, context: Context) -> Message:
        answer, each = response(), context.turn.each
        twice = await repeated(context, ((resource.resource_type, resource.resource_name) for resource in request.resources))
        named = {(resource.resource_type, resource.resource_name): resource async for resource in each(request.resources)}
        async for key, resource in each(named.items()):
            kind, name = key
            result = row(resource_type=kind, resource_name=name, error_message=None)
            answer.responses.append(result)
            try:
                if key in twice:
                    raise InvalidError(Reason.INVALID_REQUEST, "resource is in the request more than once")
                asked = await change(resource, context)
                if kind == BROKER:
                    check_broker(name, context)
                    await context.engine.configs.alter(name, asked.broker, validate_only=request.validate_only)
                elif kind == TOPIC:
                    topic = find_topic(name, context)
                    await context.engine.alter_topic_config(topic, asked.topic, validate_only=request.validate_only)
                else:
                    raise unsupported_resource(kind)
            except HeadgateError as error:
                result.error_code, result.error_message = error_code(error), error_message(error)
        return answer

    return handle
