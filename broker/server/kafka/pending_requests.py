"""The requests of one connection that take more than one turn of the loop: parked produce requests, fetches that wait, and all
APIs except Produce and Fetch. Each is a coroutine that ends with the answer in the request's slot."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from headgate.broker.log.batch import Buffer
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.steps import finish
from headgate.broker.server.kafka import audited, fetch, produce
from headgate.broker.server.kafka.api_names import API_NAMES
from headgate.broker.server.kafka.apis import (
    API_VERSIONS,
    APIS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    Served,
    request_bytes_max,
)
from headgate.broker.server.kafka.common import STORE, WAITED
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.leads import is_led_elsewhere
from headgate.broker.server.kafka.produce import Answer
from headgate.broker.server.kafka.session import PARSE_ERRORS, REQUEST, Session, check_answerable, skip_header
from headgate.broker.server.kafka.slot import Slot
from headgate.broker.wire.kafka import produce as produce_wire
from headgate.broker.wire.kafka.header import read_key_version, read_request_header, response_header
from headgate.broker.wire.kafka.primitives import DecodeError, bounded, dispose

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.runtime.turns import Turn
    from headgate.broker.server.kafka.common import Common
    from headgate.broker.transactions.broker_calls import TransactionCalls
    from headgate.broker.wire.kafka.messages.list_offsets import ListOffsetsResponse

PARK_S = 2.0
"""Longest wait for a hand-over. After it the broker refuses the produce request, and the client retries."""
UNVERIFIED_AGAIN = (19, "the transaction changed while its coordinator was asked: send the batch again")
"""NOT_ENOUGH_REPLICAS, which every producer retries."""
ROOM_RETRY_S = 0.1
"""Pause before a fetch without room for its answer checks for room again."""
CLIENT_ID_LENGTH_MAX = 100
"""Characters of a client id in a log line."""


class Parked(NamedTuple):
    """The outcome of a parked produce request. `in_steps`: it was appended in several turns of the loop."""

    answers: list[bytes]
    appended: bool
    in_steps: bool


class PendingRequests:
    """The pending requests of one connection."""

    __slots__ = ("_common", "_session", "_waiters")

    def __init__(self, common: Common, session: Session) -> None:
        self._common = common
        self._session = session
        self._waiters: dict[Slot, asyncio.Future[None]] = {}

    # -- room for answers

    async def _wait_for_room(self, slot: Slot) -> None:
        waiter = self._waiters[slot] = asyncio.get_running_loop().create_future()
        self._session.room_waiters[slot] = None
        await waiter

    def wake(self, slot: Slot) -> None:
        waiter = self._waiters.pop(slot)
        if not waiter.done():
            waiter.set_result(None)

    # -- Produce

    async def append_parked(self) -> None:
        """Append the parked requests in order, each as soon as possible. A hand-over is waited for until PARK_S has passed; then
        the answer carries the error."""
        common, session = self._common, self._session
        engine = await common.opened()
        turn = common.turns.begin()
        deadline = common.now() + PARK_S
        while session.parked:
            request, slot = session.parked[0]
            change = engine.leads.next_change()
            may_wait = common.now() < deadline
            try:
                parked = await self._append(engine, memoryview(request), turn, may_wait=may_wait)
            except PARSE_ERRORS as error:
                session.drop("malformed_request", str(error))
                return
            if parked is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(deadline - common.now()):
                        await change.wait()
                continue
            session.parked.popleft()
            common.requests["produce"] += 1
            answers = parked.answers
            if session.throttle is not None:
                answers = session.throttle.produced(len(request), answers)
            session.fill_when_acked(slot, answers, appended=parked.appended, in_steps=parked.in_steps)

    async def _append(self, engine: Engine, frame: memoryview, turn: Turn, *, may_wait: bool) -> Parked | None:
        """Append the batches of one produce request. Raises PARSE_ERRORS.

        Args:
            may_wait: there is time to wait for a hand-over.

        Returns:
            None if nothing was appended, because a partition is on its way to another lead, or to this broker.
        """
        common, session = self._common, self._session
        _, version, correlation_id, client_size = REQUEST(frame, 0)
        position = skip_header(frame, 0, client_size, version >= produce_wire.FLEXIBLE)
        is_large = produce_wire.is_large(frame, position, version)
        refusal = await self._transaction_refusal(engine, frame, position, version)
        now_ms, trusted = common.now_ms(), session.trust.sent(1)
        appending = produce.produce_large(engine, frame, position, version, correlation_id, now_ms, trusted, session.rights)
        acks, answer = await turn.run(appending) if is_large else finish(appending)
        if not isinstance(answer, Answer):
            return Parked([answer] if acks else [], True, is_large)
        if answer.unverified:
            answer.refuse_unverified(*(refusal or UNVERIFIED_AGAIN))
        if may_wait and await turn.run(answer.is_on_its_way(engine)):
            return None
        check_answerable(acks)
        appended = answer.appended
        encoded = await turn.run(answer.encode(engine, session.advertised.name))
        return Parked([encoded] if acks else [], appended, is_large)

    async def _transaction_refusal(self, engine: Engine, frame: memoryview, position: int, version: int) -> tuple[int, str] | None:
        """Ask the coordinator of the request's transaction, if it has one. Returns code and message for batches that it refuses."""
        transaction_calls = self._common.transaction_calls
        if transaction_calls is None or produce_wire.read_transactional_id(frame, position, version) is None:
            return None
        return await produce.verify_transaction(engine, transaction_calls, frame, position, version, self._session.rights)

    # -- Fetch

    async def answer_fetch(self, request: fetch.FetchRequest, correlation_id: int, slot: Slot, turn: Turn) -> None:
        """Answer a fetch that is large, or must wait."""
        common, session = self._common, self._session
        engine = common.engine
        assert engine is not None
        began_s, kind = common.now(), STORE
        deadline = began_s + min(request.max_wait_ms, common.settings.fetch_wait_max_ms) / 1000
        # A lane reports no end of its own, so it needs no proof.
        request.unproven = engine.lane is None and await _is_unproven(engine)
        poll: fetch.Poll | None = None
        try:
            while True:
                max_bytes = session.answer_room(request, slot)
                if max_bytes is None:
                    await self._wait_for_room(slot)
                    continue
                paused = False
                if max_bytes > 0 or request.max_bytes <= 0:
                    enough, paused = await self._collect(engine, request, slot, turn, max_bytes)
                    if enough:
                        break
                left = deadline - common.now()
                if left <= 0:
                    break
                session.wake_next()
                if poll is None:
                    poll = fetch.Poll(session.reader, asyncio.get_running_loop())
                    now_s = engine.clock.monotonic()
                    for portion in request.portions:
                        if portion is not request.portions[0]:
                            await turn.pause()
                        fetch.note_waiting(portion, session.reader, now_s)
                        poll.subscribe(portion)
                    if paused:
                        # New records may have arrived between the look at a partition and the subscription to it. A partition
                        # that moves from now on ends the wait.
                        continue
                kind = WAITED
                await poll.wait(left if max_bytes > 0 else min(left, ROOM_RETRY_S))
                poll.end()
                poll = None
        finally:
            if poll is not None:
                poll.end()
        answer = await turn.run(fetch.respond(engine, request, correlation_id, session.advertised.name))
        if session.throttle is not None:
            session.throttle.fetched(answer, request.version)
        session.fill_counted(slot, answer)
        common.fetch_s[kind,].observe(common.now() - began_s)
        session.wake_next()

    async def _collect(
        self, engine: Engine, request: fetch.FetchRequest, slot: Slot, turn: Turn, max_bytes: int
    ) -> tuple[bool, bool]:
        """Collect the records that a fetch can have now.

        Returns:
            (whether to answer now, whether the loop may have run others meanwhile).
        """
        common, session = self._common, self._session
        total, failed, early = 0, bool(request.error), False
        cold: list[fetch.Cold] = []
        for portion in request.portions:
            if portion is not request.portions[0]:
                await turn.pause()
            total, bad, portion_cold = fetch.collect(engine, request, portion, total, max_bytes, session.reader)
            kept = fetch.send_away(engine, request, portion_cold, session.guide) if portion_cold else portion_cold
            failed = failed or bad or len(kept) < len(portion_cold)
            early = early or fetch.ends_early(portion)
            cold += kept
        if cold:
            early = True
            slot.in_pieces = common.has_writers
            # The expected bytes are counted in advance, because other connections read meanwhile.
            with session.holding(max(0, min(max_bytes - total, sum([wanted.max_bytes for wanted, _ in cold])))):
                total, bad = await fetch.collect_cold(engine, turn, cold, total, max_bytes, session.reader, request.committed)
            failed = failed or bad
        enough = failed or request.unproven or total >= request.min_bytes or (total > 0 and early)
        return enough, bool(cold) or len(request.portions) > 1

    # -- the other APIs

    async def answer_in_turn(self) -> None:
        """Answer the requests that are not Produce or Fetch, one after another.

        Each request waits until the client has taken the answers ahead of it. Other connections have a turn of the loop
        between two requests.
        """
        session = self._session
        try:
            while session.others:
                frame, slot = session.others.popleft()
                while not session.has_room(slot):
                    await self._wait_for_room(slot)
                session.wake_next()
                try:
                    await self.answer(frame, slot)
                except PARSE_ERRORS as error:
                    session.drop("malformed_request", str(error))
                    return
                if session.others:
                    await asyncio.sleep(0)
        finally:
            session.serving_others = False

    async def answer_alone(self, frame: bytes, slot: Slot) -> None:
        """Answer a large fetch."""
        try:
            await self.answer(frame, slot)
        except PARSE_ERRORS as error:
            self._session.drop("malformed_request", str(error))

    async def answer(self, frame: bytes, slot: Slot) -> None:
        """Fill `slot` with the answer to a request. Raises DecodeError if there is no answer."""
        common, session = self._common, self._session
        key, version, correlation_id = read_key_version(frame, 0)
        api = APIS.get(key)
        refusable = key == API_VERSIONS or (key == PRODUCE and 0 <= version < produce_wire.VERSION_MIN)
        if api is None or not (api.serves(version) or refusable):
            name = API_NAMES.get(key, "unknown") if api is None else api.name
            head, _ = read_request_header(frame, 0, False)
            self._unserved(head.client_id, f"Kafka API {name} ({key}), version {version}")
            session.drop("not_served", f"request is not served here. api=`{name}` api_key=`{key}` version=`{version}`")
            return
        if key != PRODUCE and len(frame) > (bytes_max := request_bytes_max(key)):
            raise DecodeError(f"request is too large. api=`{api.name}` size=`{len(frame)}` max=`{bytes_max}`")
        if key == API_VERSIONS and not api.serves(version):
            from headgate.broker.server.kafka.served_versions import unsupported_version

            session.fill(slot, _framed(response_header(key, correlation_id, False) + unsupported_version()))
            return
        if key != API_VERSIONS:
            await common.opened()
        turn = common.turns.begin()
        head, position = read_request_header(frame, 0, api.flexible(version))
        if key == PRODUCE:
            session.fill(slot, [produce_wire.refuse_version(memoryview(frame), position, version, correlation_id)])
        elif key == FETCH:
            assert common.engine is not None
            common.requests["fetch"] += 1
            request, portions = fetch.parse(common.engine, memoryview(frame), position, version)
            async for portion in turn.each(portions):
                if session.rights is not None:
                    fetch.refuse_hidden(common.engine, version, [portion], session.rights)
                request.portions.append(portion)
            if session.throttle is not None and session.throttle.refuses(request, correlation_id, slot):
                return
            await self.answer_fetch(request, correlation_id, slot, turn)
        else:
            common.requests["other"] += 1
            declared = api.load()
            try:
                message, _ = await turn.run(bounded(declared.decode(frame, position, version)))
            except DecodeError as error:
                raise DecodeError(f"{error.message} api=`{api.name}` version=`{version}`") from error
            try:
                handling = audited.answered(declared, message, self._context(api, version, head.client_id, turn), session.identity)
                response = await handling
            except HeadgateError as error:
                session.drop("request_failed", f"{api.name}: {error.message}")
                return
            out = bytearray(4) + response_header(key, correlation_id, api.flexible(version))
            await turn.run(response.encoding(out, version))
            out[:4] = (len(out) - 4).to_bytes(4, "big")
            session.fill_counted(slot, [bytes(out)])
            if session.sasl is not None and session.sasl.failed:
                session.drop("login_failed", session.sasl.failed)
            if key == LIST_OFFSETS:
                session.looked_up(elsewhere=await is_led_elsewhere(cast("ListOffsetsResponse", response), turn))
            await turn.run(dispose(message))
            await turn.run(dispose(response))

    def _unserved(self, client_id: str | None, what: str) -> None:
        """The client asked for something that this broker does not serve."""
        name = (client_id or "")[:CLIENT_ID_LENGTH_MAX]
        reason = f"a client asked for something that is not served. asked=`{what}` client_id=`{name}`"
        self._common.unserved(self._session.peer.rpartition(":")[0], reason)

    def _context(self, api: Served, version: int, client_id: str | None, turn: Turn) -> Context:
        common, session = self._common, self._session
        # ApiVersions needs no engine, and is answered before the engine is open.
        return Context(
            engine=cast("Engine", common.engine),
            groups=cast("Coordinator", common.groups),
            transaction_calls=cast("TransactionCalls", common.transaction_calls),
            settings=common.settings,
            client_id=client_id,
            client_host=session.peer.rpartition(":")[0],
            api_version=version,
            turn=turn,
            host=session.advertised.host,
            port=session.advertised.port,
            listener=session.advertised.name,
            reader=session.reader,
            sasl=session.sasl,
            rights=session.rights,
            audit=common.audit,
            unserved=lambda what: self._unserved(client_id, what),
        )


async def _is_unproven(engine: Engine) -> bool:
    """Whether another broker may lead the partitions by now. A fetch then reports no end of a partition."""
    try:
        await engine.confirm()
    except HeadgateError:
        return True
    return False


def _framed(body: bytes) -> list[Buffer]:
    return [len(body).to_bytes(4, "big"), body]
