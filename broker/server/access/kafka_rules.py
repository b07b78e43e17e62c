"""What each Kafka API needs: one rule for every key, and the one place that every request passes (`authorized`).

A rule is an async generator in two halves. The first takes out of the request what the client may not do, and yields None; or it
yields the answer for a request that is refused as a whole. The second half gets the handler's answer, and adds the refusals or
takes out what the client may not see. Produce and Fetch have no rule here: `produce.py` and `fetch.py` ask for each topic, and a
connection remembers the answers (`Rights`).

Rules are those of Kafka 4 (KafkaApis). A topic that the client may not describe is refused by name as it would be if it existed,
and not listed. `tests/unit/access/test_rules.py` proves that every API that is served has a row in `RULES`,
`test_kafka_rules.py` that each row refuses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from headgate.broker.cluster.acl import CLUSTER_NAME, Operation, Resource
from headgate.broker.server.access.asking import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TEXTS,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Asked,
    Handler,
    Message,
    Rule,
    made,
)
from headgate.broker.server.access.rights import Rights
from headgate.broker.server.access.transaction_rules import TRANSACTION_RULES
from headgate.broker.server.kafka.constants import NO_OPERATIONS
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.primitives import ZERO_UUID

TOPIC_CONFIG, GROUP_CONFIG = 2, 32
GROUP_KEY = 0
DESCRIBE_GROUPS_TEXT_VERSION_MIN = 6


async def authorized(key: int, message: Message, handle: Handler, context: Context, rights: Rights) -> Message:
    """The answer to a request of a client with these rights."""
    rule = RULES[key](message, Asked(rights, context))
    refused = await anext(rule)
    if refused is not None:
        await rule.aclose()
        return refused
    response = await handle(message, context)
    try:
        await rule.asend(response)
    except StopAsyncIteration:
        return response
    raise AssertionError("a rule has two halves")


# -- rules of one shape


async def _free(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    yield None


def _on_cluster(operation: Operation, module: str, answer: str, **fields: Any) -> Rule:
    """The whole request needs an operation on the cluster."""

    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        if asked.rights.on_cluster(operation):
            yield None
        else:
            yield made(module, answer, error_code=CLUSTER_REFUSED, **fields)

    return rule


def _on_group(operation: Operation, module: str, answer: str, **fields: Any) -> Rule:
    """The whole request needs an operation on its group."""

    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        if asked.rights.on_group(operation, request.group_id):
            yield None
        else:
            yield made(module, answer, error_code=GROUP_REFUSED, **fields)

    return rule


def _on_partitions(
    operation: Operation,
    module: str,
    topic_row: str,
    row: str,
    *,
    name: str = "name",
    number: str = "partition_index",
    **fields: Any,
) -> Rule:
    """Each topic of `request.topics` needs an operation; the answer names each refused partition in `response.topics`."""

    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        refused = await asked.drop(request.topics, lambda one: asked.rights.on_topic(operation, getattr(one, name)))
        response = yield None
        async for topic in asked.context.turn.each(refused):
            numbers = (
                topic.partition_indexes
                if hasattr(topic, "partition_indexes")
                else [getattr(one, number) for one in topic.partitions]
            )
            rows = [made(module, row, **{number: one}, error_code=TOPIC_REFUSED, **fields) for one in numbers]
            response.topics.append(made(module, topic_row, **{name: getattr(topic, name)}, partitions=rows))

    return rule


# -- topics


async def _metadata(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, engine = asked.rights, asked.context.engine
    everything = request.topics is None or (not request.topics and asked.context.api_version == 0)
    refused: list[Message] = []
    hidden: list[Message] = []
    if not everything:
        by_id = [one for one in request.topics if one.topic_id != ZERO_UUID]
        request.topics = [one for one in request.topics if one.topic_id == ZERO_UUID]
        refused = await asked.drop(request.topics, lambda one: rights.on_topic(Operation.DESCRIBE, one.name or ""))
        if (
            request.allow_auto_topic_creation
            and asked.context.settings.auto_create_topics
            and not rights.on_cluster(Operation.CREATE)
        ):
            refused += await asked.drop(
                request.topics,
                lambda one: one.name in engine.manifest.topics or rights.on_topic(Operation.CREATE, one.name or ""),
            )
        hidden = await asked.drop(by_id, lambda one: _may_see_id(asked, one.topic_id))
        request.topics += by_id
        if not request.topics and asked.context.api_version == 0:
            request.topics = [type(refused[0])(name="")]  # an empty list would ask for all topics
    response = yield None
    if everything:
        await asked.drop(response.topics, lambda one: rights.on_topic(Operation.DESCRIBE, one.name))
    elif refused and asked.context.api_version == 0:
        await asked.drop(response.topics, lambda one: bool(one.name))
    for one in refused:
        response.topics.append(made("metadata", "MetadataResponseTopic", error_code=TOPIC_REFUSED, name=one.name))
    for one in hidden:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        response.topics.append(made("metadata", "MetadataResponseTopic", error_code=unknown, name=None, topic_id=one.topic_id))
    _limit_cluster(response, asked)
    await _limit(response.topics, asked, "topic_authorized_operations", Resource.TOPIC, lambda one: one.name or "")


def _may_see_id(asked: Asked, topic_id: Any) -> bool:
    topic = asked.context.engine.manifest.topics_by_id.get(topic_id)
    return topic is None or asked.rights.on_topic(Operation.DESCRIBE, topic.name)


def _limit_cluster(response: Message, asked: Asked) -> None:
    if response.cluster_authorized_operations != NO_OPERATIONS:
        response.cluster_authorized_operations = asked.rights.operations(Resource.CLUSTER, CLUSTER_NAME)


async def _limit(rows: Iterable[Message], asked: Asked, field: str, resource: Resource, name: Callable[[Message], str]) -> None:
    """Replace the operations of the rows by those that the client may do."""
    async for row in asked.context.turn.each(rows):
        if getattr(row, field) != NO_OPERATIONS:
            setattr(row, field, asked.rights.operations(resource, name(row)))


async def _describe_cluster(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    _limit_cluster((yield None), asked)


async def _describe_topic_partitions(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    everything = not request.topics
    refused = await asked.drop(request.topics, lambda one: rights.on_topic(Operation.DESCRIBE, one.name))
    nothing_left = bool(refused) and not request.topics
    if nothing_left:
        yield made("describe_topic_partitions", "DescribeTopicPartitionsResponse", topics=[_hidden_topic(one) for one in refused])
        return
    response = yield None
    if everything:
        await asked.drop(response.topics, lambda one: rights.on_topic(Operation.DESCRIBE, one.name))
    response.topics += [_hidden_topic(one) for one in refused]
    await _limit(response.topics, asked, "topic_authorized_operations", Resource.TOPIC, lambda one: one.name or "")


def _hidden_topic(one: Message) -> Message:
    return made("describe_topic_partitions", "DescribeTopicPartitionsResponseTopic", error_code=TOPIC_REFUSED, name=one.name)


async def _create_topics(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    refused = await asked.drop(
        request.topics, lambda one: rights.on_cluster(Operation.CREATE) or rights.on_topic(Operation.CREATE, one.name)
    )
    response = yield None
    async for one in asked.context.turn.each(response.topics):
        if not one.error_code and not rights.on_topic(Operation.DESCRIBE_CONFIGS, one.name):
            one.topic_config_error_code, one.configs = TOPIC_REFUSED, None
            one.num_partitions = one.replication_factor = -1
    for one in refused:
        response.topics.append(made("create_topics", "CreatableTopicResult", name=one.name, error_code=TOPIC_REFUSED))


async def _delete_topics(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, ids = asked.rights, asked.context.engine.manifest.topics_by_id
    names = await asked.drop(request.topic_names, asked.topic(Operation.DELETE))

    def may(one: Message) -> bool:
        if one.topic_id == ZERO_UUID:
            return rights.on_topic(Operation.DELETE, one.name or "")
        topic = ids.get(one.topic_id)
        return topic is None or rights.on_topic(Operation.DELETE, topic.name)

    states = await asked.drop(request.topics, may)
    response = yield None
    for name in names:
        response.responses.append(made("delete_topics", "DeletableTopicResult", name=name, error_code=TOPIC_REFUSED))
    for one in states:
        by_id = one.topic_id != ZERO_UUID
        visible = not by_id or _may_see_id(asked, one.topic_id)
        name = (ids[one.topic_id].name if visible else None) if by_id else one.name
        code = TOPIC_REFUSED if visible else ErrorCode.UNKNOWN_TOPIC_ID
        row = made("delete_topics", "DeletableTopicResult", name=name, topic_id=one.topic_id, error_code=code)
        response.responses.append(row)


async def _create_partitions(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.topics, lambda one: asked.rights.on_topic(Operation.ALTER, one.name))
    response = yield None
    for one in refused:
        response.results.append(made("create_partitions", "CreatePartitionsTopicResult", name=one.name, error_code=TOPIC_REFUSED))


def _configs(operation: Operation, module: str, row: str, rows: str) -> Rule:
    async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
        def may(one: Message) -> bool:
            if one.resource_type == TOPIC_CONFIG:
                return asked.rights.on_topic(operation, one.resource_name)
            if one.resource_type == GROUP_CONFIG:
                return asked.rights.on_group(operation, one.resource_name)
            return asked.rights.on_cluster(operation)

        refused = await asked.drop(request.resources, may)
        response = yield None
        for one in refused:
            code = {TOPIC_CONFIG: TOPIC_REFUSED, GROUP_CONFIG: GROUP_REFUSED}.get(one.resource_type, CLUSTER_REFUSED)
            refusal = made(module, row, error_code=code, resource_type=one.resource_type, resource_name=one.resource_name)
            getattr(response, rows).append(refusal)

    return rule


async def _elect_leaders(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
        return
    module, topics = "elect_leaders", []
    async for one in asked.context.turn.each(request.topic_partitions or ()):
        rows = [made(module, "PartitionResult", partition_id=number, error_code=CLUSTER_REFUSED) for number in one.partitions]
        topics.append(made(module, "ReplicaElectionResult", topic=one.topic, partition_result=rows))
    code = CLUSTER_REFUSED if asked.context.api_version else 0
    yield made(module, "ElectLeadersResponse", error_code=code, replica_election_results=topics)


async def _update_features(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
        return
    module = "update_features"
    rows = [
        made(module, "UpdatableFeatureResult", feature=one.feature, error_code=CLUSTER_REFUSED) for one in request.feature_updates
    ]
    yield made(module, "UpdateFeaturesResponse", error_code=CLUSTER_REFUSED, results=rows)


async def _init_producer_id(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, name = asked.rights, request.transactional_id
    if name is not None and not rights.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, name):
        yield made("init_producer_id", "InitProducerIdResponse", error_code=TRANSACTION_REFUSED, producer_id=-1, producer_epoch=-1)
    elif name is None and not (rights.on_cluster(Operation.IDEMPOTENT_WRITE) or rights.may(Operation.WRITE, Resource.TOPIC, None)):
        yield made("init_producer_id", "InitProducerIdResponse", error_code=CLUSTER_REFUSED, producer_id=-1, producer_epoch=-1)
    else:
        yield None


# -- groups


async def _find_coordinator(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    is_group = request.key_type == GROUP_KEY
    resource, code = (Resource.GROUP, GROUP_REFUSED) if is_group else (Resource.TRANSACTIONAL_ID, TRANSACTION_REFUSED)
    if asked.context.api_version < 4:
        if asked.rights.may(Operation.DESCRIBE, resource, request.key):
            yield None
        else:
            yield made("find_coordinator", "FindCoordinatorResponse", error_code=code, node_id=-1, host="", port=-1)
        return
    refused = await asked.drop(request.coordinator_keys, lambda key: asked.rights.may(Operation.DESCRIBE, resource, key))
    response = yield None
    for key in refused:
        row = made("find_coordinator", "Coordinator", key=key, error_code=code, node_id=-1, host="", port=-1)
        response.coordinators.append(row)


async def _offset_commit(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    in_group = asked.rights.on_group(Operation.READ, request.group_id)
    refused = await asked.drop(request.topics, lambda one: in_group and asked.on_named(Operation.READ, one))
    code = TOPIC_REFUSED if in_group else GROUP_REFUSED
    rows = [
        made(
            "offset_commit",
            "OffsetCommitResponseTopic",
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                made("offset_commit", "OffsetCommitResponsePartition", partition_index=one.partition_index, error_code=code)
                for one in topic.partitions
            ],
        )
        for topic in refused
    ]
    if not in_group:
        yield made("offset_commit", "OffsetCommitResponse", topics=rows)
        return
    response = yield None
    response.topics += rows


async def _offset_fetch(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    may_topic = asked.topic(Operation.DESCRIBE)
    if asked.context.api_version < 8:
        if not asked.rights.on_group(Operation.DESCRIBE, request.group_id):
            yield made("offset_fetch", "OffsetFetchResponse", error_code=GROUP_REFUSED)
            return
        refused = [] if request.topics is None else await asked.drop(request.topics, lambda one: may_topic(one.name))
        response = yield None
        await asked.drop(response.topics, lambda one: may_topic(one.name))
        response.topics += [_unread(one, "Topic", "Partition") for one in refused]
        return
    groups = await asked.drop(request.groups, lambda one: asked.rights.on_group(Operation.DESCRIBE, one.group_id))
    topics = {
        one.group_id: await asked.drop(one.topics, lambda topic: asked.on_named(Operation.DESCRIBE, topic))
        for one in request.groups
        if one.topics is not None
    }
    response = yield None
    for group in response.groups:
        await asked.drop(group.topics, lambda one: not one.name or may_topic(one.name))
        group.topics += [_unread(one, "Topics", "Partitions") for one in topics.get(group.group_id, ())]
    for one in groups:
        response.groups.append(made("offset_fetch", "OffsetFetchResponseGroup", group_id=one.group_id, error_code=GROUP_REFUSED))


def _unread(topic: Message, kind: str, row: str) -> Message:
    rows = [
        made("offset_fetch", f"OffsetFetchResponse{row}", partition_index=one, committed_offset=-1, error_code=TOPIC_REFUSED)
        for one in topic.partition_indexes
    ]
    names = {"name": topic.name, "topic_id": topic.topic_id} if kind == "Topics" else {"name": topic.name}
    return made("offset_fetch", f"OffsetFetchResponse{kind}", **names, partitions=rows)


async def _offset_delete(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if not asked.rights.on_group(Operation.DELETE, request.group_id):
        yield made("offset_delete", "OffsetDeleteResponse", error_code=GROUP_REFUSED)
        return
    refused = await asked.drop(request.topics, lambda one: asked.rights.on_topic(Operation.READ, one.name))
    response = yield None
    for topic in refused:
        rows = [
            made("offset_delete", "OffsetDeleteResponsePartition", partition_index=one.partition_index, error_code=TOPIC_REFUSED)
            for one in topic.partitions
        ]
        response.topics.append(made("offset_delete", "OffsetDeleteResponseTopic", name=topic.name, partitions=rows))


async def _delete_groups(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.groups_names, asked.group(Operation.DELETE))
    response = yield None
    for name in refused:
        response.results.append(made("delete_groups", "DeletableGroupResult", group_id=name, error_code=GROUP_REFUSED))


async def _list_groups(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    response = yield None
    if not asked.rights.on_cluster(Operation.DESCRIBE):
        await asked.drop(response.groups, lambda one: asked.rights.on_group(Operation.DESCRIBE, one.group_id))


async def _describe_groups(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    refused = await asked.drop(request.groups, asked.group(Operation.DESCRIBE))
    response = yield None
    await _limit(response.groups, asked, "authorized_operations", Resource.GROUP, lambda one: one.group_id)
    text = TEXTS[GROUP_REFUSED] if asked.context.api_version >= DESCRIBE_GROUPS_TEXT_VERSION_MIN else None
    for name in refused:
        row = made("describe_groups", "DescribedGroup", group_id=name, error_code=GROUP_REFUSED, error_message=text)
        response.groups.append(row)


async def _consumer_group_heartbeat(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights, kind = asked.rights, ("consumer_group_heartbeat", "ConsumerGroupHeartbeatResponse")
    if not rights.on_group(Operation.READ, request.group_id):
        yield made(*kind, error_code=GROUP_REFUSED)
    elif await asked.drop(list(request.subscribed_topic_names or ()), asked.topic(Operation.DESCRIBE)):
        yield made(*kind, error_code=TOPIC_REFUSED)
    else:
        yield None


async def _consumer_group_describe(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    module, may = "consumer_group_describe", asked.topic(Operation.DESCRIBE)
    refused = await asked.drop(request.group_ids, asked.group(Operation.DESCRIBE))
    response = yield None
    rows: list[Message] = []
    async for group in asked.context.turn.each(response.groups):
        held = [one.topic_name for member in group.members for one in member.assignment.topic_partitions]
        named = [name for member in group.members for name in member.subscribed_topic_names]
        hidden = not all(map(may, dict.fromkeys((*held, *named))))
        rows.append(made(module, "DescribedGroup", group_id=group.group_id, error_code=TOPIC_REFUSED) if hidden else group)
    response.groups = rows + [made(module, "DescribedGroup", group_id=name, error_code=GROUP_REFUSED) for name in refused]
    await _limit(response.groups, asked, "authorized_operations", Resource.GROUP, lambda one: one.group_id)


# -- users and rules


async def _alter_acls(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
    elif hasattr(request, "creations"):
        row = made("create_acls", "AclCreationResult", error_code=CLUSTER_REFUSED)
        yield made("create_acls", "CreateAclsResponse", results=[row] * len(request.creations))
    else:
        row = made("delete_acls", "DeleteAclsFilterResult", error_code=CLUSTER_REFUSED)
        yield made("delete_acls", "DeleteAclsResponse", filter_results=[row] * len(request.filters))


async def _alter_users(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
        return
    module = "alter_user_scram_credentials"
    names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    rows = [made(module, "AlterUserScramCredentialsResult", user=name, error_code=CLUSTER_REFUSED) for name in names]
    yield made(module, "AlterUserScramCredentialsResponse", results=rows)


async def _describe_users(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(_DESCRIBE):
        yield None
        return
    module = "describe_user_scram_credentials"
    rows = [
        made(module, "DescribeUserScramCredentialsResult", user=one.name, error_code=CLUSTER_REFUSED) for one in request.users or ()
    ]
    yield made(module, "DescribeUserScramCredentialsResponse", error_code=CLUSTER_REFUSED, results=rows)


async def _alter_quotas(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER_CONFIGS):
        yield None
        return
    module = "alter_client_quotas"
    rows = [made(module, "EntryResult", entity=one.entity, error_code=CLUSTER_REFUSED) for one in request.entries]
    yield made(module, "AlterClientQuotasResponse", entries=rows)


_DESCRIBE, _READ = Operation.DESCRIBE, Operation.READ
RULES: dict[int, Rule] = {
    2: _on_partitions(_DESCRIBE, "list_offsets", "ListOffsetsTopicResponse", "ListOffsetsPartitionResponse"),
    3: _metadata,
    8: _offset_commit,
    9: _offset_fetch,
    10: _find_coordinator,
    11: _on_group(_READ, "join_group", "JoinGroupResponse", protocol_name=""),
    12: _on_group(_READ, "heartbeat", "HeartbeatResponse"),
    13: _on_group(_READ, "leave_group", "LeaveGroupResponse"),
    14: _on_group(_READ, "sync_group", "SyncGroupResponse"),
    15: _describe_groups,
    16: _list_groups,
    17: _free,
    18: _free,
    19: _create_topics,
    20: _delete_topics,
    21: _on_partitions(
        Operation.DELETE, "delete_records", "DeleteRecordsTopicResult", "DeleteRecordsPartitionResult", low_watermark=-1
    ),
    22: _init_producer_id,
    23: _on_partitions(
        _DESCRIBE, "offset_for_leader_epoch", "OffsetForLeaderTopicResult", "EpochEndOffset", name="topic", number="partition"
    ),
    29: _on_cluster(_DESCRIBE, "describe_acls", "DescribeAclsResponse"),
    30: _alter_acls,
    31: _alter_acls,
    32: _configs(Operation.DESCRIBE_CONFIGS, "describe_configs", "DescribeConfigsResult", "results"),
    33: _configs(Operation.ALTER_CONFIGS, "alter_configs", "AlterConfigsResourceResponse", "responses"),
    35: _on_cluster(_DESCRIBE, "describe_log_dirs", "DescribeLogDirsResponse"),
    36: _free,
    37: _create_partitions,
    42: _delete_groups,
    43: _elect_leaders,
    44: _configs(Operation.ALTER_CONFIGS, "incremental_alter_configs", "AlterConfigsResourceResponse", "responses"),
    45: _on_cluster(Operation.ALTER, "alter_partition_reassignments", "AlterPartitionReassignmentsResponse"),
    46: _on_cluster(_DESCRIBE, "list_partition_reassignments", "ListPartitionReassignmentsResponse"),
    47: _offset_delete,
    48: _on_cluster(Operation.DESCRIBE_CONFIGS, "describe_client_quotas", "DescribeClientQuotasResponse", entries=None),
    49: _alter_quotas,
    50: _describe_users,
    51: _alter_users,
    55: _on_cluster(_DESCRIBE, "describe_quorum", "DescribeQuorumResponse"),
    57: _update_features,
    60: _describe_cluster,
    61: _on_partitions(_READ, "describe_producers", "TopicResponse", "PartitionResponse"),
    68: _consumer_group_heartbeat,
    69: _consumer_group_describe,
    74: _on_cluster(Operation.DESCRIBE_CONFIGS, "list_config_resources", "ListConfigResourcesResponse"),
    75: _describe_topic_partitions,
    **TRANSACTION_RULES,
}
"""By API key. All and only the APIs that connections hand to handlers."""
JUDGED_BY_CONNECTION = frozenset((0, 1))
"""Produce and Fetch."""
