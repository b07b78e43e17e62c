"""Produce: appends the batches of a request. The encoding is in `wire/kafka/produce.py`.

The first batch of a transaction in a partition needs the consent of the transaction's coordinator. Such a request is parked, the
coordinator is asked (`verify`), and the request is appended again. A batch that was appended already is then a duplicate, which
gets the answer of the first time.

Deviations: `timeout_ms` is not used: a batch that waits for the store keeps waiting, and the client's
own time-out decides. acks=1 is as durable as acks=all.

One request gives one response. Its bytes are built at once, because the offsets are known, and kept back until the records are
durable. A response with a refused partition stays an object, `Answer`, until it is sent: the request may be parked and tried
again, and the lead of a refused partition is added just before.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, TypeAlias

from headgate.broker.log.batch import HEADER_BYTES, TRANSACTIONAL, parse, unpack_header
from headgate.broker.log.check import RecordError, SenderTrust
from headgate.broker.log.claims import Claim
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.runtime.steps import Steps, finish
from headgate.broker.wire.kafka.hot import TOPIC_IDS, Node, check_elements
from headgate.broker.wire.kafka.primitives import skip_tags
from headgate.broker.wire.kafka.produce import (
    ABORTABLE,
    ACKS_VALID,
    ADDS,
    FLEXIBLE,
    HINTS,
    STEP_ELEMENTS,
    Refused,
    Shape,
    Topic,
    appended_row,
    encode,
    read_head,
    read_records,
    read_topic,
    read_transactional_id,
)

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.server.access.rights import Rights
    from headgate.broker.transactions.broker_calls import TransactionCalls

    LogShape: TypeAlias = Shape[PartitionLog]

UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
INVALID_TOPIC = 17
INVALID_REQUIRED_ACKS = 21
TOPIC_AUTHORIZATION_FAILED = 29
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
UNKNOWN_TOPIC_ID = 100
UNVERIFIED = -1000
"""In place of an error code until `Answer.refuse_unverified`; never sent."""


HIDDEN: list[PartitionLog | None] = []
"""Stands for the partitions of a topic that the client may not write to."""
HIDDEN_TRANSACTION: list[PartitionLog | None] = []
"""Stands for the partitions of any topic in a request whose transactional id the client may not use."""


class Answer:
    """The answer to a request with refused partitions.

    `appended`: other partitions of it must become durable first. `unverified`: a batch needs the consent of its transaction's
    coordinator.
    """

    __slots__ = ("_correlation_id", "_topics", "_version", "appended", "unverified")

    def __init__(self, version: int, correlation_id: int, topics: list[Topic], *, appended: bool) -> None:
        self._version = version
        self._correlation_id = correlation_id
        self._topics = topics
        self.appended = appended
        self.unverified = False

    def refuse_unverified(self, code: int, message: str) -> None:
        """Set the error of the batches without the coordinator's consent."""
        for _, rows in self._topics:
            for row in rows:
                if isinstance(row, Refused) and row.code == UNVERIFIED:
                    row.code, row.message = code, message
        self.unverified = False

    def is_on_its_way(self, engine: Engine) -> Steps[bool]:
        """Whether the request must be appended again: the whole of it was refused, and only because its partitions are being handed
        over, from or to this broker; or a coordinator must be asked first."""
        waits = self.unverified
        if waits:
            return waits
        if self.appended:
            return waits
        for key, rows in self._topics:
            topic = topic_id(engine, key, self._version)
            for at, row in enumerate(rows):
                if at % STEP_ELEMENTS == 0:
                    yield STEP_ELEMENTS
                assert isinstance(row, Refused)
                if row.code != NOT_LEADER_OR_FOLLOWER:
                    return False
                waits = waits or engine.is_on_its_way(topic, row.number)
        return waits

    def encode(self, engine: Engine, listener: str) -> Steps[bytes]:
        """The response with its length prefix, and with the current leads of partitions that this broker does not lead.

        Args:
            listener: the client's: it is told the addresses of this listener.
        """
        nodes: dict[int, Node] = {}
        if self._version >= HINTS:
            for key, rows in self._topics:
                topic = topic_id(engine, key, self._version)
                for at, row in enumerate(rows):
                    if at % STEP_ELEMENTS == 0:
                        yield STEP_ELEMENTS
                    if isinstance(row, Refused) and row.code == NOT_LEADER_OR_FOLLOWER:
                        row.lead = note_lead(engine, topic, row.number, nodes, listener)
        return (yield from encode(self._version, self._correlation_id, self._topics, nodes.values()))


