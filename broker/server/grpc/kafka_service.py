"""`headgate.v1.Kafka`: requests of Kafka's protocol over gRPC. The files of the Kafka APIs answer them, with their rules and
audited acts, as on the Kafka port (`kafka/declared.py`).

Only requests that Headgate's own clients make are let in (`Message.CARRIED`): each needs no connection that remembers its client.
A request for another broker is passed on to it, with the name of its client; that broker judges and notes it.
"""

from __future__ import annotations

from typing import Any

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.node import Node
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.server.grpc.callers import audit_of_call, client_of_call, is_forwarded, principal_of
from headgate.broker.server.grpc.open_calls import Client, Context
from headgate.broker.server.grpc.peers import CHANGE_TIMEOUT_S
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.server.kafka.apis import APIS, Served, request_bytes_max
from headgate.broker.server.kafka.audited import answered
from headgate.broker.server.kafka.context import Context as KafkaContext
from headgate.broker.server.kafka.declared import Api
from headgate.broker.wire.grpc.headgate.v1 import kafka_pb2
from headgate.broker.wire.grpc.methods import methods
from headgate.broker.wire.kafka.header import read_key_version, read_request_header, response_header
from headgate.broker.wire.kafka.primitives import DecodeError, bounded, dispose

ASK = methods(kafka_pb2.DESCRIPTOR.services_by_name["Kafka"])["Ask"]


class KafkaService:
    """Answers Kafka's requests.

    Args:
        kafka: (host, port) announced to Kafka clients.
    """

    def __init__(self, server_state: ServerState, node: Node, kafka: tuple[str, int]) -> None:
        self._server_state = server_state
        self._node = node
        self._kafka = kafka

    async def ask(self, request: kafka_pb2.KafkaRequest, context: Context) -> kafka_pb2.KafkaAnswer:
        client = client_of_call(context, request.principal, request.host, request.door)
        other = self._elsewhere(request, context)
        if other is not None:
            passed = kafka_pb2.KafkaRequest(
                request=request.request,
                broker_id=request.broker_id,
                principal=principal_of(client),
                host=client.host,
                door=client.door,
            )
            answer: kafka_pb2.KafkaAnswer = await self._server_state.peers.call(other, ASK, passed, CHANGE_TIMEOUT_S)
            return answer
        try:
            return await self._answer(request.request, client)
        except DecodeError as error:
            raise InvalidError(Reason.INVALID_REQUEST, error.message) from error

    def _elsewhere(self, request: kafka_pb2.KafkaRequest, context: Context) -> Incarnation | None:
        """The other broker that is to answer; None: this one is. Raises RetryError(NOT_LEADER)."""
        engine, wanted = self._server_state.engine, request.broker_id
        if not request.HasField("broker_id") or wanted == engine.broker_id:
            return None
        found = next((broker for broker in self._server_state.peers.others() if broker.broker_id == wanted), None)
        if found is None or is_forwarded(context):
            raise RetryError(Reason.NOT_LEADER, f"this broker does not know the broker that is to answer. broker_id=`{wanted}`")
        return found

    async def _answer(self, frame: bytes, client: Client) -> kafka_pb2.KafkaAnswer:
        """Raises DecodeError, InvalidError."""
        key, version, correlation_id = read_key_version(frame, 0)
        served = APIS.get(key)
        if len(frame) > (bytes_max := request_bytes_max(key)):
            raise InvalidError(Reason.INVALID_REQUEST, f"request is too large. bytes=`{len(frame)}` max=`{bytes_max}`")
        api = _carried(served, key, version)
        assert served is not None
        turn = self._server_state.engine.turns.begin()
        head, position = read_request_header(frame, 0, served.flexible(version))
        message, _ = await turn.run(bounded(api.decode(frame, position, version)))
        host, port = self._kafka
        context = KafkaContext(
            engine=self._node.engine,
            groups=self._node.groups,
            transaction_calls=self._node.transaction_calls,
            settings=self._server_state.settings,
            client_id=head.client_id,
            client_host=client.host,
            api_version=version,
            turn=turn,
            host=host,
            port=port,
            rights=client.rights,
            audit=audit_of_call(),
            door=client.door,
        )
        response: Any = await answered(api, message, context, client.identity)
        out = bytearray(response_header(key, correlation_id, served.flexible(version)))
        await turn.run(response.encoding(out, version))
        await turn.run(dispose(message))
        await turn.run(dispose(response))
        return kafka_pb2.KafkaAnswer(answer=bytes(out))


def _carried(served: Served | None, key: int, version: int) -> Api:
    """The API of a request that is answered over gRPC. Raises InvalidError(UNSUPPORTED)."""
    api = None if served is None or served.module is None else served.load()
    if api is None or version != api.request.CARRIED:
        raise InvalidError(
            Reason.UNSUPPORTED, f"the request is answered on the Kafka port only. api_key=`{key}` version=`{version}`"
        )
    return api
