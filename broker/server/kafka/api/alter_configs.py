"""AlterConfigs (33), versions 0-2: replace all overrides of a topic, or all that clients gave a broker, by those in the request.

As in Kafka, a resource or a key that occurs twice in the request, and a null value are INVALID_REQUEST.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.altering import Change, altering
from headgate.broker.server.kafka.audited import rows
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


async def _change(resource: AlterConfigsResource, context: Context) -> Change:
    if await repeated(context, (entry.name for entry in resource.configs)):
        raise InvalidError(Reason.INVALID_REQUEST, "a key is in the request more than once")
    config = {entry.name: entry.value async for entry in context.turn.each(resource.configs) if entry.value is not None}
    if len(config) < len(resource.configs):
        raise InvalidError(Reason.INVALID_REQUEST, "a key has no value")
    return Change(broker=lambda _: config, topic=lambda _: config)


API = Api(
    33,
    versions=(0, 2),
    flexible_from=2,
    request=AlterConfigsRequest,
    handle=altering(AlterConfigsResponse, AlterConfigsResourceResponse, _change),
    rule=on_configs(Operation.ALTER_CONFIGS, AlterConfigsResourceResponse, "responses"),
    act=rows("resources", "resource_name"),
)
