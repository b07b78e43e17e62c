"""Calls of this process to its own services in the name of a client that another port has let in: a person at the page.

They pass the registry as calls of the gRPC port do: rules before the call and after it, quotas, lines in the audit log. Only the
transport is left out. So a person at the page may do exactly what the same person may do on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.server.access.grpc_rules import METHODS, MethodRule
from headgate.broker.server.grpc.callers import Callers
from headgate.broker.server.grpc.errors import REASON_KEY
from headgate.broker.server.grpc.handlers import snake
from headgate.broker.server.grpc.open_calls import Client, Context
from headgate.broker.server.grpc.peers import TIMEOUT_S
from headgate.broker.server.grpc.quotas import CallQuota
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.headgate.v1 import kafka_pb2, log_pb2
from headgate.broker.wire.grpc.methods import Method, methods
from headgate.broker.wire.kafka import carried
from headgate.broker.wire.kafka.message import Message as KafkaMessage

LOG = methods(log_pb2.DESCRIPTOR.services_by_name["Log"])
ASK = methods(kafka_pb2.DESCRIPTOR.services_by_name["Kafka"])["Ask"]
ORDER_S = 300.0
"""Longest wait, in seconds, for an order that the leader has under way, as on the command line."""

_A = TypeVar("_A", bound=KafkaMessage)
_T = TypeVar("_T")


class _Context:
    """The part of a gRPC context that services use."""

    def __init__(self) -> None:
        self._at_end: list[Callable[[Any], None]] = []

    def peer(self) -> str:
        return ""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> float | None:
        return None

    def details(self) -> str:
        return ""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._at_end.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str = "", metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """The leader's error, passed on."""
        named = dict(metadata).get(REASON_KEY, "")
        reason = next((reason for reason in Reason if reason.value == named), Reason.INTERNAL)
        again = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
        raise (RetryError if again else InvalidError)(reason, details)

    def end(self) -> None:
        for callback in self._at_end:
            callback(self)


@dataclass(frozen=True, slots=True)
class _Call:
    method: Method
    rule: MethodRule
    client: Client
    inner: _Context = field(default_factory=_Context)

    @property
    def context(self) -> Context:
        return cast("Context", self.inner)


class InnerCalls:
    """The services of one broker.

    Args:
        services: the implementations, by name.
    """

    def __init__(self, callers: Callers, services: Mapping[str, object], server_state: ServerState) -> None:
        self._callers, self._services, self._state = callers, services, server_state
        self.engine = server_state.engine

    async def call(self, method: Method, request: Message, client: Client) -> Any:
        """The answer to a unary call. Raises HeadgateError, as the port answers it."""
        answer = await self._answer(method, request, client)
        return method.response.FromString(answer) if isinstance(answer, bytes) else answer

    async def order(self, method: Method, request: Message, client: Client) -> Any:
        """The answer to a call that only the cluster's leader takes, and that may take `ORDER_S`. Raises HeadgateError."""
        leader = self.engine.manifest.incarnations.get(self.engine.manifest.leader)
        elsewhere = None if leader is None or leader.id == self.engine.incarnation_id else leader
        return await self._answer(method, request, client, elsewhere, ORDER_S)

    async def ask(
        self,
        request: KafkaMessage,
        kind: type[_A],
        read: Callable[[_A], _T],
        client: Client,
        broker_id: int | None = None,
    ) -> _T:
        """What the answer to a request of Kafka's protocol says.

        Args:
            read: returns what the answer says, or raises its error (`carried.check`).
            broker_id: the broker that is to answer; None: this one.
        """
        asked = kafka_pb2.KafkaRequest(request=carried.frame(request), broker_id=broker_id)
        answer: kafka_pb2.KafkaAnswer = await self.call(ASK, asked, client)
        return read(carried.answer_of(kind, answer.answer))

    async def fetch(
        self, request: log_pb2.FetchRequest, client: Client, lane: Incarnation | None = None
    ) -> tuple[log_pb2.FetchResponse, memoryview]:
        """The records of a partition, from its lead or from a lane: the answer without its batches, and these. To a request that
        follows lanes, a lead may answer with the name of one (`lane_of`)."""
        method, elsewhere = LOG["Fetch"], lane or self._elsewhere(request.topic, request.partition)
        if elsewhere is None:
            data = await self._answer(method, request, client)
            head, batches = payload.split(data if isinstance(data, bytes) else data.SerializeToString())
            return log_pb2.FetchResponse.FromString(head), batches
        quota = CallQuota(self.engine.meters, client)
        await quota.fetch_room()
        found: log_pb2.FetchResponse = await self._answer(method, request, client, elsewhere)
        quota.fetched(len(found.batches))
        return found, memoryview(found.batches)

    def lane_of(self, named: log_pb2.Lane) -> Incarnation | None:
        """The lane that a lead has named; None: this broker does not know it."""
        at = named.host, named.grpc_port
        return next((lane for lane in self.engine.lanes() if (lane.host, lane.grpc_port) == at), None)

    async def offsets(
        self, topic: str, positions: Mapping[int, log_pb2.Position], client: Client
    ) -> dict[int, log_pb2.ListOffsetsResponse.Result]:
        """The offsets of positions, by partition. A row may have an error."""
        leads: dict[str, tuple[Incarnation | None, log_pb2.ListOffsetsRequest]] = {}
        for number, position in positions.items():
            lead = self._elsewhere(topic, number)
            asked = leads.setdefault("" if lead is None else lead.id, (lead, log_pb2.ListOffsetsRequest(topic=topic)))[1]
            asked.queries.add(partition=number, position=position)
        rows: dict[int, log_pb2.ListOffsetsResponse.Result] = {}
        for lead, asked in leads.values():
            method = LOG["ListOffsets"]
            answer: log_pb2.ListOffsetsResponse = await (
                self.call(method, asked, client) if lead is None else self._answer(method, asked, client, lead)
            )
            rows.update((row.partition, row) for row in answer.results)
        return rows

    def _elsewhere(self, topic: str, partition: int) -> Incarnation | None:
        """The other broker that leads a partition; None: this one answers."""
        known = self.engine.manifest.topics.get(topic)
        lead = None if known is None or not 0 <= partition < known.partitions else self.engine.lead(known.id, partition)
        return None if lead is None or lead[0].id == self.engine.incarnation_id else lead[0]

    async def _answer(
        self, method: Method, request: Message, client: Client, elsewhere: Incarnation | None = None, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """The answer of this broker, or of another one: that believes this one, which asks the rules and notes the act."""
        service, _, name = method.short.partition("/")
        act = getattr(self._services[service], snake(name))
        call = _Call(method, METHODS[method.short], client)
        with self._callers.acting(client):
            try:
                self._callers.check_first(call)
                self._callers.check(call, request)
                answer: Message | bytes = await (
                    act(request, call.context)
                    if elsewhere is None
                    else self._state.peers.call(elsewhere, method, request, timeout_s)
                )
            except Exception as error:
                if not (isinstance(error, HeadgateError) and error.reason is Reason.NOT_AUTHORIZED):  # a refusal has its own line
                    self._callers.note(call, request, error)
                raise
            finally:
                call.inner.end()
            self._callers.note(call, request, answer)
        return self._callers.trim(call, answer)
