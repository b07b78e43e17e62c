"""ListConfigResources (74), versions 0-1: what has settings: topics, brokers and their loggers, and the groups and
subscriptions of client metrics that were given some.

Version 0 asks for client metrics (KIP-714). Without types, all are listed. A type that Kafka does not know is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.engine.resource_settings import names_of
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.resource_configs import KINDS
from headgate.broker.server.kafka.rules import on_cluster
from headgate.broker.wire.kafka.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TYPES_VERSION_MIN = 1
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
KNOWN = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))


async def handle(request: ListConfigResourcesRequest, context: Context) -> ListConfigResourcesResponse:
    types = frozenset(request.resource_types) or KNOWN
    if context.api_version < TYPES_VERSION_MIN:
        types = frozenset((CLIENT_METRICS,))
    if not types <= KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    each = context.turn.each
    found: list[ConfigResource] = []
    if TOPIC in types:
        async for name in each(sorted(context.engine.manifest.topics)):
            found.append(ConfigResource(resource_name=name, resource_type=TOPIC))
    numbers = sorted({broker.broker_id for broker in context.engine.brokers()})
    for kind in (BROKER, BROKER_LOGGER):
        if kind in types:
            found += [ConfigResource(resource_name=str(number), resource_type=kind) for number in numbers]
    for kind, prefix in KINDS.items():
        if kind in types:
            async for name in each(names_of(prefix, context.engine.manifest.broker_configs)):
                found.append(ConfigResource(resource_name=name, resource_type=kind))
    return ListConfigResourcesResponse(config_resources=found)


API = Api(
    74,
    versions=(0, 1),
    flexible_from=0,
    request=ListConfigResourcesRequest,
    handle=handle,
    rule=on_cluster(Operation.DESCRIBE_CONFIGS, ListConfigResourcesResponse),
)
