"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to and subtract from single keys of a topic or broker
(KIP-339).

- Append and subtract work on lists; without an override they start from the default. Deleting a key without an override
  succeeds.
- Settings of brokers that can change while they run: `engine/base/live_settings.py`. They are kept.
- As in Kafka, a resource or a key that occurs twice in the request, an unknown operation, and a null value for an operation that
  needs one are INVALID_REQUEST.
"""

from __future__ import annotations

from functools import partial

from headgate.broker.cluster import acl
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.altering import Change, altering
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.broker_configs import altered_broker
from headgate.broker.server.kafka.configs import Operation, altered_topic
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.rules import on_configs
from headgate.broker.wire.kafka.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def _change(resource: AlterConfigsResource, context: Context) -> Change:
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
    return Change(
        broker=partial(altered_broker, changes=changes, context=context),
        topic=partial(altered_topic, changes=changes, context=context),
    )


API = Api(
    44,
    versions=(0, 1),
    flexible_from=1,
    request=IncrementalAlterConfigsRequest,
    handle=altering(IncrementalAlterConfigsResponse, AlterConfigsResourceResponse, _change),
    rule=on_configs(acl.Operation.ALTER_CONFIGS, AlterConfigsResourceResponse, "responses"),
    act=rows("resources", "resource_name"),
)