def topic_id(engine: Engine, key: bytes, version: int) -> uuid.UUID:
    """The id of a topic in a Produce or Fetch request; 0 if there is no topic of that name."""
    if version >= TOPIC_IDS:
        return uuid.UUID(bytes=key)
    topic = engine.manifest.topics.get(key.decode())
    return uuid.UUID(int=0) if topic is None else topic.id


def topic_name(engine: Engine, key: bytes, version: int) -> str | None:
    """The name of a topic in a Produce or Fetch request; None if there is no topic of that id."""
    if version < TOPIC_IDS:
        return key.decode()
    topic = engine.manifest.topics_by_id.get(uuid.UUID(bytes=key))
    return None if topic is None else topic.name


def note_lead(
    engine: Engine, topic: uuid.UUID, number: int, nodes: dict[int, Node], listener: str, *, even_here: bool = False
) -> tuple[int, int] | None:
    """The (broker id, leader epoch) of a partition's lead for a response, which also gets the lead's address in `nodes`.

    Args:
        listener: the client's.
        even_here: also if this broker is the lead: the client has the right lead, but an old epoch.
    """
    lead = engine.lead(topic, number)
    if lead is None or (lead[0].id == engine.incarnation_id and not even_here):
        return None
    broker, epoch = lead
    host, port = broker.kafka_address(listener)
    nodes[broker.broker_id] = Node(broker.broker_id, host, port, broker.rack or None)
    return broker.broker_id, epoch


def produce_again(
    engine: Engine,
    shape: LogShape,
    buffer: memoryview,
    start: int,
    end: int,
    now_ms: int,
    adopt: bytearray | None,
    trust: SenderTrust | None,
) -> bytes | Answer | None:
    """Append the batch of a request that may have the same shape as an earlier one.

    Args:
        start: position of the request, behind its length prefix.
        end: end of the request.
        adopt, trust: same meaning as in `produce`.

    Returns:
        The response, as from `produce`. None if the request has another shape: nothing was done.
    """
    position = start + shape.batch_at
    if end - position < HEADER_BYTES:
        return None
    versions, correlation_id, part = shape.unpack(buffer, start)
    if versions != shape.versions or shape.log.closed is not None:
        return None
    size = shape.last_bytes if part == shape.last else shape.records_bytes(part)
    if size < HEADER_BYTES or position + size > end:
        return None
    try:
        header = unpack_header(buffer, position)
        if shape.producer_id is not None and header[9] != shape.producer_id:
            return None
        appended = engine.append_parsed(shape.log, header, buffer, position, size, now_ms, adopt, trust)
    except HeadgateError as error:
        return _refused_alone(shape, correlation_id, error)
    return shape.respond(correlation_id, appended)


def produce(
    engine: Engine,
    frame: memoryview,
    key_at: int,
    position: int,
    version: int,
    correlation_id: int,
    now_ms: int,
    trust: SenderTrust | None,
    adopt: bytearray | None = None,
    rights: Rights | None = None,
) -> tuple[int, bytes | Answer, LogShape | None]:
    """Append every batch of a request.

    Args:
        frame: the request without its length prefix. Batches are stamped in place.
        key_at: position behind the correlation id.
        position: position behind the request header.
        now_ms: the wall clock.
        trust: of the connection, if a sample of its batches is due; otherwise None.
        adopt: the buffer of `frame`, if it is from the engine's pool and belongs to this request alone.
        rights: what the client may do; None: everything.

    Returns:
        (acks, the response with its length prefix, the shape of a request for one partition). The response is an `Answer` if a
        partition was refused.

    Raises:
        DecodeError, struct.error, IndexError, UnicodeDecodeError: not a produce request. Nothing of it was appended, or only a
        part that will not be acknowledged.
    """
    transacts, claim = may_transact(frame, position, version, rights), claim_of(engine, frame, position, version, rights)
    acks, topics, position = read_head(frame, position, version)
    if topics == 1:
        topic, partitions, rows_at = read_topic(frame, position, version)
        if partitions == 1:
            # The common request: one partition.
            number, records_at, end = read_records(frame, rows_at, version >= FLEXIBLE)
            log, code = _find(_logs(engine, topic, version, rights, transacts), number, version, acks)
            if log is None:
                return acks, Answer(version, correlation_id, [(topic, [Refused(number, code)])], appended=False), None
            length_at = rows_at + 4
            shape = Shape(log, version, topic, number, bytes(frame[key_at:length_at]), acks, records_at - length_at)
            try:
                header = parse(frame, records_at, end - records_at)
                shape.producer_id = None if claim is None else header[9]
                appended = _append(engine, claim, log, header, frame, records_at, end - records_at, now_ms, adopt, trust)
            except HeadgateError as error:
                return acks, _refused_alone(shape, correlation_id, error), shape
            return acks, shape.respond(correlation_id, appended), shape
    return (
        acks,
        finish(
            _append_all(engine, frame, position, version, correlation_id, topics, acks, now_ms, trust, rights, transacts, claim)
        ),
        None,
    )


