"""AlterClientQuotas (49), versions 0-1: sets and removes quotas. All entities of a request change together, without those that are
wrong. Deviation: only quotas of bytes are served, neither `request_percentage` nor rates of connections or partition changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.edits.quotas import AlterQuotas
from headgate.broker.cluster.quotas import Entity, entity_of
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    EntryResult,
)

ENTITIES_MAX = 1000
"""Entities in one request; they are one commit."""


async def handle(request: AlterClientQuotasRequest, context: Context) -> AlterClientQuotasResponse:
    judged: list[AlterQuotas | HeadgateError] = []
    seen: set[Entity] = set()
    async for entry in context.turn.each(request.entries):
        try:
            judged.append(_judge(entry, seen, context, len(request.entries)))
        except InvalidError as error:
            judged.append(error)
    edits = [alteration for alteration in judged if isinstance(alteration, AlterQuotas)]
    failed: HeadgateError | None = None
    if edits and not request.validate_only:
        try:
            await context.engine.change_access(*edits)
        except HeadgateError as error:
            failed = error
    response = AlterClientQuotasResponse()
    async for entry, answer in context.turn.each(list(zip(request.entries, judged, strict=True))):
        wrong = answer if isinstance(answer, HeadgateError) else failed
        response.entries.append(
            EntryResult(
                entity=entry.entity,
                error_code=ErrorCode.NONE if wrong is None else error_code(wrong),
                error_message=None if wrong is None else error_message(wrong),
            )
        )
    return response


def _judge(entry: EntryData, seen: set[Entity], context: Context, entries: int) -> AlterQuotas:
    if entries > ENTITIES_MAX:
        raise InvalidError(Reason.INVALID_REQUEST, f"too many entities. entities=`{entries}` max=`{ENTITIES_MAX}`")
    entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
    if entity in seen:
        raise InvalidError(Reason.INVALID_REQUEST, f"Ignoring duplicate entity {_shown(entry.entity)}")
    seen.add(entity)
    values: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in values:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"Duplicate quota key {op.key} not updating quota for this entity {_shown(entry.entity)}",
            )
        values[op.key] = None if op.remove else op.value
    context.engine.manifest.quotas.check(entity, values)
    return AlterQuotas(entity, values)


def _shown(names: list[EntityData]) -> str:
    return ", ".join(f"{name.entity_type}={name.entity_name or '<default>'}" for name in names)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER_CONFIGS):
        yield None
        return
    rows = [made(EntryResult, entity=entry.entity, error_code=CLUSTER_REFUSED) for entry in request.entries]
    yield made(AlterClientQuotasResponse, entries=rows)


def act(request: Message) -> Iterator[str]:
    for entry in request.entries:
        yield ", ".join(f"{part.entity_type} {part.entity_name or '(default)'}" for part in entry.entity)


API = Api(49, versions=(0, 1), flexible_from=1, request=AlterClientQuotasRequest, handle=handle, rule=rule, act=act)
