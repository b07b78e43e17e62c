"""AlterConfigs (33), versions 0-2: replace all overrides of a topic, or all that clients gave a broker, a consumer
group or client metrics, by those in the request.

As in Kafka, a resource or a key that occurs twice in the request, a null value, and levels of loggers are INVALID_REQUEST.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka import resource_configs
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.broker_configs import alter_broker
from headgate.broker.server.kafka.configs import BROKER, TOPIC, find_topic, unsupported_resource
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.requests import repeated
from headgate.broker.server.kafka.rules import on_configs
from headgate.broker.wire.kafka.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
    response = AlterConfigsResponse()
    each = context.turn.each
    twice = await repeated(context, ((one.resource_type, one.resource_name) for one in request.resources))
    resources = {(one.resource_type, one.resource_name): one async for one in each(request.resources)}
    async for (resource_type, name), one in each(resources.items()):
        result = AlterConfigsResourceResponse(resource_type=resource_type, resource_name=name, error_message=None)
        response.responses.append(result)
        try:
            if (resource_type, name) in twice:
                raise InvalidError(Reason.INVALID_REQUEST, "resource is in the request more than once")
            await _alter(one, request.validate_only, context)
        except HeadgateError as error:
            result.error_code = error_code(error)
            result.error_message = error_message(error)
    return response


async def _alter(one: AlterConfigsResource, validate_only: bool, context: Context) -> None:
    if await repeated(context, (entry.name for entry in one.configs)):
        raise InvalidError(Reason.INVALID_REQUEST, "a key is in the request more than once")
    config = {entry.name: entry.value async for entry in context.turn.each(one.configs) if entry.value is not None}
    if len(config) < len(one.configs):
        raise InvalidError(Reason.INVALID_REQUEST, "a key has no value")
    if one.resource_type == BROKER:
        await alter_broker(one.resource_name, lambda _: config, context, validate_only=validate_only)
    elif one.resource_type == TOPIC:
        topic = find_topic(one.resource_name, context)
        await context.engine.alter_topic_config(topic, config, validate_only=validate_only)
    elif one.resource_type in resource_configs.KINDS:
        await resource_configs.alter(one.resource_type, one.resource_name, lambda _: config, context, validate_only=validate_only)
    else:
        raise unsupported_resource(one.resource_type)


API = Api(
    33,
    versions=(0, 2),
    flexible_from=2,
    request=AlterConfigsRequest,
    handle=handle,
    rule=on_configs(Operation.ALTER_CONFIGS, AlterConfigsResourceResponse, "responses"),
    act=rows("resources", "resource_name"),
)
