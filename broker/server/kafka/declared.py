"""What the file of a Kafka API says of it: key, versions, request, handler, rule and audited act; and the one place that every
request passes (`authorized`).

A rule stands in the file of its API. It is an async generator in two halves. The first takes out of the request what the client
may not do, and yields None; or it yields the answer for a request that is refused as a whole. The second half gets the
handler's answer, and adds the refusals or takes out what the client may not see. Produce and Fetch have no rule: `produce.py`
and `fetch.py` ask for each topic, and a connection remembers the answers (`Rights`).

Rules are those of Kafka 4 (KafkaApis). A topic that the client may not describe is refused by name as it would be if it existed,
and not listed. `tests/unit/access/test_kafka_rules.py` proves that each rule refuses.

Light on purpose: the first answer of a starting broker needs this module.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from headgate.broker.wire.kafka.primitives import ZERO_UUID

if TYPE_CHECKING:
    from headgate.broker.cluster.acl import Operation
    from headgate.broker.runtime.steps import Steps
    from headgate.broker.server.access.rights import Rights
    from headgate.broker.server.kafka.context import Context
    from headgate.broker.wire.kafka.primitives import Buffer

_T = TypeVar("_T")
Message: TypeAlias = Any
"""A generated message: each handler and each rule knows its own."""


class Encoded(Protocol):
    """What every generated message can do."""

    def encode(self, version: int) -> bytes: ...

    def encoding(self, out: bytearray, version: int) -> Steps[None]: ...


Decoder: TypeAlias = "Callable[[Buffer, int, int], Steps[tuple[Encoded, int]]]"
Handler: TypeAlias = "Callable[[Message, Context], Awaitable[Message]]"
Rule: TypeAlias = "Callable[[Message, Asked], AsyncGenerator[Message | None, Message]]"
Act: TypeAlias = Callable[[Message], Iterator[str]]
"""The names of what an administrative request is about, for the audit log."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's surroundings for its rule."""

    rights: Rights
    context: Context

    def topic(self, operation: Operation) -> Callable[[str], bool]:
        return lambda name: self.rights.on_topic(operation, name)

    def group(self, operation: Operation) -> Callable[[str], bool]:
        return lambda name: self.rights.on_group(operation, name)

    def on_named(self, operation: Operation, row: Message) -> bool:
        """Whether the client may do it to the topic of a row, which has a name or an id. An id that no topic has harms nobody: the
        handler answers it."""
        topic_id = getattr(row, "topic_id", ZERO_UUID)
        if topic_id == ZERO_UUID:
            return self.rights.on_topic(operation, row.name)
        topic = self.context.engine.manifest.topics_by_id.get(topic_id)
        return topic is None or self.rights.on_topic(operation, topic.name)

    async def drop(self, items: list[_T], may: Callable[[_T], bool]) -> list[_T]:
        """Take items out of a list that the client may not touch. Returns these."""
        dropped: list[_T] = []
        kept: list[_T] = []
        async for item in self.context.turn.each(list(items)):
            (kept if may(item) else dropped).append(item)
        items[:] = kept
        return dropped


@dataclass(frozen=True, slots=True)
class Api:
    """One API, as `api/<name>.py` declares it.

    `versions`: the first and the last one that is served. `flexible_from`: the first version with KIP-482's encoding, or None.
    `rule`: what the client must be allowed to do (`rules.py`). `act`: None if a request changes nothing that an administrator
    decides. `act_carried`: the same of a request that Headgate's own clients or its page send: they set positions as
    administrators do, and Kafka's consumers all the time.
    """

    key: int
    versions: tuple[int, int] = field(kw_only=True)
    flexible_from: int | None = field(kw_only=True, default=None)
    request: Any = field(kw_only=True)
    handle: Handler = field(kw_only=True)
    rule: Rule = field(kw_only=True)
    act: Act | None = field(kw_only=True, default=None)
    act_carried: Act | None = field(kw_only=True, default=None)

    @property
    def decode(self) -> Decoder:
        """The request's decoder, which works in steps."""
        decoder: Decoder = self.request.decoding
        return decoder


async def authorized(api: Api, message: Message, context: Context, rights: Rights) -> Message:
    """The answer to a request of a client with these rights."""
    rule = api.rule(message, Asked(rights, context))
    refused = await anext(rule)
    if refused is not None:
        await rule.aclose()
        return refused
    response = await api.handle(message, context)
    try:
        await rule.asend(response)
    except StopAsyncIteration:
        return response
    raise AssertionError("a rule has two halves")


async def free(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    """Every client may send it."""
    yield None
