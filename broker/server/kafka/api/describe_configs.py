"""DescribeConfigs (32), versions 1-4: settings of topics and of this broker, with their defaults, types and texts.

- A null or empty list of keys asks for all keys. A resource that occurs twice in the request is answered once.
- The broker with the empty name means the settings that clients gave all brokers.
"""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.broker_configs import broker_entries, check_broker
from headgate.broker.server.kafka.configs import (
    BROKER,
    TOPIC,
    Entry,
    find_topic,
    topic_entries,
    unsupported_resource,
)
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.rules import on_configs
from headgate.broker.wire.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def handle(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    each = context.turn.each
    resources = {(resource.resource_type, resource.resource_name): resource async for resource in each(request.resources)}
    async for resource in each(resources.values()):
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        response.results.append(result)
        try:
            entries = _entries(resource.resource_type, resource.resource_name, context)
        except HeadgateError as error:
            result.error_code = error_code(error)
            result.error_message = error_message(error)
            continue
        wanted = {key async for key in each(resource.configuration_keys or ())}
        result.configs = [
            _result(entry, request.include_synonyms, request.include_documentation)
            for entry in entries
            if not wanted or entry.name in wanted
        ]
    return response


def _entries(resource_type: int, name: str, context: Context) -> list[Entry]:
    if resource_type == TOPIC:
        return topic_entries(find_topic(name, context), context)
    if resource_type == BROKER:
        check_broker(name, context)
        return broker_entries(name, context)
    raise unsupported_resource(resource_type)


def _result(entry: Entry, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        config_type=entry.kind,
        documentation=entry.documentation if documentation else None,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in (entry.synonyms if synonyms else ())
        ],
    )


API = Api(
    32,
    versions=(1, 4),
    flexible_from=4,
    request=DescribeConfigsRequest,
    handle=handle,
    rule=on_configs(Operation.DESCRIBE_CONFIGS, DescribeConfigsResult, "results"),
)
