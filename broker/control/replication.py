"""The network part of `engine/write/replicas.py`: a lead's stream to its follower, and the request to a lost lead's follower."""

from __future__ import annotations

import asyncio

from headgate.broker.cluster.liveness import JOIN_ROUND_TRIPS, Answer, Attention, Heard, stretched
from headgate.broker.cluster.objects import Follower, Incarnation
from headgate.broker.cluster.patience import Patience
from headgate.broker.control.probe import ask
from headgate.broker.control.stream import Connect, Stream, connected
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.write.replicas import Copy
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.methods import methods

logger = get_logger("replication")

METHODS = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])
MESSAGE_BYTES_MAX = 1 << 20
"""Bytes of copies in one message; only a single larger batch may exceed it."""
IDLE_S = 0.5
"""Seconds between two messages to the follower if there are no copies. They tell it how much is durable, and that the lead is
alive."""
SILENCE_S = 2.0
"""Seconds of silence after which a follower is replaced, on a quiet machine. `liveness.stretched` extends it on a starved one."""
AVOID_S = 10.0
"""Seconds for which a broker is not chosen again after a failure."""
LOOK_S = 0.5
"""Pause, in seconds, between two searches for a follower, and between two checks of the follower's silence."""
PROBE_S = 0.5
ASK_S = 5.0
"""Seconds for which a follower may be silent while it gives its copies away."""
PATIENCE_S = 20.0
"""Seconds for which a follower is asked while it is unknown whether it is alive. After that, lead and follower are both lost:
two failures."""