def produce_large(
    engine: Engine,
    frame: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    now_ms: int,
    trust: SenderTrust | None,
    rights: Rights | None = None,
) -> Steps[tuple[int, bytes | Answer]]:
    """Append every batch of a large request in steps, without a shape. `frame` must not change meanwhile."""
    transacts, claim = may_transact(frame, position, version, rights), claim_of(engine, frame, position, version, rights)
    acks, topics, position = read_head(frame, position, version)
    answer = yield from _append_all(
        engine, frame, position, version, correlation_id, topics, acks, now_ms, trust, rights, transacts, claim
    )
    return acks, answer


def _append(
    engine: Engine,
    claim: Claim | None,
    log: PartitionLog,
    header: tuple[int, ...],
    frame: memoryview,
    position: int,
    size: int,
    now_ms: int,
    adopt: bytearray | None,
    trust: SenderTrust | None,
) -> tuple[int, int, int]:
    """Append one batch, if its producer id is the client's. See `WritePath.append_parsed`."""
    if claim is not None:
        claim.check(header)
    appended = engine.append_parsed(log, header, frame, position, size, now_ms, adopt, trust)
    if claim is not None:
        claim.use(header)
    return appended


def _append_all(
    engine: Engine,
    frame: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    topics: int,
    acks: int,
    now_ms: int,
    trust: SenderTrust | None,
    rights: Rights | None,
    transacts: bool,
    claim: Claim | None,
) -> Steps[bytes | Answer]:
    """Append the batches of all topics."""
    flexible = version >= FLEXIBLE
    parts: list[Topic] = []
    refused = rows_count = 0
    elements, due = topics, STEP_ELEMENTS
    for _ in range(topics):
        topic, partitions, position = read_topic(frame, position, version)
        logs = _logs(engine, topic, version, rights, transacts)
        elements += partitions
        check_elements("Produce", elements)
        rows: list[bytes | Refused] = []
        for _ in range(partitions):
            number, records_at, end = read_records(frame, position, flexible)
            position = skip_tags(frame, end) if flexible else end
            log, code = _find(logs, number, version, acks)
            if log is None:
                rows.append(Refused(number, code))
                refused += 1
            else:
                try:
                    header = parse(frame, records_at, end - records_at)
                    done = _append(engine, claim, log, header, frame, records_at, end - records_at, now_ms, None, trust)
                    rows.append(appended_row(version, number, done))
                except HeadgateError as error:
                    rows.append(_judged(log, error))
                    refused += 1
            if rows_count + len(rows) + len(parts) >= due:
                yield STEP_ELEMENTS
                due += STEP_ELEMENTS
        rows_count += len(rows)
        if flexible:
            position = skip_tags(frame, position)
        parts.append((topic, rows))
        if rows_count + len(parts) >= due:
            yield STEP_ELEMENTS
            due += STEP_ELEMENTS
    if refused:
        answer = Answer(version, correlation_id, parts, appended=refused < rows_count)
        answer.unverified = any(isinstance(row, Refused) and row.code == UNVERIFIED for _, rows in parts for row in rows)
        return answer
    return (yield from encode(version, correlation_id, parts))


async def verify_transaction(
    engine: Engine, transaction_calls: TransactionCalls, frame: memoryview, position: int, version: int, rights: Rights | None
) -> tuple[int, str] | None:
    """Ask the coordinator of a request's transaction for its consent, where a batch needs it. Nothing is asked for what the client
    may not do.

    Returns:
        The error code and the message for the batches without consent; None if there is none.

    Raises:
        DecodeError, struct.error, IndexError, UnicodeDecodeError: not a produce request.
    """
    wanted: dict[tuple[int, int], list[PartitionLog]] = {}
    transactional_id = read_transactional_id(frame, position, version)
    transacts = may_transact(frame, position, version, rights)
    _, topics, position = read_head(frame, position, version)
    for _ in range(topics):
        topic, partitions, position = read_topic(frame, position, version)
        logs = _logs(engine, topic, version, rights, transacts)
        for _ in range(partitions):
            number, records_at, position = read_records(frame, position, version >= FLEXIBLE)
            if position - records_at >= HEADER_BYTES and logs is not None and 0 <= number < len(logs):
                header, log = unpack_header(frame, records_at), logs[number]
                if log is not None and header[5] & TRANSACTIONAL and header[9] >= 0:
                    transactions = log.producers_state.transactions
                    is_claimed = rights is None or engine.claims.is_confirmed(header[9], transactional_id or "")
                    if not (is_claimed and transactions.is_allowed(header[9], header[10])):
                        wanted.setdefault((header[9], header[10]), []).append(log)
            if version >= FLEXIBLE:
                position = skip_tags(frame, position)
        if version >= FLEXIBLE:
            position = skip_tags(frame, position)
    refusal: tuple[int, str] | None = None
    for (producer_id, epoch), theirs in wanted.items():
        reply = await transaction_calls.verify_batches(transactional_id or "", producer_id, epoch, theirs, add=version >= ADDS)
        if reply.error is None and rights is not None:
            engine.claims.confirm(producer_id, transactional_id or "", rights.identity.principal)
        if reply.error is not None:
            refusal = _unverified_code(reply.error, version), f"the transaction's coordinator does not agree: {reply.error.value}"
    return refusal


