"""The page of a consumer group: members, positions and lag; and what a person changes: positions, a topic, the group itself."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.server.http.hands import positions
from headgate.broker.server.http.hands.positions import Move, Place, Target
from headgate.broker.server.http.hands.room import Hand, Room, sentence
from headgate.broker.wire.grpc.headgate.v1 import groups_pb2, log_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.carried import REASONS, check
from headgate.broker.wire.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headgate.broker.wire.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headgate.broker.wire.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headgate.broker.wire.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

DESCRIBE = methods(groups_pb2.DESCRIPTOR.services_by_name["Groups"])["DescribeGroups"]
GROUP = 0
"""Kafka's number for the coordinators of groups."""
ROWS_MAX = 500
"""Positions of one topic that are listed; sums are of all."""
MEMBERS_MAX = 500
COMMIT_ROWS_MAX = 5_000
"""Positions of one request."""
HAS_MEMBERS = "the group has active members: stop its consumers first, or they would go on where they are"
SENTENCES = {
    "positions": "The positions are set. Consumers that start now begin there.",
    "forgotten": "The group has no positions in the topic any more.",
    "deleted": "The group and its positions are deleted.",
}


class GroupPages:
    """The answers of ``/group``, and the acts on groups."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def group(self, request: Request) -> Response:
        """One group; with a target in the address also the preview of a change."""
        hand, values = await self._room.hand(request), request.query_params
        group_id = values.get("id", "")
        described = await _describe(hand, group_id)
        moved: list[Move] | None = None
        trouble = ""
        if "to" in values:
            try:
                moved = await _moves(hand, described, dict(values))
            except HeadgateError as error:
                trouble = sentence(error)
        topics: dict[str, list[groups_pb2.GroupPosition]] = {}
        for row in described.positions:
            topics.setdefault(row.topic, []).append(row)
        return await self._room.page(
            "group",
            self._room.entrance.known(hand.visitor),
            group=described.group,
            protocol=described.protocol,
            members=described.members[:MEMBERS_MAX],
            topics=topics,
            rows_max=ROWS_MAX,
            moved=None if moved is None else positions.by_topic(moved),
            again=sum(move.again for move in moved or ()),
            skipped=sum(move.skipped for move in moved or ()),
            trouble=trouble,
            asked={name: values.get(name, "") for name in ("topic", "partitions", "to", "at")},
            targets=positions.TARGETS,
            done=SENTENCES.get(values.get("done", ""), ""),
        )

    # -- acts

    async def set_positions(self, hand: Hand, fields: dict[str, str]) -> Response:
        group_id = fields.get("id", "")
        described = await _describe(hand, group_id)
        rows = await _moves(hand, described, fields)
        await _commit(hand, group_id, rows)
        return _back_to(group_id, "positions")

    async def forget_topic(self, hand: Hand, fields: dict[str, str]) -> Response:
        """Delete a group's positions in a topic."""
        group_id, topic = fields.get("id", ""), fields.get("topic", "")
        described = await _describe(hand, group_id)
        numbers = [row.partition for row in described.positions if row.topic == topic and row.HasField("offset")]
        rows = [OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
        request = OffsetDeleteRequest(group_id=group_id, topics=[OffsetDeleteRequestTopic(name=topic, partitions=rows)])

        def read(answer: OffsetDeleteResponse) -> None:
            where = f"group=`{group_id}` topic=`{topic}`"
            check(answer.error_code, None, where)
            for listed in answer.topics:
                for row in listed.partitions:
                    if REASONS.get(row.error_code) is Reason.GROUP_SUBSCRIBED_TO_TOPIC:
                        raise InvalidError(
                            Reason.GROUP_SUBSCRIBED_TO_TOPIC, f"the group's members read the topic: stop them first. {where}"
                        )
                    check(row.error_code, None, where)

        await hand.ask(request, OffsetDeleteResponse, read, await _coordinator(hand, group_id))
        return _back_to(group_id, "forgotten")

    async def delete(self, hand: Hand, fields: dict[str, str]) -> Response:
        group_id = fields.get("id", "")
        if fields.get("confirm", "") != group_id:
            raise InvalidError(Reason.INVALID_REQUEST, "to delete the group, write its id into the field")
        request = DeleteGroupsRequest(groups_names=[group_id])

        def read(answer: DeleteGroupsResponse) -> None:
            _check(answer.results[0].error_code, f"group=`{group_id}`")

        await hand.ask(request, DeleteGroupsResponse, read, await _coordinator(hand, group_id))
        return RedirectResponse("/?done=group", 303)


def _back_to(group_id: str, done: str) -> Response:
    return RedirectResponse("/group?" + urlencode({"id": group_id, "done": done}), 303)


def _check(code: int, where: str) -> None:
    if REASONS.get(code) is Reason.NON_EMPTY_GROUP or code == ErrorCode.UNKNOWN_MEMBER_ID:
        raise InvalidError(Reason.NON_EMPTY_GROUP, f"{HAS_MEMBERS}. {where}")
    check(code, None, where)


async def _describe(hand: Hand, group_id: str) -> groups_pb2.GroupDescription:
    """Raises InvalidError: GROUP_ID_NOT_FOUND, NOT_AUTHORIZED; RetryError."""
    answer: groups_pb2.DescribeGroupsResponse = await hand.inner.call(
        DESCRIBE, groups_pb2.DescribeGroupsRequest(ids=[group_id]), hand.visitor.client
    )
    found = answer.groups[0]
    if found.HasField("error"):
        raise (RetryError if found.error.retriable else InvalidError)(Reason(found.error.reason), found.error.message)
    return found


async def _coordinator(hand: Hand, group_id: str) -> int:
    """The id of the broker that holds a group."""

    def read(answer: FindCoordinatorResponse) -> int:
        row = answer.coordinators[0]
        check(row.error_code, row.error_message, f"group=`{group_id}`")
        return row.node_id

    return await hand.ask(FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[group_id]), FindCoordinatorResponse, read)


