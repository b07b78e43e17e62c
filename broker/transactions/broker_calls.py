"""What brokers ask each other about transactions: a lead asks the coordinator before the first batch of a transaction, and the
coordinator has markers written at the leads.

Both are calls of the Control service. A broker that is its own counterpart calls itself without the network.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import grpc

from headgate.broker.cluster.patience import Patiences
from headgate.broker.control.wire import error_of
from headgate.broker.groups.coordinator import TOPIC as OFFSETS_TOPIC
from headgate.broker.runtime.errors import ClosedError, FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.transactions.coordinator import TOPIC, asked
from headgate.broker.transactions.records import Partition, State, Transaction, by_topic
from headgate.broker.transactions.rules import Reply
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.methods import methods

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Incarnation
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.transactions.coordinator import TransactionCoordinator

TIMEOUT_S = 2.0
"""Wait for a near broker. One that is silent for this long is being replaced, or far away (`Patience`)."""
ASK_TRIES = 5
"""Attempts to reach a coordinator for one batch. Then the client gets a retriable error."""
ASK_PAUSE_S = 0.1
RETRIED = frozenset((Reason.NOT_COORDINATOR, Reason.COORDINATOR_LOADING, Reason.COORDINATOR_NOT_AVAILABLE))

_CONTROL = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])
ASK, MARK = _CONTROL["AddToTransaction"], _CONTROL["WriteMarkers"]


class Link(Protocol):
    """A channel to another broker; the used part of `grpc.aio.Channel`."""

    def unary_unary(self, path: str, /) -> Callable[..., grpc.aio.UnaryUnaryCall[bytes, bytes]]: ...

    async def close(self) -> None: ...


class TransactionCalls:
    """Both sides of the calls.

    Args:
        connect: makes a channel to another broker, ``host:port`` of its gRPC port.
    """

    def __init__(self, engine: Engine, groups: Coordinator, connect: Callable[[str], grpc.aio.Channel]) -> None:
        self.coordinator: TransactionCoordinator
        self._engine = engine
        self._groups = groups
        self._connect = connect
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: Counter[str] = Counter()
        """Calls in progress, by address."""
        self._patiences = Patiences(TIMEOUT_S)

    async def close(self) -> None:
        """Close the connections."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    # -- the side of a lead

    async def verify_batches(
        self, transactional_id: str, producer_id: int, epoch: int, logs: Iterable[PartitionLog], *, add: bool
    ) -> Reply:
        """Ask the coordinator whether partitions belong to a producer's transaction, so that its batches can be appended.

        Args:
            logs: led by this broker.
            add: add them to the transaction (the second protocol).
        """
        tokens = {log: log.producers_state.transactions.ask(producer_id) for log in logs}
        partitions = frozenset((log.topic.name, log.number) for log in tokens)
        reply = await self.ask(transactional_id, producer_id, epoch, partitions, add=add)
        if reply.error is None:
            for log, token in tokens.items():
                if not log.producers_state.transactions.consent(producer_id, epoch, token):
                    reply = Reply(Reason.CONCURRENT_TRANSACTIONS)
        return reply

    async def ask(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[Partition], *, add: bool
    ) -> Reply:
        """Ask the coordinator, wherever it is."""
        reply = Reply(Reason.COORDINATOR_NOT_AVAILABLE)
        for attempt in range(ASK_TRIES):
            if attempt:
                await asyncio.sleep(ASK_PAUSE_S)
            holder = self.coordinator.topic.holder(transactional_id)
            if holder is None:
                continue
            if holder.id == self._engine.incarnation_id:
                reply = await self.answer(transactional_id, producer_id, epoch, partitions, add=add)
            else:
                request = control_pb2.AddToTransactionRequest(
                    transactional_id=transactional_id, producer_id=producer_id, epoch=epoch, add=add, topics=_rows(partitions)
                )
                try:
                    answer = control_pb2.AddToTransactionResponse.FromString(await self._call(holder, ASK.path, request))
                except HeadgateError:
                    reply = Reply(Reason.COORDINATOR_NOT_AVAILABLE)
                    continue
                reply = Reply(Reason(answer.error) if answer.error else None)
            if reply.error not in RETRIED:
                break
        return reply

    # -- the side of the coordinator

    async def answer(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[Partition], *, add: bool
    ) -> Reply:
        """Answer a lead's question, if this broker is the coordinator."""
        coordinator = self.coordinator
        if add:
            return await asked(lambda: coordinator.add(transactional_id, producer_id, epoch, partitions, version=2))
        return await asked(lambda: coordinator.verify_partitions(transactional_id, producer_id, epoch, partitions))

    async def write_markers(
        self, transaction: Transaction, partitions: set[Partition], coordinator: tuple[int, int]
    ) -> dict[Partition, HeadgateError | None]:
        """Write the markers of a prepared transaction at all leads. See `coordinator.Marker`."""
        results: dict[Partition, HeadgateError | None] = {}
        by_lead: dict[str, tuple[Incarnation, set[Partition]]] = {}
        for partition in partitions:
            topic = self._engine.manifest.topics.get(partition[0])
            if topic is None:
                # The topic was deleted, and its records with it: this broker knew it when the partition was added, or is a later
                # coordinator, whose manifest is newer.
                results[partition] = None
                continue
            lead = self._engine.lead(topic.id, partition[1])
            if lead is None:
                results[partition] = RetryError(Reason.NOT_LEADER, "the partition has no lead at the moment")
            else:
                by_lead.setdefault(lead[0].id, (lead[0], set()))[1].add(partition)
        commit = transaction.state is State.PREPARE_COMMIT
        answers = await asyncio.gather(
            *(self._write_at(lead, transaction, commit, theirs, coordinator) for lead, theirs in by_lead.values())
        )
        for answer in answers:
            results |= answer
        return results

    async def _write_at(
        self,
        lead: Incarnation,
        transaction: Transaction,
        commit: bool,
        partitions: set[Partition],
        coordinator: tuple[int, int],
    ) -> dict[Partition, HeadgateError | None]:
        if lead.id == self._engine.incarnation_id:
            return await self.append_markers(transaction.producer_id, transaction.epoch, commit, partitions, coordinator)
        request = control_pb2.WriteMarkersRequest(
            producer_id=transaction.producer_id,
            epoch=transaction.epoch,
            commit=commit,
            coordinator_partition=coordinator[0],
            coordinator_epoch=coordinator[1],
            topics=_rows(partitions),
        )
        try:
            response = control_pb2.WriteMarkersResponse.FromString(await self._call(lead, MARK.path, request))
        except HeadgateError as error:
            return dict.fromkeys(partitions, error)
        results: dict[Partition, HeadgateError | None] = dict.fromkeys(
            partitions, RetryError(Reason.NOT_LEADER, "the lead did not answer for the partition")
        )
        for row in response.rows:
            failed = RetryError(Reason(row.error), "the lead refused a marker") if row.error else None
            results[row.topic, row.partition] = failed
        return results

    # -- the lead's side of markers

    async def append_markers(
        self, producer_id: int, epoch: int, commit: bool, partitions: Iterable[Partition], coordinator: tuple[int, int]
    ) -> dict[Partition, HeadgateError | None]:
        """Append the markers of a transaction to partitions that this broker leads, and wait until they are durable.

        A partition whose producer has a newer epoch needs no marker any more.
        """
        results: dict[Partition, HeadgateError | None] = {}
        if self._is_replaced(*coordinator):
            error = InvalidError(Reason.NOT_COORDINATOR, f"another broker is the coordinator. epoch=`{coordinator[1]}`")
            return dict.fromkeys(partitions, error)
        appended: list[Partition] = []
        ends: list[tuple[Partition, asyncio.Future[None]]] = []
        for partition in partitions:
            try:
                if partition[0] == OFFSETS_TOPIC:
                    ends.append(
                        (
                            partition,
                            asyncio.ensure_future(self._groups.end_transaction(partition[1], producer_id, epoch, commit=commit)),
                        )
                    )
                    continue
                log = self._engine.partition(self._engine.topic(partition[0]), partition[1])
                self._engine.append_marker(log, producer_id, epoch, coordinator[1], commit=commit)
                appended.append(partition)
            except HeadgateError as error:
                # A topic that is unknown here may be new: only the coordinator can tell that it was deleted.
                results[partition] = None if error.reason is Reason.INVALID_PRODUCER_EPOCH else error
        if appended:
            failure = None
            try:
                await self._engine.durable()
            except HeadgateError as error:
                failure = error
            results |= dict.fromkeys(appended, failure)
        for partition, end in ends:
            try:
                await end
                results[partition] = None
            except HeadgateError as error:
                results[partition] = error
        return results

    def _is_replaced(self, partition: int, epoch: int) -> bool:
        """True if the manifest knows a newer lead of the coordinator's partition."""
        topic = self._engine.manifest.topics.get(TOPIC)
        lead = None if topic is None or partition >= topic.partitions else self._engine.lead(topic.id, partition)
        return lead is not None and lead[1] > epoch

    async def _call(
        self, broker: Incarnation, path: str, request: control_pb2.AddToTransactionRequest | control_pb2.WriteMarkersRequest
    ) -> bytes:
        """Call another broker. Raises HeadgateError."""
        address = _address(broker)
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._connect(address)
        self._calls[address] += 1
        patience = self._patiences.of(broker.id, (broker.id for broker in self._engine.brokers()))
        asked_s = asyncio.get_running_loop().time()
        call: Callable[..., grpc.aio.UnaryUnaryCall[bytes, bytes]] = channel.unary_unary(path)
        try:
            data: bytes = await call(request.SerializeToString(), timeout=patience.limit_s)
            patience.answered(asyncio.get_running_loop().time() - asked_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                patience.ran_out()
            if error.code() is grpc.StatusCode.UNAVAILABLE and self._channels.get(address) is channel:
                # The broker may come back at the same address, but gRPC waits longer and longer before it connects again.
                # So the next call has a new channel.
                await self._channels.pop(address).close()
            raise error_of(error, address) from error
        except grpc.aio.UsageError as error:
            raise RetryError(Reason.CLOSED, f"the channel was closed. address=`{address}`") from error
        except asyncio.CancelledError as error:
            # grpc raises this also if the call was cancelled, and not this task. The task must go on.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RetryError(Reason.CLOSED, f"the call was cancelled. address=`{address}`") from error
        finally:
            self._calls[address] -= 1
            if not self._calls[address]:
                del self._calls[address]
        await self._close_unused(address)
        return data

    async def _close_unused(self, address: str) -> None:
        """Close the channels to brokers that are gone, except those with a call: closing a channel cancels its calls."""
        known = {_address(broker) for broker in self._engine.brokers()} | {address}
        for gone in [channel for channel in self._channels if channel not in known and not self._calls[channel]]:
            await self._channels.pop(gone).close()


def _address(broker: Incarnation) -> str:
    return f"[{broker.host}]:{broker.grpc_port}" if ":" in broker.host else f"{broker.host}:{broker.grpc_port}"


def _rows(partitions: Iterable[Partition]) -> list[control_pb2.TopicPartitions]:
    return [
        control_pb2.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic(frozenset(partitions)).items()
    ]


def partitions_of(rows: Iterable[control_pb2.TopicPartitions]) -> frozenset[Partition]:
    """The partitions in a message."""
    return frozenset((row.topic, number) for row in rows for number in row.partitions)


def error_reason(error: HeadgateError) -> Reason:
    """The reason that another broker, or a client of Kafka, gets for a failed marker."""
    if isinstance(error, FencedError | ClosedError):
        return Reason.NOT_LEADER
    return error.reason
