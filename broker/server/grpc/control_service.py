"""`headgate.v1.Control`: the leader's service for other brokers."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from typing import Any

import grpc
import msgspec
from google.protobuf.message import Message

from headgate.broker.cluster.capacity import Desired
from headgate.broker.cluster.liveness import is_starved
from headgate.broker.cluster.manifest_format import decode_edits, encode_snapshot
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.quotas import Key
from headgate.broker.cluster.segments import Order, SegmentInfo
from headgate.broker.cluster.term_events import Reported
from headgate.broker.control.drain import drain_broker
from headgate.broker.control.leader import Leader
from headgate.broker.control.load import broker_load, trouble_of
from headgate.broker.control.participant import Participant
from headgate.broker.control.quota_wire import shares_message, use_message, uses_of
from headgate.broker.control.replication import copy_of, surrender_messages
from headgate.broker.control.sessions import Sessions
from headgate.broker.control.wire import incarnation_of, member_message
from headgate.broker.engine.topics import Held
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.grpc.handlers import MESSAGE_ELEMENTS_MAX, Call
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.server.view.leader_view import LeaderViews
from headgate.broker.server.view.model import TOPICS_MAX
from headgate.broker.transactions.broker_calls import TransactionCalls, error_reason, partitions_of
from headgate.broker.wire.grpc.bounded import decoding
from headgate.broker.wire.grpc.headgate.v1 import control_pb2

RESIGN_TIMEOUT_S = 60.0
HOLD_TIMEOUT_S = 5.0
FIRST_ELEMENTS_MAX = 1_000
"""Elements of the first message of a stream: it has the broker's addresses."""
QUEUE_MESSAGES_MAX = 10_000
"""Largest number of unsent messages to one member. Beyond it, the leader ends the member's stream, and the member connects
again."""
INCARNATION_ID = re.compile("[0-9a-f]{32}")