class Replication:
    """Keeps a follower for this broker, from the first batch of a topic with `ack=replicated` on. It is the next live broker by id.

    Args:
        attention: of this process.
        connect: makes a channel to another broker.
    """

    def __init__(self, engine: Engine, attention: Attention, connect: Connect) -> None:
        self._engine = engine
        self._connect = connect
        self._attention = attention
        self._avoided: dict[str, float] = {}
        self._patience = Patience(ASK_S)

    async def run(self) -> None:
        """Never returns. Raises an error that ends this broker."""
        while True:
            peer = self._choose()
            if peer is None:
                await asyncio.sleep(LOOK_S)
                continue
            try:
                await self._stream(peer)
            except (RetryError, FencedError, InvalidError) as error:
                # This includes an answer that this broker was replaced: only its own log shows whether that is true.
                logger.warning("follower_lost", follower=peer.broker_id, error=error.message)
                self._avoided[peer.id] = self._engine.clock.monotonic() + AVOID_S
            finally:
                self._engine.replicator.end()
            await self._engine.durable()

    def _choose(self) -> Incarnation | None:
        engine = self._engine
        now_s = engine.clock.monotonic()
        self._avoided = {key: until_s for key, until_s in self._avoided.items() if until_s > now_s}
        others = [broker for broker in engine.brokers() if broker.broker_id != engine.broker_id and broker.id not in self._avoided]
        return min(others, key=lambda other: (other.broker_id < engine.broker_id, other.broker_id), default=None)

    async def _stream(self, peer: Incarnation) -> None:
        """Run one stream until it ends. Returns if this broker ended it; else raises RetryError, FencedError, InvalidError."""
        number = self._engine.replicator.begin()
        address = _address(peer)
        channel = self._connect(address)
        stream = Stream(channel, METHODS["Replicate"].path, address)
        tasks: list[asyncio.Task[None]] = []
        try:
            hello = control_pb2.ReplicaHello(incarnation_id=self._engine.incarnation_id, stream=number)
            round_trip_s = await connected(channel, address, self._patience, self._engine.clock)
            await stream.write(control_pb2.ReplicateRequest(hello=hello).SerializeToString(), ASK_S)
            follower = Heard(IDLE_S, self._attention.at(self._engine.clock.monotonic()))
            sending = asyncio.create_task(self._send(stream, peer), name="replicate")
            hearing = asyncio.create_task(self._hear(stream, follower), name="replicated")
            registering = asyncio.create_task(self._register(number, peer), name="register-follower")
            watching = asyncio.create_task(self._watch(stream, follower, round_trip_s), name="watch-follower")
            tasks = [sending, hearing, registering, watching]
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await end_tasks(tasks)
            stream.cancel()
            await channel.close()

    async def _register(self, number: int, peer: Incarnation) -> None:
        engine = self._engine
        await engine.durable()
        follower = Follower(incarnation_id=peer.id, host=peer.host, grpc_port=peer.peer_port, stream=number)
        try:
            await engine.set_follower(follower)
        except HeadgateError:
            engine.replicator.end()  # confirmations do not count on this stream, and no other code would end it
            raise
        engine.replicator.count(number)
        logger.info("follower_found", follower=peer.broker_id, stream=number)

    async def _send(self, stream: Stream, peer: Incarnation) -> None:
        """Send copies. Returns when this broker has ended the stream."""
        engine = self._engine
        while engine.replicator.is_open:
            copies = await engine.replicator.batches(MESSAGE_BYTES_MAX, IDLE_S)
            known = engine.manifest.incarnations.get(peer.id)
            if known is None or known.sealed:
                raise RetryError(Reason.NOT_LEADER, f"the follower is gone. address=`{_address(peer)}`")
            await stream.write(
                control_pb2.ReplicateRequest(copies=map(_message, copies), durable=engine.wal_batches[1]).SerializeToString()
            )

    async def _hear(self, stream: Stream, follower: Heard) -> None:
        while True:
            message = control_pb2.ReplicateResponse.FromString(await stream.read(None))
            now_s = self._engine.clock.monotonic()
            follower.spoke(self._attention.at(now_s), now_s)
            self._engine.replicator.held(message.held)

    async def _watch(self, stream: Stream, follower: Heard, round_trip_s: float) -> None:
        """End the stream if the follower is silent for too long. Then `_hear` raises RetryError."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = self._engine.clock.monotonic()
            silent_s = follower.silent_s(self._attention.at(now_s))
            late_s = max(self._attention.late_s(now_s), follower.late.peak_s(now_s))
            if silent_s > stretched(SILENCE_S, late_s) + round_trip_s:
                stream.give_up(f"the follower is silent. seconds=`{silent_s:.1f}` late_s=`{late_s:.1f}`")
                return


class Surrenders:
    """Asks the followers of lost leads for their copies. `connect` makes a channel to another broker."""

    def __init__(self, engine: Engine, connect: Connect) -> None:
        self._engine = engine
        self._connect = connect
        self._asked_s: dict[str, float] = {}
        """For each lead with a silent follower, the monotonic time in seconds of the first request."""

    async def ask(self, lead: Incarnation, follower: Follower, round_trip_s: float = 0.0) -> list[Copy]:
        """The copies of a lost lead's follower, which takes no further ones from the lead. [] if the follower is lost too, with
        its copies.

        Args:
            round_trip_s: seconds of a round trip to the follower. A far one gets more time.

        Raises RetryError: the follower may be alive and does not answer. The caller must ask again.
        """
        if follower.incarnation_id == self._engine.incarnation_id:
            return self._engine.replicas.surrender(lead.id, follower.stream)
        try:
            copies = await self._ask(lead.id, follower, ASK_S + JOIN_ROUND_TRIPS * round_trip_s)
        except (RetryError, InvalidError) as error:
            now_s = self._engine.clock.monotonic()
            waited_s = now_s - self._asked_s.setdefault(lead.id, now_s)
            # If another run of the process answers, it says so itself.
            is_gone = isinstance(error, InvalidError) or await self._refuses(follower, PROBE_S + round_trip_s)
            if not is_gone and waited_s < PATIENCE_S + 2 * JOIN_ROUND_TRIPS * round_trip_s:
                raise RetryError(
                    Reason.NOT_READY,
                    f"the follower of a lost broker does not answer. broker=`{lead.broker_id}` waited_s=`{waited_s:.1f}`",
                ) from error
            logger.error("copies_lost", broker=lead.broker_id, follower=follower.incarnation_id, gone=is_gone, error=error.message)
            copies = []
        self._asked_s.pop(lead.id, None)
        return copies

    async def _refuses(self, follower: Follower, timeout_s: float) -> bool:
        return await ask(follower.host, follower.grpc_port, timeout_s, self._engine.clock) is Answer.REFUSED

    async def _ask(self, lead: str, follower: Follower, timeout_s: float) -> list[Copy]:
        address = f"{follower.host}:{follower.grpc_port}"
        channel = self._connect(address)
        stream = Stream(channel, METHODS["Surrender"].path, address)
        request = control_pb2.SurrenderRequest(
            incarnation_id=lead, stream=follower.stream, follower_incarnation_id=follower.incarnation_id
        )
        copies: list[Copy] = []
        try:
            await stream.write(request.SerializeToString(), timeout_s)
            # An empty message ends the answer.
            while more := control_pb2.SurrenderResponse.FromString(await stream.read(timeout_s)).copies:
                copies += map(copy_of, more)
        finally:
            stream.cancel()
            await channel.close()
        return copies


def surrender_messages(copies: list[Copy]) -> list[control_pb2.SurrenderResponse]:
    """The answer to `Surrender`, in order. An empty message ends it."""
    messages: list[control_pb2.SurrenderResponse] = []
    size = MESSAGE_BYTES_MAX
    for copy in copies:
        if size >= MESSAGE_BYTES_MAX:
            messages.append(control_pb2.SurrenderResponse())
            size = 0
        messages[-1].copies.append(_message(copy))
        size += len(copy.batch)
    return [*messages, control_pb2.SurrenderResponse()]


def copy_of(message: control_pb2.Copy) -> Copy:
    """Decode a copy."""
    return Copy(message.number, message.stream_key, message.batch, message.appended_ms)


def _message(copy: Copy) -> control_pb2.Copy:
    return control_pb2.Copy(number=copy.number, stream_key=copy.stream, batch=copy.batch, appended_ms=copy.appended_ms)


def _address(peer: Incarnation) -> str:
    return f"{peer.host}:{peer.peer_port}"