def _unverified_code(reason: Reason, version: int) -> int:
    """The error for a batch whose transaction's coordinator does not agree. Errors of the coordinator must not make producers look
    for another lead, nor give up."""
    from headgate.broker.server.kafka.errors import ErrorCode, reason_code

    match reason:
        case Reason.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case Reason.INVALID_TRANSACTION_STATE:
            return ErrorCode.TRANSACTION_ABORTABLE if version >= ABORTABLE else ErrorCode.INVALID_TXN_STATE
        case Reason.INVALID_PRODUCER_ID_MAPPING:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        case Reason.CONCURRENT_TRANSACTIONS if version >= ADDS:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        case Reason.INVALID_REQUEST | Reason.POLICY_VIOLATION:
            return reason_code(reason)
        case _:
            return ErrorCode.NOT_ENOUGH_REPLICAS  # retriable for all versions


def claim_of(engine: Engine, frame: memoryview, position: int, version: int, rights: Rights | None) -> Claim | None:
    """The claims of a request's client; None: it may use every producer id."""
    if rights is None:
        return None
    return Claim(engine.claims, rights.identity.principal, read_transactional_id(frame, position, version))


def may_transact(frame: memoryview, position: int, version: int, rights: Rights | None) -> bool:
    """Whether the client may use the request's transactional id, if it has one."""
    if rights is None:
        return True
    transactional_id = read_transactional_id(frame, position, version)
    return transactional_id is None or rights.may_transact(transactional_id)


def _logs(engine: Engine, topic: bytes, version: int, rights: Rights | None, transacts: bool) -> list[PartitionLog | None] | None:
    """The partitions of a topic; `HIDDEN` if the client may not write to it, `HIDDEN_TRANSACTION` if it may not transact."""
    if not transacts:
        return HIDDEN_TRANSACTION
    if rights is not None:
        name = topic_name(engine, topic, version)
        if name is not None and not rights.may_write(name):
            return HIDDEN
    return engine.logs_by_id.get(uuid.UUID(bytes=topic)) if version >= TOPIC_IDS else engine.logs.get(topic.decode())


def _find(logs: list[PartitionLog | None] | None, number: int, version: int, acks: int) -> tuple[PartitionLog | None, int]:
    """The log of a batch; None and an error code if the batch is refused without being read."""
    if acks not in ACKS_VALID:
        return None, INVALID_REQUIRED_ACKS
    if logs is HIDDEN:
        return None, TOPIC_AUTHORIZATION_FAILED
    if logs is HIDDEN_TRANSACTION:
        return None, TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if logs is None or not 0 <= number < len(logs):
        return None, UNKNOWN_TOPIC_ID if version >= TOPIC_IDS else UNKNOWN_TOPIC_OR_PARTITION
    log = logs[number]
    if log is None:
        return None, NOT_LEADER_OR_FOLLOWER
    return (None, INVALID_TOPIC) if log.internal else (log, 0)


def _refused_alone(shape: LogShape, correlation_id: int, error: HeadgateError) -> Answer:
    refused = _judged(shape.log, error)
    answer = Answer(shape.version, correlation_id, [(shape.topic, [refused])], appended=False)
    answer.unverified = refused.code == UNVERIFIED
    return answer


def _judged(log: PartitionLog, error: HeadgateError) -> Refused:
    """The answer for a batch that the log refused. It carries the log's start offset, as in Kafka: without a start offset, a
    Java producer that gets UNKNOWN_PRODUCER_ID resends the same batch for ever, instead of restarting at sequence 0 under its
    next epoch."""
    from headgate.broker.server.kafka.errors import error_code  # refusals are rare, and the table of errors is large

    if error.reason is Reason.TRANSACTION_UNVERIFIED:
        return Refused(log.number, UNVERIFIED, log.log_start)
    records = error.records if isinstance(error, RecordError) else ()
    return Refused(log.number, error_code(error), log.log_start, error.message, records)
