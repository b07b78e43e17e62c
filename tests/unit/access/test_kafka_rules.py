"""Every Kafka API, asked by a client without permissions: it is refused, and nothing is changed.

Runs a real engine, and each handler behind its rule, with a request that names something. Compared: Kafka's error codes, and the
manifest before and after. A mismatch means that a permission is not asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from headgate.broker.cluster.access import Access
from headgate.broker.cluster.acl import Acl, Operation, Pattern, Permission, Resource
from headgate.broker.cluster.manifest_format import encode_snapshot
from headgate.broker.cluster.topics import NewTopic
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.access.rights import Authority, Identity, Rights
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.server.kafka.constants import NO_OPERATIONS
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import authorized
from headgate.broker.store.memory import MemoryStore
from headgate.broker.wire.kafka.messages.init_producer_id import InitProducerIdRequest
from headgate.broker.wire.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support import nodes

REFUSALS = {29, 30, 31, 53, 55}
FREE = {17, 18, 36}
"""SaslHandshake, ApiVersions, SaslAuthenticate."""
TRIMMED = {16: "groups closed", 60: "operations", 66: "transaction_states closed"}
"""ListGroups, DescribeCluster and ListTransactions name nothing, and their answers are trimmed. The values: what an administrator
sees (`_seen`), and what a client without permissions does not."""


@pytest_asyncio.fixture
async def context() -> AsyncIterator[Context]:
    clock = ManualClock(1_700_000_000_000)
    settings = Settings(authorization="acl")
    node = nodes.make(settings, MemoryStore(), clock, lambda error: None)
    await node.start()
    await node.groups.loaded()
    await node.engine.create_topics([NewTopic("closed", 1)])
    context = Context(
        engine=node.engine,
        groups=node.groups,
        transaction_calls=node.transaction_calls,
        settings=settings,
        client_id="test",
        client_host="10.0.0.1",
        api_version=0,
        turn=Turns(clock.monotonic).begin(),
        host="broker.test",
        port=9092,
    )
    # There is something to hide: a group with a position, and a transactional id.
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    position = OffsetCommitRequest(group_id="closed", topics=[OffsetCommitRequestTopic(name="closed", partitions=[row])])
    committed = await APIS[8].load().handle(position, dataclasses.replace(context, api_version=8))
    assert _codes(committed) == [0]
    begun = InitProducerIdRequest(transactional_id="closed", transaction_timeout_ms=60_000)
    assert _codes(await APIS[22].load().handle(begun, dataclasses.replace(context, api_version=5))) == [0]
    yield context
    await nodes.end(node)


def filled(kind: Any, depth: int = 0) -> Any:
    """A message with one row in each list, and names everywhere."""
    module = import_module(kind.__module__)
    values: dict[str, Any] = {}
    for name, text in kind.__annotations__.items():
        plain = text.removesuffix(" | None")
        if plain.startswith("list[") and depth < 4:
            inner = plain[5:-1]
            values[name] = ["closed"] if inner == "str" else [0] if inner == "int" else [filled(getattr(module, inner), depth + 1)]
        elif plain == "str":
            values[name] = "closed"
        elif plain == "UUID":
            values[name] = UUID(int=0)
        elif name == "resource_type":
            values[name] = 2
    return kind(**values)


def _includes(kind: Any, version: int) -> Iterator[str]:
    """The fields of a request that ask for more in the answer, of those that this version has."""
    for name in kind.__annotations__:
        if name.startswith("include_"):
            try:
                kind(**{name: True}).encode(version)
            except ValueError:
                continue
            yield name


def _codes(message: Any) -> list[int]:
    """All error codes in an answer."""
    found: list[int] = []
    for name in type(message).__annotations__:
        value = getattr(message, name, None)
        if name.endswith("error_code") and isinstance(value, int):
            found.append(int(value))
        for one in value if isinstance(value, list) else ():
            if hasattr(type(one), "__annotations__"):
                found += _codes(one)
    return found


def _seen(message: Any) -> str:
    """The names of listed groups and transactions, and whether an answer tells of operations that the client may do."""
    found = {name: getattr(message, name, ()) for name in ("groups", "transaction_states")}
    names = [
        f"{name} {getattr(row, 'group_id', '') or getattr(row, 'transactional_id', '')}" for name in found for row in found[name]
    ]
    return " ".join(names + ["operations"] * any(one not in (0, NO_OPERATIONS) for one in _operations(message)))


def _operations(message: Any) -> Iterator[int]:
    """The operations in an answer, in its rows too."""
    for name in type(message).__annotations__:
        value = getattr(message, name)
        if name.endswith("authorized_operations"):
            yield value
        for one in value if isinstance(value, list) else ():
            if hasattr(type(one), "__annotations__"):
                yield from _operations(one)


def _wrong() -> Access:
    """Everything about other names, and for the right ones from another address or of another user."""
    kinds = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    names = (("other", "User:nobody", "*"), ("closed", "User:nobody", "10.9.9.9"), ("closed", "User:somebody", "*"))
    rules = [
        Acl(resource=kind, name=name, pattern=Pattern.LITERAL, principal=who, host=host, operation=Operation.ALL,
            permission=Permission.ALLOW)
        for kind in kinds
        for name, who, host in names
    ]  # fmt: skip
    return Access(acls=rules)


@pytest.mark.parametrize("access", [Access(), _wrong()], ids=["no permission", "wrong permissions"])
async def test_a_client_without_permissions_changes_and_sees_nothing(context: Context, access: Access) -> None:
    """Every version of every API, at one node: none of them changes it."""
    rights = Authority(context.settings, lambda: access).rights(Identity(principal="User:nobody", host="10.0.0.1"))
    assert rights is not None
    before = encode_snapshot(context.engine.manifest)
    administrator = Authority(Settings(authorization="acl", super_users="User:root"), Access).rights(
        Identity(principal="User:root", host="10.0.0.1")
    )
    assert administrator is not None
    apis = [one for one in APIS.values() if one.module]
    assert len(apis) > 40
    for api, version in ((each, version) for each in apis for version in range(each.min_version, each.max_version + 1)):
        kind = getattr(import_module(f"headgate.broker.wire.kafka.messages.{api.module}"), f"{api.name}Request")
        request = kind() if api.key in TRIMMED else filled(kind)  # lists are asked for without filters
        for field in _includes(kind, version):
            setattr(request, field, True)
        asked = dataclasses.replace(context, api_version=version, turn=Turns(context.engine.clock.monotonic).begin())
        answer = await authorized(api.load(), request, asked, rights)
        assert encode_snapshot(context.engine.manifest) == before, (api.name, version)
        answer.encode(version)
        codes = set(_codes(answer)) - {0}
        if api.key in FREE:
            continue
        assert codes <= REFUSALS, (api.name, version, codes)
        assert bool(codes) is (api.key not in TRIMMED), (api.name, version, codes)
        if api.key in TRIMMED:
            assert not _seen(answer), (api.name, version)
            assert _seen(await authorized(api.load(), request, asked, administrator)) == TRIMMED[api.key], (api.name, version)
        assert set(_operations(answer)) <= {0, NO_OPERATIONS}, (api.name, version)


def test_a_super_user_may_do_everything() -> None:
    everything = Rights(
        Authority(Settings(authorization="acl", super_users="User:root"), Access), Identity(principal="User:root", host="")
    )
    assert everything.operations(Resource.TOPIC, "closed") == 0b1101_1111_1000
    assert everything.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, "any")
