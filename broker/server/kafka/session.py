"""One client's requests and answers. It does no I/O and knows no event loop: `Port` executes its effects.

Every request that has an answer takes a *slot* in `slots`. A slot is written after all slots before it. Produce requests of one
read share one slot: their responses are known at once, and are kept back together until the engine reports them durable. A fetch
that must wait, and every other API, is work of the port, which fills its slot later. The other APIs run one after another, as in
Kafka. Produce and Fetch do not wait for them.

A produce request for very many partitions is *parked*: the port appends it in steps, and later produce requests wait for it. A
produce request for partitions in a hand-over is parked until the hand-over ends, and later produce requests are parked behind
it, because their answers would have to wait anyway. Reason: a refused client retries after a tenth of a second at best, and then
often too early. Produce requests that arrive before the engine is open are parked too, so that they keep their place before
later requests.

A small fetch is answered in one turn of the loop. Other requests, and large fetches, work in slices of `runtime/turns.py`.

An answer from the store leaves in pieces, one turn of the loop each: a reader that catches up takes megabytes at a time, and
acks would wait for it.

Admission is by bytes: received bytes without an answer count, for this connection and for the whole broker. Beyond the limit the
broker stops reading from this connection until a request has been answered. The broker also stops reading from a client that
does not read its answers.

A client with a quota has meters (`cluster/meters.py`). Its request is answered at once, with the time that it must wait; then the
broker reads nothing from it for that time, whether or not the client heeds it (KIP-219). Only a fetch of a client that must wait
already gets no records.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from headgate.broker.cluster.lanes import Guide
from headgate.broker.engine.partition.windows import new_reader
from headgate.broker.log.check import SenderTrust
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.steps import finish
from headgate.broker.server.kafka import fetch, produce
from headgate.broker.server.kafka.answers import Answers, Port
from headgate.broker.server.kafka.apis import request_bytes_max
from headgate.broker.server.kafka.common import MEMORY, AdvertisedListener
from headgate.broker.server.kafka.frames import Frames
from headgate.broker.server.kafka.produce import Answer, produce_again
from headgate.broker.server.kafka.slot import Slot
from headgate.broker.server.kafka.throttle import Throttle
from headgate.broker.wire.kafka import fetch as fetch_wire
from headgate.broker.wire.kafka import produce as produce_wire
from headgate.broker.wire.kafka.primitives import PARSE_ERRORS as WIRE_ERRORS
from headgate.broker.wire.kafka.primitives import DecodeError, skip_tags

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.server.access.rights import Identity, Rights
    from headgate.broker.server.access.sasl import Sasl
    from headgate.broker.server.kafka.common import Common

SLOTS_MAX = 2000
"""Unanswered requests of one connection; further requests stay in the socket."""
PIECE_BYTES = 64 << 10
"""Bytes of an answer from the store that are written in one turn of the loop. With 128 KB acks wait a tenth longer; with 32 KB
readers are a tenth slower."""
SMALL_FETCH_BYTES = 4 << 10
"""A fetch request up to this size is answered in one turn of the loop if possible: it has 250 partitions at most, or 1,300 empty
topics. A larger one is answered in slices."""
ASTRAY_MAX = 5
"""Consecutive ListOffsets requests for partitions that this broker does not lead before the connection is closed."""

PRODUCE, FETCH = 0, 1
BEFORE_LOGIN = frozenset((17, 18, 36))
"""SaslHandshake, ApiVersions, SaslAuthenticate."""
NO_WRITER_BYTES_MAX = 2 << 20
"""Largest Produce request of a client that may write to no topic. The answer tells it so, as in Kafka."""
REQUEST = struct.Struct(">hhih").unpack_from
"""API key, version, correlation id and size of the client id."""
KEY_AT_BYTES = 8
"""Position behind API key, version and correlation id."""
REQUEST_HEADER_BYTES = 10
PARSE_ERRORS = (DecodeError, *WIRE_ERRORS)


class Session(Answers):
    """The state of one connection's requests; the module's text describes its rules."""

    __slots__ = (
        "_appended",
        "_astray",
        "_now_ms",
        "_produced",
        "_sampled",
        "_shape",
        "_unanswered",
        "active_at",
        "advertised",
        "began_at",
        "guide",
        "identity",
        "logged_in",
        "others",
        "parked",
        "reader",
        "rights",
        "sasl",
        "serving_others",
        "throttle",
        "trust",
    )

    def __init__(self, common: Common, port: Port, advertised: AdvertisedListener | None = None) -> None:
        super().__init__(common, port)
        self.advertised = advertised or common.advertised
        """The listener that accepted the connection."""
        self.logged_in = True
        """False on a listener with SASL until the first login."""
        self.identity: Identity | None = None
        """The client, if the broker asks who it is."""
        self.rights: Rights | None = None
        """What the client may do; None: everything."""
        self.sasl: Sasl | None = None
        """The client's logins; None on listeners without SASL."""
        self.throttle: Throttle | None = None
        """What the client may use; None while no quota exists."""
        self.reader = new_reader()
        self.guide = Guide()
        self.frames = Frames(common.inbox, common.now, self.handle, self.resume, self._out_of_memory, self._check_large)
        self._produced: list[bytes] = []
        self._unanswered = 0
        self._appended = False
        """Whether a produce request since the last slot has appended something."""
        self._shape: produce.LogShape | None = None
        """The shape of the last produce request, if that request was for one partition."""
        self.trust = SenderTrust()
        self._sampled: SenderTrust | None = self.trust
        """Set while a sample of this client's batches is due."""
        self._now_ms = 0
        self.parked: deque[tuple[bytearray, Slot]] = deque()
        """Parked produce requests. The first one waits for the engine, for a hand-over or for its own steps; the others wait for
        the first."""
        self._astray = 0
        """Consecutive ListOffsets requests, up to the last one, for a partition that another broker leads."""
        self.others: deque[tuple[bytes, Slot]] = deque()
        """Requests that are not Produce or Fetch, without those that are being answered."""
        self.serving_others = False
        self.active_at = self.began_at = common.now()

    # -- events

    def received(self, nbytes: int) -> None:
        """`nbytes` bytes were written into `frames.buffer()`."""
        common = self._common
        self.active_at = common.now()
        self._now_ms = common.now_ms()
        try:
            self.frames.received(nbytes, self.active_at)
        except PARSE_ERRORS as error:
            if self.frames.is_stranger:  # an orderly end would take what the client goes on sending
                self._port.abort("malformed_request", str(error))
            else:
                self.drop("malformed_request", str(error))
            return
        self.end_of_produce()
        if self._over_limit():
            self.pause()

    def quotas_changed(self) -> None:
        """Quotas have changed: the next request looks for its client's."""
        self._shape = None
        if self.throttle is not None:
            throttle, self.throttle = self.throttle, None
            throttle.unmute()

    def permissions_changed(self) -> None:
        """Users or rules have changed: the next produce request is judged anew."""
        self._shape = None

    def await_login(self, sasl: Sasl) -> None:
        """The client must log in first."""
        self.logged_in, self.sasl = False, sasl
        self.frames.meet_stranger()

    def let_in(self, identity: Identity, rights: Rights | None) -> None:
        """It is known who the client is. Called again after each further login."""
        self.identity, self.rights, self.logged_in = identity, rights, True
        self.frames.let_in()
        self.permissions_changed()
        self.quotas_changed()

    def lost(self) -> None:
        """The connection is gone."""
        self.is_over = True
        self.frames.close()
        self.slots.clear()
        self.parked.clear()
        self.others.clear()
        self.held = 0
        self.count_outgoing()

    def pause_writing(self) -> None:
        """The client does not read its answers."""
        self.writable = False
        self.pause()

    def resume_writing(self) -> None:
        """The client has read its answers."""
        self.writable = True
        self.count_outgoing()
        self.wake_next()
        self.resume()

    # -- requests

    def handle(self, buffer: memoryview, start: int, end: int, own: bytearray | None) -> None:
        """Handle one frame of `buffer`. Raises PARSE_ERRORS."""
        shape = self._shape
        engine = self._common.engine
        if shape is not None:
            assert engine is not None
            answer = produce_again(engine, shape, buffer, start, end, self._now_ms, own, self._sampled)
            if type(answer) is bytes:
                # A copy of `_produce_done`: calling it would cost the hot path 1.5 % more instructions.
                self._unanswered += end - start
                self._appended = True
                if shape.acks:
                    self._produced.append(answer)
                return
            if answer is not None:
                self._produce_done(buffer, start, end, shape.acks, answer)
                return
        api, version, correlation_id, client_size = REQUEST(buffer, start)
        rights = self.rights
        if not self.logged_in:
            check_before_login(api)
        if self._common.has_quotas and engine is not None:
            self._look_for_quotas(engine, buffer[start + REQUEST_HEADER_BYTES :][: max(client_size, 0)], version)
        if api == PRODUCE and produce_wire.VERSION_MIN <= version <= produce_wire.VERSION_MAX:
            if engine is None or self.parked:
                self._park(buffer[start:end])
                return
            frame = buffer[:end]
            position = skip_header(frame, start, client_size, version >= produce_wire.FLEXIBLE)
            if produce_wire.is_large(frame, position, version):
                self._park(buffer[start:end])
                return
            acks, answer, self._shape = produce.produce(
                engine, frame, start + KEY_AT_BYTES, position, version, correlation_id, self._now_ms, self._sampled, own, rights
            )
            self._produce_done(buffer, start, end, acks, answer)
            return
        self.end_of_produce()
        if api == FETCH and fetch_wire.VERSION_MIN <= version <= fetch_wire.VERSION_MAX and engine is not None:
            if end - start > SMALL_FETCH_BYTES:
                self._port.answer_alone(bytes(buffer[start:end]), self._open_slot(end - start))
                return
            frame = buffer[:end]
            position = skip_header(frame, start, client_size, version >= fetch_wire.FLEXIBLE)
            request, portions = fetch.parse(engine, frame, position, version)
            request.portions += portions
            if rights is not None:
                fetch.refuse_hidden(engine, version, request.portions, rights)
            self._fetch(request, correlation_id)
            return
        self.others.append((bytes(buffer[start:end]), self._open_slot(end - start)))
        if not self.serving_others:
            self.serving_others = True
            self._port.answer_in_turn()

    def _look_for_quotas(self, engine: Engine, client_id: memoryview, version: int) -> None:
        """Find out what the client that sends the next request may use."""
        if self.throttle is None:
            self.throttle = Throttle(self, self._common, self._port.unmute_at)
        if self.throttle.is_another(bytes(client_id), version):
            self.end_of_produce()
            self._shape = None
            self.throttle.meet(engine.meters)

    def _produce_done(self, buffer: memoryview, start: int, end: int, acks: int, answer: bytes | Answer) -> None:
        if isinstance(answer, Answer):
            engine = self._common.engine
            assert engine is not None
            if finish(answer.is_on_its_way(engine)):
                self._park(buffer[start:end])
                return
            check_answerable(acks)
            response = finish(answer.encode(engine, self.advertised.name))
            self._appended = self._appended or answer.appended
        else:
            response = answer
            self._appended = True
        self._unanswered += end - start
        if acks != 0:
            self._produced.append(response)

    def _park(self, request: memoryview) -> None:
        self.end_of_produce()
        self._shape = None
        self.parked.append((bytearray(request), self._open_slot(len(request))))
        if len(self.parked) == 1:
            self._port.append_parked()

    def end_of_produce(self) -> None:
        """Give the produce requests since the last call one slot, which is filled when they are acked."""
        cost = self._unanswered
        if not cost:
            return
        produced, self._produced, self._unanswered = self._produced, [], 0
        if self.throttle is not None:
            produced = self.throttle.produced(cost, produced)
        self._sampled = self.trust.sent(max(len(produced), 1))  # batches without an answer (acks=0) count as one
        appended, self._appended = self._appended, False
        self._common.requests["produce"] += len(produced)
        self.fill_when_acked(self._open_slot(cost), produced, appended=appended)

    def fill_when_acked(self, slot: Slot, produced: list[bytes], *, appended: bool, in_steps: bool = False) -> None:
        """Fill a slot with answers to produce requests once their batches are acked.

        Args:
            in_steps: the batches were appended in several turns of the loop. Batches of other clients may lie between them, so
                the follower's confirmation is not enough (`Engine.on_acked`).
        """
        if not appended:
            # Errors do not wait: earlier requests may never become durable, and the error may be about that.
            self.fill(slot, [b"".join(produced)])
            return
        common, began_s = self._common, self.active_at
        slot.written_at = began_s

        def acked(error: HeadgateError | None) -> None:
            if error is None:
                common.produce_s.observe(common.now() - began_s, len(produced) or 1)
                self.fill(slot, [b"".join(produced)])
            else:
                self.drop("not_durable", error.message)

        engine = common.engine
        assert engine is not None
        (engine.on_durable if in_steps else engine.on_acked)(acked)

    def _fetch(self, request: fetch.FetchRequest, correlation_id: int) -> None:
        """Answer a fetch now, if its records are in memory and the broker can prove its lead. Otherwise the port answers it."""
        common = self._common
        engine = common.engine
        assert engine is not None
        common.requests["fetch"] += 1
        slot = self._open_slot(0)
        if self.throttle is not None and self.throttle.refuses(request, correlation_id, slot):
            return
        max_bytes = self.answer_room(request, slot)
        # The time of reading counts: if the process was stopped while the request waited in the socket, the proof has expired.
        if self.active_at < engine.proof.valid_until_s and max_bytes is not None and (max_bytes > 0 or request.max_bytes <= 0):
            total, failed, left = 0, False, False
            try:
                for portion in request.portions:
                    total, bad, cold = fetch.collect(engine, request, portion, total, max_bytes, self.reader)
                    kept = fetch.send_away(engine, request, cold, self.guide) if cold else cold
                    failed = failed or bad or len(kept) < len(cold)
                    left = left or bool(kept)
            except MemoryError:
                self.drop("out_of_memory", "there is no memory for an answer")
                return
            if not left and (failed or request.error or total >= request.min_bytes or request.max_wait_ms <= 0):
                answer = finish(fetch.respond(engine, request, correlation_id, self.advertised.name))
                if self.throttle is not None:
                    self.throttle.fetched(answer, request.version)
                self.fill_counted(slot, answer)
                common.fetch_s[MEMORY,].observe(common.now() - self.active_at)
                return
        self._port.answer_fetch(request, correlation_id, slot)

    # -- answers

    def flushed(self, unsent_bytes: int) -> None:
        """All that could be written was written; the client has not taken `unsent_bytes` of it yet."""
        # A copy of `count_outgoing`, and checks before two calls: every ack comes here.
        now = self.held + unsent_bytes
        self._common.outgoing_bytes += now - self._counted
        self._counted = now
        if self.room_waiters:
            self.wake_next()
        if self.frames.paused:
            self.resume()

    def looked_up(self, *, elsewhere: bool) -> None:
        """Note that a ListOffsets request was answered. `elsewhere`: another broker leads one of its partitions.

        A client should then look for the lead. Some clients, like aiokafka 0.14, do that only when a connection ends;
        otherwise they repeat the request here for minutes. So this connection ends after ASTRAY_MAX such requests, once
        it has no other request.
        """
        self._astray = self._astray + 1 if elsewhere else 0
        if self._astray >= ASTRAY_MAX and not self.slots:
            self.drop("astray", f"the client does not look for the partition's lead. times=`{self._astray}`")

    def _check_large(self, api: int, size: int) -> None:
        """Raise DecodeError for a large frame that its API does not need, or whose client may not use it."""
        if api != PRODUCE:
            bytes_max = request_bytes_max(api)
        elif self.rights is None or self.rights.may_write_somewhere():
            return
        else:
            bytes_max = NO_WRITER_BYTES_MAX
        if size > bytes_max:
            raise DecodeError(f"request is too large. api_key=`{api}` size=`{size}` max=`{bytes_max}`")

    def _out_of_memory(self, size: int) -> None:
        """There is no memory for a frame: the connection ends. Nothing else needs to end, because no part of the frame has been
        processed yet."""
        self.drop("out_of_memory", f"there is no memory for a request. size=`{size}`")

    @property
    def is_muted(self) -> bool:
        """Whether nothing is read from the client, because it has used up a quota."""
        return self.throttle is not None and self.throttle.muted_until_s > 0

    @property
    def idle(self) -> bool:
        """Whether the connection has no unanswered request and no partial frame, and its client need not wait."""
        return not self.slots and self.frames.since is None and not self.is_muted

    # -- admission

    def _over_limit(self) -> bool:
        frames, settings = self.frames, self._common.settings
        if not self.writable or frames.is_waiting:
            return True
        if frames.is_receiving:
            # A begun frame is received whole: two connections with half a frame each would otherwise wait for each other for ever.
            return False
        return (
            frames.inflight_bytes > settings.connection_inflight_bytes_max
            or len(self.slots) > SLOTS_MAX
            or (self._common.inbox.inflight_bytes > settings.inflight_bytes_max and frames.inflight_bytes > 0)
        )

    def pause(self) -> None:
        """Read nothing more from the client for now."""
        if not self.frames.paused and not self.is_over:
            self.frames.paused = True
            self._port.pause_reading()

    def resume(self) -> None:
        """Read on, if no limit forbids it."""
        if self.frames.paused and not self.is_over and not self.is_closing and not self.is_muted and not self._over_limit():
            self.frames.paused = False
            self._port.resume_reading()


def check_before_login(api: int) -> None:
    """Raise DecodeError for a request that is not served to a client without a login. Frames bound its size."""
    if api not in BEFORE_LOGIN:
        raise DecodeError(f"the client must log in first. api_key=`{api}`")


def check_answerable(acks: int) -> None:
    """Raise DecodeError if the protocol has no answer for a refused request (acks=0)."""
    if acks == 0:
        raise DecodeError("a batch sent with acks=0 was refused: closing the connection is all that tells the client")


def skip_header(frame: memoryview, start: int, client_size: int, flexible: bool) -> int:
    """Position behind the header of the request at `start`; its client id has `client_size` bytes, or is null (-1)."""
    position = start + REQUEST_HEADER_BYTES + (client_size if client_size > 0 else 0)
    if position > len(frame):
        raise DecodeError("client id is cut off")
    return skip_tags(frame, position) if flexible else position
