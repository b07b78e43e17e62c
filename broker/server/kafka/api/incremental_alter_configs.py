"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to and subtract from single keys of a topic, a broker, a consumer
group or client metrics, and set levels of a broker's loggers (KIP-339, KIP-412, KIP-848, KIP-714).

- Append and subtract work on lists; without an override they start from the default. Deleting a key without an override
  succeeds.
- Settings of brokers that can change while they run: `engine/live_settings.py`. They are kept. Levels of loggers end with the
  process, as in Kafka.
- As in Kafka, a resource or a key that occurs twice in the request, an unknown operation, and a null value for an operation that
  needs one are INVALID_REQUEST.
"""

from __future__ import annotations

from functools import partial

from headgate.broker.cluster import acl
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka import resource_configs
from headgate.broker.server.kafka.altering import alter_each
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.broker_configs import alter_broker, alter_loggers, altered_broker
from headgate.broker.server.kafka.configs import BROKER, BROKER_LOGGER, TOPIC, Operation, alter_topic, unsupported_resource
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.rules import on_configs
from headgate.broker.wire.kafka.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(request: IncrementalAlterConfigsRequest, context: Context) -> IncrementalAlterConfigsResponse:
    response = IncrementalAlterConfigsResponse()

    def add_result(resource: AlterConfigsResource) -> AlterConfigsResourceResponse:
        result = AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        response.responses.append(result)
        return result

    await alter_each(request.resources, add_result, lambda resource: _alter(resource, request.validate_only, context), context)
    return response


async def _alter(resource: AlterConfigsResource, validate_only: bool, context: Context) -> None:
    changes: dict[str, tuple[Operation, str]] = {}
    async for entry in context.turn.each(resource.configs):
        if entry.name in changes:
            raise InvalidError(Reason.INVALID_REQUEST, f"key is in the request more than once. key=`{entry.name[:100]}`")
        if entry.config_operation not in Operation.__members__.values():
            raise InvalidError(Reason.INVALID_REQUEST, f"unknown operation. operation=`{entry.config_operation}`")
        operation = Operation(entry.config_operation)
        if entry.value is None and operation is not Operation.DELETE:
            raise InvalidError(Reason.INVALID_REQUEST, f"key has no value. key=`{entry.name[:100]}`")
        changes[entry.name] = operation, entry.value or ""
    name = resource.resource_name
    if resource.resource_type == BROKER:
        await alter_broker(name, lambda present: altered_broker(present, changes, context), context, validate_only=validate_only)
    elif resource.resource_type == BROKER_LOGGER:
        alter_loggers(name, changes, context, validate_only=validate_only)
    elif resource.resource_type == TOPIC:
        await alter_topic(name, changes, context, validate_only=validate_only)
    elif (kind := resource.resource_type) in resource_configs.KINDS:
        made = partial(resource_configs.changed, kind, name, changes=changes, context=context)
        await resource_configs.alter(kind, name, made, context, validate_only=validate_only)
    else:
        raise unsupported_resource(resource.resource_type)


API = Api(
    44,
    versions=(0, 1),
    flexible_from=1,
    request=IncrementalAlterConfigsRequest,
    handle=handle,
    rule=on_configs(acl.Operation.ALTER_CONFIGS, AlterConfigsResourceResponse, "responses"),
    act=rows("resources", "resource_name"),
)
