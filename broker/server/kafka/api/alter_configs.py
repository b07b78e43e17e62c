"""AlterConfigs (33), versions 0-2: replace all overrides of a topic, or all that clients gave a broker, a consumer
group or client metrics, by those in the request.

As in Kafka, a resource or a key that occurs twice in the request, a null value, and levels of loggers are INVALID_REQUEST.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka import resource_configs
from headgate.broker.server.kafka.altering import alter_each
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.broker_configs import alter_broker
from headgate.broker.server.kafka.configs import BROKER, TOPIC, find_topic, unsupported_resource
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
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

    def add_result(resource: AlterConfigsResource) -> AlterConfigsResourceResponse:
        result = AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        response.responses.append(result)
        return result

    await alter_each(request.resources, add_result, lambda resource: _alter(resource, request.validate_only, context), context)
    return response


async def _alter(resource: AlterConfigsResource, validate_only: bool, context: Context) -> None:
    if await repeated(context, (entry.name for entry in resource.configs)):
        raise InvalidError(Reason.INVALID_REQUEST, "a key is in the request more than once")
    config = {entry.name: entry.value async for entry in context.turn.each(resource.configs) if entry.value is not None}
    if len(config) < len(resource.configs):
        raise InvalidError(Reason.INVALID_REQUEST, "a key has no value")
    if resource.resource_type == BROKER:
        await alter_broker(resource.resource_name, lambda _: config, context, validate_only=validate_only)
    elif resource.resource_type == TOPIC:
        topic = find_topic(resource.resource_name, context)
        await context.engine.alter_topic_config(topic, config, validate_only=validate_only)
    elif resource.resource_type in resource_configs.KINDS:
        await resource_configs.alter(
            resource.resource_type, resource.resource_name, lambda _: config, context, validate_only=validate_only
        )
    else:
        raise unsupported_resource(resource.resource_type)


API = Api(
    33,
    versions=(0, 2),
    flexible_from=2,
    request=AlterConfigsRequest,
    handle=handle,
    rule=on_configs(Operation.ALTER_CONFIGS, AlterConfigsResourceResponse, "responses"),
    act=rows("resources", "resource_name"),
)