class MemberSession:
    """One member's stream."""

    def __init__(self, sessions: Sessions, clock: Clock, turns: Turns, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self._turns = turns
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue: asyncio.Queue[control_pb2.JoinResponse] = asyncio.Queue()
        self._sessions = sessions
        self._clock = clock
        self._orders: dict[int, asyncio.Future[control_pb2.OrderResult]] = {}
        self._order_id = 0
        self._round_trip_s = 0.0
        """Seconds of a round trip to the member."""

    # -- the methods of `control.sessions.Session`

    def edits(self, version: int, data: bytes) -> None:
        self._put(control_pb2.JoinResponse(edits=control_pb2.Edits(version=version, edits=data)))

    def alive(self, clock_ms: int, store_ms: int, desired: Desired | None, takers: int) -> None:
        alive = control_pb2.Alive(clock_ms=clock_ms, store_ms=store_ms, takers=takers)
        if desired is not None:
            alive.desired_brokers, alive.desired_why = desired.brokers, desired.reasons[0]
        self._put(control_pb2.JoinResponse(alive=alive))

    async def resign(self, segment_ids: list[int]) -> None:
        order = control_pb2.ResignOrder(order_id=self._next_order(), segment_ids=segment_ids)
        message = control_pb2.JoinResponse(resign=order)
        await self._order(order.order_id, message, RESIGN_TIMEOUT_S, "the broker did not hand its segments over in time")

    async def hold(self, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int], term: int) -> list[Held]:
        order = control_pb2.HoldOrder(
            order_id=self._next_order(),
            topic_id=topic_id.bytes,
            gate_id=gate_id,
            partitions=list(rows),
            rows=list(rows.values()),
            term_epoch=term,
        )
        message = control_pb2.JoinResponse(hold=order)
        timeout_s = HOLD_TIMEOUT_S + self._round_trip_s
        result = await self._order(order.order_id, message, timeout_s, "the broker did not keep offsets free in time")
        return [Held(row.partition, row.base_offset, row.segment_id, row.leader_epoch, row.live) for row in result.windows]

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        order = control_pb2.HoldOrder(order_id=self._next_order(), topic_id=topic_id.bytes, gate_id=gate_id, drop=True)
        self._put(control_pb2.JoinResponse(hold=order))

    def _next_order(self) -> int:
        self._order_id += 1
        return self._order_id

    async def _order(
        self, order_id: int, message: control_pb2.JoinResponse, timeout_s: float, late: str
    ) -> control_pb2.OrderResult:
        done: asyncio.Future[control_pb2.OrderResult] = asyncio.get_running_loop().create_future()
        self._orders[order_id] = done
        self._put(message)
        try:
            async with asyncio.timeout(timeout_s):
                result = await done
        except TimeoutError as timeout:
            self._orders.pop(order_id, None)
            raise RetryError(Reason.TIMED_OUT, late) from timeout
        if result.error:
            raise RetryError(Reason.NOT_LEADER, result.error)
        return result

    def drain(self) -> None:
        self._put(control_pb2.JoinResponse(drain=control_pb2.DrainOrder()))

    def quotas(self, shares: Mapping[Key, float]) -> None:
        self._put(control_pb2.JoinResponse(quotas=shares_message(shares)))

    def end(self, error: HeadgateError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _put(self, message: control_pb2.JoinResponse) -> None:
        if self.queue.qsize() >= QUEUE_MESSAGES_MAX:
            self.end(RetryError(Reason.OVERLOADED, f"the broker is too far behind. messages=`{QUEUE_MESSAGES_MAX}`"))
        else:
            self.queue.put_nowait(message)

    # -- the stream

    async def serve(self, call: Call) -> None:
        """Run until the stream ends. Raises the error given to `end`."""
        tasks = [asyncio.create_task(work) for work in (self._write(call), self._read(call), self._wait_end())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks(tasks)
            for order in self._orders.values():
                if not order.done():
                    order.set_result(control_pb2.OrderResult(error="the broker left"))

    async def _wait_end(self) -> None:
        await self.ended

    async def _write(self, call: Call) -> None:
        while True:
            await call.write((await self.queue.get()).SerializeToString())

    async def _read(self, call: Call) -> None:
        clock = self._clock
        while (data := await call.read()) is not grpc.aio.EOF:
            turn = self._turns.begin()
            message = await turn.run(decoding(control_pb2.JoinRequest, data, MESSAGE_ELEMENTS_MAX))
            kind = message.WhichOneof("message")
            if kind == "report":
                report = Reported(
                    load=await turn.run(broker_load(self.incarnation, message.report)),
                    trouble=message.report.trouble,
                    late_s=message.report.late_ms / 1000,
                    serves=message.report.serving,
                    clock_ahead_ms=clock.now_ms() - message.report.clock_ms if message.report.clock_ms else None,
                    round_trip_s=message.report.round_trip_ms / 1000,
                )
                self._round_trip_s = report.round_trip_s
                self._sessions.used_quotas(
                    self, [use async for quota in turn.each(message.report.quotas) for use in uses_of((quota,))]
                )
                span_ms = self._sessions.reported(self, report)
                if span_ms:
                    promise = control_pb2.Promise(number=message.report.number, span_ms=span_ms)
                    self._put(control_pb2.JoinResponse(promise=promise))
            elif kind == "result":
                self._sessions.spoke(self)
                done = self._orders.pop(message.result.order_id, None)
                if done is not None and not done.done():
                    done.set_result(message.result)


class ControlService:
    """The service of `control.proto`: the leader's side of it."""

    def __init__(self, participant: Participant, views: LeaderViews, transactions: TransactionCalls) -> None:
        self._participant = participant
        self._views = views
        self._transactions = transactions

    def _leader(self) -> Leader:
        leader = self._participant.leader
        if leader is None:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster")
        return leader

    async def join(self, call: Call) -> None:
        leader = self._leader()
        request = await self._first(call, control_pb2.JoinRequest)
        hello = request.hello
        if request.WhichOneof("message") != "hello" or not INCARNATION_ID.fullmatch(hello.incarnation_id):
            raise InvalidError(Reason.INVALID_REQUEST, "the first message must name the broker that joins")
        if hello.cluster_id != self._participant.engine.cluster_id:
            raise InvalidError(
                Reason.INVALID_CONFIG,
                f"the broker is of another cluster. cluster=`{hello.cluster_id}` expected=`{self._participant.engine.cluster_id}`",
            )
        incarnation = incarnation_of(hello, leader.clock.now_ms())
        await leader.sessions.admit(incarnation, hello.version, hello.round_trip_ms / 1000)
        session = MemberSession(leader.sessions, leader.clock, self._participant.engine.turns, incarnation)
        # No await from here to `joined`: so every commit after the snapshot goes into the queue behind it.
        missed = leader.journal.since(hello.version) if hello.version else None
        welcome = control_pb2.Welcome(
            snapshot=b"" if missed is not None else encode_snapshot(leader.manifest),
            version=leader.journal.version if missed is None else hello.version,
            leader_incarnation_id=leader.manifest.leader,
            leader_broker_id=self._participant.engine.broker_id,
            clock_ms=leader.clock.now_ms(),
        )
        leader.sessions.joined(session)
        session.queue.put_nowait(control_pb2.JoinResponse(welcome=welcome))
        for version, edits in missed or ():
            session.edits(version, edits)
        try:
            await session.serve(call)
        finally:
            leader.sessions.left(session)

    async def replicate(self, call: Call) -> None:
        engine = self._participant.engine
        first = await self._first(call, control_pb2.ReplicateRequest)
        lead, stream = first.hello.incarnation_id, first.hello.stream
        known = engine.manifest.incarnations.get(lead)
        if known is None or known.sealed:
            raise RetryError(Reason.NOT_READY, f"the broker is not known here, or sealed. incarnation=`{lead[:32]}`")
        engine.replicas.open(lead, stream)
        number = 0
        while (data := await call.read()) is not grpc.aio.EOF:
            turn = engine.turns.begin()
            message = await turn.run(decoding(control_pb2.ReplicateRequest, data, MESSAGE_ELEMENTS_MAX))
            async for copy in turn.each(message.copies):
                engine.replicas.take(lead, stream, [copy_of(copy)], message.durable)
                number = copy.number
            engine.replicas.take(lead, stream, [], message.durable)
            await call.write(control_pb2.ReplicateResponse(held=number).SerializeToString())

    async def surrender(self, call: Call) -> None:
        engine = self._participant.engine
        request = await self._first(call, control_pb2.SurrenderRequest)
        if request.follower_incarnation_id != engine.incarnation_id:
            raise InvalidError(Reason.NOT_FOUND, "another run of this broker held the copies: they are gone")
        for message in surrender_messages(engine.replicas.surrender(request.incarnation_id, request.stream)):
            await call.write(message.SerializeToString())

    async def _first(self, call: Call, kind: type[Message]) -> Any:
        data: Any = await call.read()
        turn = self._participant.engine.turns.begin()
        return await turn.run(decoding(kind, b"" if data is grpc.aio.EOF else data, FIRST_ELEMENTS_MAX))

    async def commit(self, request: control_pb2.CommitRequest, context: Context) -> control_pb2.CommitResponse:
        try:
            edits = decode_edits(request.edits)
        except CorruptError as error:
            raise InvalidError(Reason.INVALID_REQUEST, error.message) from error
        return control_pb2.CommitResponse(version=await self._leader().journal.commit_of(request.incarnation_id, edits))

    async def add_to_transaction(
        self, request: control_pb2.AddToTransactionRequest, context: Context
    ) -> control_pb2.AddToTransactionResponse:
        reply = await self._transactions.answer(
            request.transactional_id, request.producer_id, request.epoch, partitions_of(request.topics), add=request.add
        )
        return control_pb2.AddToTransactionResponse(error="" if reply.error is None else reply.error.value)

    async def write_markers(self, request: control_pb2.WriteMarkersRequest, context: Context) -> control_pb2.WriteMarkersResponse:
        results = await self._transactions.append_markers(
            request.producer_id,
            request.epoch,
            request.commit,
            partitions_of(request.topics),
            (request.coordinator_partition, request.coordinator_epoch),
        )
        response = control_pb2.WriteMarkersResponse()
        for (topic, partition), error in results.items():
            response.rows.add(topic=topic, partition=partition, error="" if error is None else error_reason(error).value)
        return response

    async def reshard(self, request: control_pb2.ReshardRequest, context: Context) -> control_pb2.ReshardResponse:
        leader = self._leader()
        if request.WhichOneof("order") == "drain":
            drained = await drain_broker(leader, request.drain.broker_id)
            return control_pb2.ReshardResponse(segments=[self._segment(leader, segment) for segment in drained])
        decision = leader.orders.begin(self._order(leader, request))
        await leader.orders.wait(decision)
        sealed = {number for segment in decision.segments.values() for number in segment.partitions}
        topics = {segment.topic_id for segment in decision.segments.values()}
        return control_pb2.ReshardResponse(
            segments=[
                self._segment(leader, segment)
                for segment in leader.manifest.segments.open.values()
                if segment.topic_id in topics and sealed & set(segment.partitions)
            ]
        )

    @staticmethod
    def _order(leader: Leader, request: control_pb2.ReshardRequest) -> Order:
        planner, segments, brokers = leader.term.planner, leader.manifest.segments.open, leader.term.loads()
        match request.WhichOneof("order"):
            case "split":
                split = request.split
                return planner.order_split(
                    segments,
                    brokers,
                    split.segment_id,
                    split.at_partition if split.HasField("at_partition") else None,
                    split.broker_id if split.HasField("broker_id") else None,
                )
            case "merge":
                return planner.order_merge(segments, brokers, request.merge.segment_id, request.merge.next_segment_id)
            case "move":
                move = request.move
                target = move.broker_id if move.HasField("broker_id") else None
                return planner.order_move(segments, brokers, move.segment_id, target)
            case _:
                raise InvalidError(Reason.INVALID_REQUEST, "the request has no order")

    @staticmethod
    def _segment(leader: Leader, segment: SegmentInfo) -> control_pb2.SegmentState:
        load = leader.term.planner.load(segment.id)
        return control_pb2.SegmentState(
            id=segment.id,
            topic=leader.manifest.topics_by_id[segment.topic_id].name,
            first_partition=segment.first_partition,
            end_partition=segment.end_partition,
            broker_id=leader.manifest.incarnations[segment.incarnation_id].broker_id,
            leader_epoch=segment.leader_epoch,
            bytes_in_per_second=load.bytes_in_per_s,
            bytes_out_per_second=load.bytes_out_per_s,
            requests_per_second=load.requests_per_s,
        )

    async def describe(self, request: control_pb2.DescribeRequest, context: Context) -> control_pb2.DescribeResponse:
        leader, engine = self._leader(), self._participant.engine
        now_s = leader.clock.monotonic()
        response = control_pb2.DescribeResponse(leader_broker_id=engine.broker_id, version=leader.journal.version)
        loads = {load.incarnation_id: load for load in (*leader.term.loads(), *leader.term.lane_loads())}
        followers = leader.manifest.followers
        for key, incarnation in leader.manifest.incarnations.items():
            if not incarnation.sealed:
                trouble = trouble_of(engine) if key == engine.incarnation_id else leader.term.trouble_of(key)
                row = response.members.add(incarnation_id=key, member=member_message(incarnation), trouble=trouble)
                follower = leader.manifest.incarnations.get(followers[key].incarnation_id) if key in followers else None
                if follower is not None:
                    row.follower_broker_id = follower.broker_id
                late_s, silence_s = leader.term.lateness_of(key, now_s)
                row.late_ms, row.starved, row.silence_ms_max = round(late_s * 1000), is_starved(late_s), round(silence_s * 1000)
                load = loads.get(key)
                if load is not None:
                    row.cpu_share, row.memory_bytes, row.connections = load.cpu_share, load.memory_bytes, load.connections
                    row.draining = load.draining
        response.segments.extend(self._segment(leader, segment) for segment in leader.manifest.segments.open.values())
        for decision in reversed(leader.term.orders.decisions):
            response.decisions.add(
                age_ms=round((now_s - decision.at_s) * 1000),
                kind=decision.order.kind.value,
                why=decision.order.why,
                error="" if decision.error is None else decision.error.message,
                under_way=decision.under_way,
                pause_ms=round(decision.pause_s * 1000),
                topics=decision.topics,
            )
        ids = {key: incarnation.broker_id for key, incarnation in leader.manifest.incarnations.items() if not incarnation.sealed}
        response.quotas.extend(use_message(use, broker_id) for broker_id, use in leader.quotas.uses(ids))
        return response

    async def view(self, request: control_pb2.ViewRequest, context: Context) -> control_pb2.ViewResponse:
        if len(request.topics) > TOPICS_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many topics. topics=`{len(request.topics)}` max=`{TOPICS_MAX}`")
        view = await self._views.make(self._leader(), list(request.topics))
        return control_pb2.ViewResponse(view=msgspec.json.encode(view))
