"""DeleteTopics (20), versions 1-6: by name, or by name or id from version 6.

A topic that is named twice, by name or by id, is INVALID_REQUEST and is not deleted. Deviation: an internal topic cannot be
deleted (POLICY_VIOLATION): all groups and their positions would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING

from headgate.broker.cluster.acl import Operation
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code, error_message
from headgate.broker.server.kafka.requests import repeated
from headgate.broker.server.kafka.rules import TOPIC_REFUSED, made, may_see_id
from headgate.broker.wire.kafka.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headgate.broker.wire.kafka.primitives import ZERO_UUID

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Topic

IDS_VERSION_MIN = 6


async def handle(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
    each = context.turn.each
    asked = request.topics
    if context.api_version < IDS_VERSION_MIN:
        asked = [DeleteTopicState(name=name) async for name in each(request.topic_names)]
    names = {topic.id: topic.name async for topic in each(context.engine.topics())}
    twice = await repeated(context, (names.get(row.topic_id, row.topic_id) if row.name is None else row.name for row in asked))
    response = DeleteTopicsResponse()
    found: list[tuple[Topic, DeleteTopicState, DeletableTopicResult]] = []
    different = {(row.name, row.topic_id): row async for row in each(asked)}
    async for row in each(different.values()):
        result = DeletableTopicResult(name=row.name, topic_id=row.topic_id)
        response.responses.append(result)
        try:
            if row.name is None and row.topic_id == ZERO_UUID:
                raise InvalidError(Reason.INVALID_REQUEST, "neither topic name nor topic id is given")
            if row.name is not None and row.topic_id != ZERO_UUID:
                raise InvalidError(Reason.INVALID_REQUEST, "both topic name and topic id are given")
            if (names.get(row.topic_id, row.topic_id) if row.name is None else row.name) in twice:
                raise InvalidError(Reason.INVALID_REQUEST, "topic is in the request more than once")
            topic = context.engine.topic_by_id(row.topic_id) if row.name is None else context.engine.topic(row.name)
            result.name, result.topic_id = topic.name, topic.id
            if is_internal(topic.name):
                raise InvalidError(Reason.POLICY_VIOLATION, f"an internal topic cannot be deleted. topic=`{topic.name}`")
            found.append((topic, row, result))
        except InvalidError as error:
            _refuse(result, error)
    errors = await context.engine.delete_topics([topic for topic, _, _ in found])
    async for (topic, row, result), refused in each(zip(found, errors, strict=True)):
        if refused is None:
            continue
        if refused.reason is Reason.UNKNOWN_TOPIC_ID and row.name is not None:
            # Another client was faster, and a client that asked by name does not know ids.
            refused = InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist. topic=`{topic.name}`")
        _refuse(result, refused)
    return response


def _refuse(result: DeletableTopicResult, error: HeadgateError) -> None:
    result.error_code = error_code(error)
    result.error_message = error_message(error)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, ids = asked.rights, asked.context.engine.manifest.topics_by_id
    names = await asked.drop(request.topic_names, asked.topic(Operation.DELETE))

    def may(row: Message) -> bool:
        if row.topic_id == ZERO_UUID:
            return rights.on_topic(Operation.DELETE, row.name or "")
        topic = ids.get(row.topic_id)
        return topic is None or rights.on_topic(Operation.DELETE, topic.name)

    states = await asked.drop(request.topics, may)
    response = yield None
    for name in names:
        response.responses.append(made(DeletableTopicResult, name=name, error_code=TOPIC_REFUSED))
    for state in states:
        by_id = state.topic_id != ZERO_UUID
        visible = not by_id or may_see_id(asked, state.topic_id)
        name = (ids[state.topic_id].name if visible else None) if by_id else state.name
        code = TOPIC_REFUSED if visible else ErrorCode.UNKNOWN_TOPIC_ID
        row = made(DeletableTopicResult, name=name, topic_id=state.topic_id, error_code=code)
        response.responses.append(row)


def act(request: Message) -> Iterator[str]:
    yield from request.topic_names
    for topic in request.topics:
        yield topic.name or str(topic.topic_id)


API = Api(20, versions=(1, 6), flexible_from=4, request=DeleteTopicsRequest, handle=handle, rule=rule, act=act)
