"""Topics in a person's hands: create one, change its settings, add partitions, delete it."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headgate.broker.cluster.topic_config import KEYS
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.server.http.hands.room import Hand, Room
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.carried import TIMEOUT_MS, first
from headgate.broker.wire.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from headgate.broker.wire.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headgate.broker.wire.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from headgate.broker.wire.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

DESCRIBE = methods(admin_pb2.DESCRIPTOR.services_by_name["Admin"])["DescribeTopics"]
TOPIC = 2
"""Kafka's number for resources with settings that are topics."""
SET, UNSET = 0, 1
INT_MAX = 2**31 - 1
SENTENCES = {
    "created": "The topic is created.",
    "set": "The setting is changed.",
    "unset": "The setting has its default again.",
    "partitions": "The partitions are added. Keys may now go to other partitions than before.",
}


class TopicPages:
    """The answers of ``/new-topic`` and ``/topics/NAME/settings``, and the acts on topics."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def new(self, request: Request) -> Response:
        """The form of a new topic."""
        hand = await self._room.hand(request)
        default = hand.inner.engine.settings.num_partitions
        return await self._room.page("new_topic", self._room.entrance.known(hand.visitor), partitions=default, keys=KEYS.values())

    async def settings(self, request: Request) -> Response:
        """The settings of a topic, with their defaults and meanings, and what can be done to the topic."""
        hand, name = await self._room.hand(request), request.path_params["name"]
        answer: admin_pb2.DescribeTopicsResponse = await hand.inner.call(
            DESCRIBE, admin_pb2.DescribeTopicsRequest(names=[name]), hand.visitor.client
        )
        found = answer.topics[0]
        if found.HasField("error"):
            raise (RetryError if found.error.retriable else InvalidError)(Reason(found.error.reason), found.error.message)
        chosen = request.query_params.get("change", "")
        return await self._room.page(
            "settings",
            self._room.entrance.known(hand.visitor),
            topic=name,
            partitions=found.topic.partitions,
            own=[entry for entry in found.config if not entry.is_default],
            others=[entry for entry in found.config if entry.is_default],
            chosen=next((entry for entry in found.config if entry.name == chosen), None),
            done=SENTENCES.get(request.query_params.get("done", ""), ""),
        )

    # -- acts

    async def create(self, hand: Hand, fields: dict[str, str]) -> Response:
        name = fields.get("name", "").strip()
        row = CreatableTopic(
            name=name,
            num_partitions=_number(fields.get("partitions", "")) if fields.get("partitions") else -1,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in _settings(fields.get("settings", ""))],
        )
        request = CreateTopicsRequest(topics=[row], timeout_ms=TIMEOUT_MS)
        await hand.ask(request, CreateTopicsResponse, first("topics", f"topic=`{name}`"))
        return _back_to(name, "created")

    async def set_setting(self, hand: Hand, fields: dict[str, str]) -> Response:
        return await self._alter(hand, fields, SET, fields.get("value", ""), "set")

    async def unset_setting(self, hand: Hand, fields: dict[str, str]) -> Response:
        return await self._alter(hand, fields, UNSET, None, "unset")

    async def _alter(self, hand: Hand, fields: dict[str, str], operation: int, value: str | None, done: str) -> Response:
        name = fields.get("topic", "")
        change = AlterableConfig(name=fields.get("setting", ""), config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        await hand.ask(request, IncrementalAlterConfigsResponse, first("responses", f"topic=`{name}`"))
        return _back_to(name, done)

    async def add_partitions(self, hand: Hand, fields: dict[str, str]) -> Response:
        name = fields.get("topic", "")
        row = CreatePartitionsTopic(name=name, count=_number(fields.get("total", "")), assignments=None)
        request = CreatePartitionsRequest(topics=[row], timeout_ms=TIMEOUT_MS)
        await hand.ask(request, CreatePartitionsResponse, first("results", f"topic=`{name}`"))
        return _back_to(name, "partitions")

    async def delete(self, hand: Hand, fields: dict[str, str]) -> Response:
        name = fields.get("topic", "")
        if fields.get("confirm", "").strip() != name:
            raise InvalidError(Reason.INVALID_REQUEST, "to delete the topic and its messages, write its name into the field")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS)
        await hand.ask(request, DeleteTopicsResponse, first("responses", f"topic=`{name}`"))
        return RedirectResponse("/?done=topic", 303)


def _back_to(name: str, done: str) -> Response:
    return RedirectResponse(f"/topics/{quote(name, safe='')}/settings?done={done}", 303)


def _number(text: str) -> int:
    """A number of partitions. Raises InvalidError(INVALID_PARTITIONS)."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= INT_MAX and len(text) <= 10):
        raise InvalidError(Reason.INVALID_PARTITIONS, f"not a number of partitions. value=`{text[:50]}`")
    return int(text)


def _settings(text: str) -> list[tuple[str, str]]:
    """The settings in lines ``key=value``. Raises InvalidError(INVALID_CONFIG)."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise InvalidError(Reason.INVALID_CONFIG, f"not a setting, expected key=value. line=`{line[:100]}`")
        found.append((key.strip(), value.strip()))
    return found