async def _moves(hand: Hand, described: groups_pb2.GroupDescription, fields: dict[str, str]) -> list[Move]:
    """What a person asks for, as positions. Raises InvalidError."""
    if described.members:
        raise InvalidError(Reason.NON_EMPTY_GROUP, HAS_MEMBERS)
    target = positions.target_of(fields.get("to", ""), fields.get("at", ""), hand.inner.engine.clock.now_ms())
    before = _before(hand, described, fields.get("topic", ""), positions.partitions_of(fields.get("partitions", "")))
    first, end, at = await _bounds(hand, list(before), target)
    found = positions.moves(target, before, first, end, at)
    if not found:
        raise InvalidError(Reason.INVALID_REQUEST, "the group has no position there to move")
    return found


def _before(hand: Hand, described: groups_pb2.GroupDescription, topic: str, numbers: set[int] | None) -> dict[Place, int | None]:
    """The positions to move: of all topics in which the group has some, or in one topic, which may be new to it."""
    known = {(row.topic, row.partition): row.offset for row in described.positions if row.HasField("offset")}
    if numbers is not None and not topic:
        raise InvalidError(Reason.INVALID_REQUEST, "choose the topic of the partitions")
    if not topic:
        chosen: list[Place] = list(known)
    else:
        # Asking for its ends proves that the person may see the topic, before it is told whether it exists.
        found = hand.inner.engine.manifest.topics.get(topic)
        total = 1 if found is None else found.partitions
        if numbers is not None and found is not None and max(numbers) >= total:
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"partition does not exist. topic=`{topic}` partition=`{max(numbers)}`")
        chosen = [(topic, number) for number in range(total) if numbers is None or number in numbers]
    if len(chosen) > positions.PLACES_MAX:
        raise InvalidError(
            Reason.INVALID_REQUEST, f"too many positions at once. positions=`{len(chosen)}` max=`{positions.PLACES_MAX}`"
        )
    return {place: known.get(place) for place in chosen}


async def _bounds(
    hand: Hand, places: Sequence[Place], target: Target
) -> tuple[dict[Place, int], dict[Place, int], dict[Place, int]]:
    """The first offsets, the ends, and the offsets of a time."""
    numbers: dict[str, list[int]] = {}
    for topic, number in places:
        numbers.setdefault(topic, []).append(number)
    wanted = [log_pb2.Position(earliest=True), log_pb2.Position(latest=True)]
    if target.kind == "time":
        wanted.append(log_pb2.Position(timestamp_ms=target.value))
    found: list[dict[Place, int]] = [{}, {}, {}]
    for topic, some in numbers.items():
        for at, position in enumerate(wanted):
            rows = await hand.inner.offsets(topic, dict.fromkeys(some, position), hand.visitor.client)
            for number, row in rows.items():
                if row.HasField("error"):
                    where = f"topic=`{topic}` partition=`{number}`"
                    error = RetryError if row.error.retriable else InvalidError
                    raise error(Reason(row.error.reason), f"{row.error.message}. {where}")
                found[at][topic, number] = row.offset
    return found[0], found[1], found[2]


async def _commit(hand: Hand, group_id: str, rows: Sequence[Move]) -> None:
    coordinator = await _coordinator(hand, group_id)

    def read(answer: OffsetCommitResponse) -> None:
        for topic in answer.topics:
            for row in topic.partitions:
                _check(row.error_code, f"group=`{group_id}` topic=`{topic.name}` partition=`{row.partition_index}`")

    for start in range(0, len(rows), COMMIT_ROWS_MAX):
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=move.partition, committed_offset=move.after, committed_metadata="")
                    for move in some
                ],
            )
            for topic, some in positions.by_topic(rows[start : start + COMMIT_ROWS_MAX]).items()
        ]
        await hand.ask(OffsetCommitRequest(group_id=group_id, topics=topics), OffsetCommitResponse, read, coordinator)
