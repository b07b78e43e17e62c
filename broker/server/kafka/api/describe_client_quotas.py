"""DescribeClientQuotas (48), versions 0-1: the quotas of the entities that a filter selects."""

from __future__ import annotations

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.quotas import DEFAULT, PARTS, Entity
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.rules import on_cluster
from headgate.broker.wire.kafka.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

EXACT, OF_DEFAULT, ANY = 0, 1, 2
MATCHES = {EXACT: "MATCH_TYPE_EXACT", OF_DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}


async def handle(request: DescribeClientQuotasRequest, context: Context) -> DescribeClientQuotasResponse:
    try:
        wanted = _wanted(request.components)
    except InvalidError as error:
        return DescribeClientQuotasResponse(error_code=error_code(error), error_message=error_message(error), entries=None)
    response = DescribeClientQuotasResponse(error_message=None, entries=[])
    if request.strict and not wanted:
        return response
    async for entity, values in context.turn.each(list(context.engine.manifest.quotas.by_entity.items())):
        if _selects(wanted, entity, strict=request.strict):
            names = [EntityData(entity_type=word, entity_name=name or None) for word, name in entity.parts.items()]
            rows = [ValueData(key=kind.value, value=value) for kind, value in values.items()]
            assert response.entries is not None
            response.entries.append(EntryData(entity=names, values=rows))
    return response


def _wanted(components: list[ComponentData]) -> dict[str, str | None]:
    """The wanted name by type; None: any. Raises InvalidError in Kafka's words."""
    wanted: dict[str, str | None] = {}
    for component in components:
        word = component.entity_type
        if not word:
            raise InvalidError(Reason.INVALID_REQUEST, "Invalid empty entity type.")
        if word in wanted:
            raise InvalidError(Reason.INVALID_REQUEST, f"Entity type {word} cannot appear more than once in the filter.")
        if word not in PARTS:
            raise InvalidError(Reason.UNSUPPORTED, f"Unsupported entity type {word}")
        if component.match_type not in MATCHES:
            raise InvalidError(Reason.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        if component.match_type == EXACT and component.match is None:
            raise InvalidError(Reason.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if component.match_type != EXACT and component.match is not None:
            raise InvalidError(
                Reason.INVALID_REQUEST, f"Request specified {MATCHES[component.match_type]}, but also specified a match string."
            )
        wanted[word] = component.match if component.match_type == EXACT else DEFAULT if component.match_type == OF_DEFAULT else None
    return wanted


def _selects(wanted: dict[str, str | None], entity: Entity, *, strict: bool) -> bool:
    parts = entity.parts
    if strict and len(parts) != len(wanted):
        return False
    return all(word in parts and name in (None, parts[word]) for word, name in wanted.items())


API = Api(
    48,
    versions=(0, 1),
    flexible_from=1,
    request=DescribeClientQuotasRequest,
    handle=handle,
    rule=on_cluster(Operation.DESCRIBE_CONFIGS, DescribeClientQuotasResponse, entries=None),
)
