"""The clients of a run: librdkafka clients, each in its own thread. They record their operations and the answers, and judge
nothing."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from headgate.broker.verify.history import NO_POSITION, Commit, Outcome, PositionAnswer, Session, SessionKind, WatermarkAnswer
from headgate.broker.verify.recorder import Recorder
from headgate.broker.verify.value import key_of, read_stamp, value_of

INFLIGHT_MAX = 2_000
"""Most unanswered records of one producer; at this bound it pauses sending. Bounds memory."""
BURST_MAX = 100
"""Records sent between two polls for answers."""
BEHIND_S_MAX = 0.5
"""A producer that could not send catches up on at most this many seconds, so that the end of a fault is not a flood."""
COMMIT_EVERY_S = 0.5
ASK_EVERY_S = 1.0
"""Pause between two sweeps of position or watermark queries."""
ASK_TIMEOUT_S = 5.0
MEMBER_LIFE_S = (8.0, 20.0)
"""A group member leaves and rejoins after a random time between these bounds, so that the group rebalances."""
RESTART_EVERY_S = 1.0
"""Least pause between two restarts of a reader at one place."""
DEFINITE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
"""Errors that are caused by the record itself, so that no earlier try of the same request can have written it."""
BEGIN_AGAIN = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})
"""The reader's offset does not exist any more: the reader restarts at the log's first offset."""

Place = int
Config = Mapping[str, Any]


class Counters:
    """Counts for the progress line. Producer threads update it without a lock: a lost update only makes one line slightly wrong."""

    def __init__(self, places: int) -> None:
        self.sent = 0
        self.acked = 0
        self.errors = 0
        self.acked_by_place = [0] * places
        self.offset_by_place = [-1] * places
        """Highest acknowledged offset."""
        self.latencies_us: list[int] = []
        """Latencies since the last progress line."""


class World:
    """State that all clients share."""

    def __init__(self, recorder: Recorder, config: Config, *, acks: str, value_bytes: int) -> None:
        self.recorder, self.config, self.acks, self.value_bytes = recorder, config, acks, value_bytes
        self.places: Sequence[tuple[str, int]] = recorder.run.places
        self.number_of = {place: number for number, place in enumerate(self.places)}
        self.counters = Counters(len(self.places))

    def error(self, client: str, error: object) -> None:
        self.counters.errors += 1
        self.recorder.event(client, str(error))

    def client_config(self, name: str, **more: Any) -> dict[str, Any]:
        """librdkafka's configuration of one client. Properties from the user come last."""
        return {
            "client.id": f"headgate-verify-{name}",
            "log_level": 0,
            "error_cb": partial(self.error, name),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            **{property_.replace("_", "."): value for property_, value in more.items()},
            **self.config,
        }

    def partitions(self, offset: int = OFFSET_BEGINNING) -> list[TopicPartition]:
        return [TopicPartition(topic, partition, offset) for topic, partition in self.places]


class Client(ABC):
    """A client with its own thread, which works until it is stopped."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.recorder = world.recorder
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def join(self, deadline: float) -> bool:
        """Wait until the thread has ended. False: it has not by then, and is abandoned (a daemon thread in a blocking call)."""
        self._thread.join(max(deadline - time.monotonic(), 0))
        if not self._thread.is_alive():
            return True
        self._given_up.set()
        self._thread.join(1.0)
        return not self._thread.is_alive()

    def _guarded(self) -> None:
        ended = False
        try:
            self.work()
            ended = True
        except BaseException as error:  # noqa: BLE001  # the run ends with it: `Verification` looks
            self.failure = error
        finally:
            if not ended and self.failure is None:  # a callback of librdkafka raised a KafkaError, which is no exception
                self.failure = RuntimeError(f"a callback failed. client=`{self.name}`")

    @abstractmethod
    def work(self) -> None:
        """The client's work; returns soon after `_stopping` is set."""


class Writer(Client):
    """Sends numbered records to all places in turn, at a steady rate, and records the outcome of each."""

    def __init__(self, world: World, name: str, *, idempotent: bool, rate: float) -> None:
        super().__init__(world, name)
        self.idempotent, self._rate = idempotent, rate
        self._fatal = False
        self._open: dict[tuple[Place, int], int] = {}
        """Unanswered records: the send time of each, by place and sequence."""

    def work(self) -> None:
        turn = 0
        while not self._stopping.is_set():
            turn = self._as_one_producer(turn)

    def _as_one_producer(self, turn: int) -> int:
        """Write until the end or a fatal error. A producer cannot continue after a fatal error, so a new one replaces it."""
        number = self.recorder.producer(idempotent=self.idempotent)
        self._fatal = False
        producer = Producer(self._config())
        sequences = [0] * len(self.world.places)
        began, sent = time.monotonic(), 0
        while not self._stopping.is_set() and not self._fatal:
            due = int((time.monotonic() - began) * self._rate) - sent
            if due > self._rate * BEHIND_S_MAX:
                sent += due - int(self._rate * BEHIND_S_MAX)
            for _ in range(min(due, BURST_MAX, INFLIGHT_MAX - len(self._open))):
                place = turn % len(self.world.places)
                turn += 1
                sequence = sequences[place]
                if not self._send(producer, number, place, sequence):
                    break
                sequences[place] += 1
                sent += 1
            self._poll(producer, 0.005)
        while self._open and not self._given_up.is_set() and not self._fatal:
            self._poll(producer, 0.1)
        self._leave(number)
        return turn

    def _poll(self, producer: Producer, timeout_s: float) -> None:
        """Take answers. A fatal error is raised as an exception, in place of `error_cb`."""
        try:
            producer.poll(timeout_s)
        except KafkaException as error:
            self._fatal = True
            self.world.error(self.name, error)

    def _config(self) -> dict[str, Any]:
        return self.world.client_config(
            self.name,
            acks=self.world.acks,
            enable_idempotence=self.idempotent,
            max_in_flight_requests_per_connection=5 if self.idempotent else 1,
            linger_ms=5,
            queue_buffering_max_messages=2 * INFLIGHT_MAX,
            message_timeout_ms=120_000,
        )

    def _send(self, producer: Producer, number: int, place: Place, sequence: int) -> bool:
        topic, partition = self.world.places[place]
        value = value_of(self.recorder.run.run, number, place, sequence, self.world.value_bytes)
        self._open[place, sequence] = self.recorder.now_us()
        try:
            producer.produce(
                topic,
                value=value,
                key=key_of(place, sequence),
                partition=partition,
                on_delivery=partial(self._delivered, number, place, sequence),
            )
        except BufferError:
            del self._open[place, sequence]
            return False
        except KafkaException as error:
            self._fatal = True
            del self._open[place, sequence]
            self.world.error(self.name, error)
            return False
        self.world.counters.sent += 1
        return True

    def _delivered(self, number: int, place: Place, sequence: int, error: KafkaError | None, message: Message) -> None:
        ended_us = self.recorder.now_us()
        invoked_us = self._open.pop((place, sequence), None)
        if invoked_us is None:  # the client gave this record up before
            return
        counters = self.world.counters
        if error is not None:
            outcome = Outcome.FAILED if error.code() in DEFINITE else Outcome.UNKNOWN
            self.recorder.operation(place, number, sequence, outcome, -1, invoked_us, ended_us)
            self.world.error(self.name, f"a record was not acknowledged: {error}")
            return
        offset = message.offset()
        offset = -1 if offset is None else max(offset, -1)
        self.recorder.operation(place, number, sequence, Outcome.OK, offset, invoked_us, ended_us)
        counters.acked += 1
        counters.acked_by_place[place] += 1
        counters.offset_by_place[place] = max(counters.offset_by_place[place], offset)
        counters.latencies_us.append(ended_us - invoked_us)

    def _leave(self, number: int) -> None:
        """Record the unanswered records as unknown."""
        while self._open:
            (place, sequence), invoked_us = self._open.popitem()
            self.recorder.operation(place, number, sequence, Outcome.UNKNOWN, -1, invoked_us, -1)


class Reading(Client):
    """A client that records the messages of a consumer."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.last = [-1] * len(world.places)
        """By place: the last offset that the consumer showed."""

    def _placed_consumer(self, **more: Any) -> Consumer:
        """A consumer without a group, for places and offsets that its owner assigns. `more`: further properties."""
        return Consumer(
            self.world.client_config(
                self.name,
                group_id="headgate-verify-unused",
                enable_auto_commit=False,
                auto_offset_reset="error",
                isolation_level="read_uncommitted",
                check_crcs=True,
                **more,
            )
        )

    def _take(self, messages: Sequence[Message], session_of: Callable[[Place], Session]) -> list[tuple[Place, KafkaError, int]]:
        """Record messages. Returns the errors among them with their places and offsets; errors without a place are only events."""
        run, now_us = self.recorder.run.run, self.recorder.now_us()
        rows: dict[Place, list[tuple[int, int, int, int, int]]] = {}
        errors = []
        for message in messages:
            error, offset = message.error(), message.offset()
            place = self.world.number_of.get((message.topic() or "", -1 if (p := message.partition()) is None else p))
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    self.world.error(self.name, error)
                if place is not None:
                    errors.append((place, error, -1 if offset is None else offset))
                continue
            assert place is not None and offset is not None
            stamp = read_stamp(run, place, _bytes(message.key()), _bytes(message.value()))
            rows.setdefault(place, []).append((session_of(place).number, stamp.producer, offset, stamp.sequence, now_us))
            self.last[place] = offset
        for place, of_place in rows.items():
            self.recorder.reads(place, of_place)
        return errors


def _bytes(data: object) -> bytes | None:
    return data if isinstance(data, bytes) else None


class LiveReader(Reading):
    """Reads every place from its beginning, until producers have stopped."""

    def work(self) -> None:
        consumer = self._placed_consumer()
        sessions = [self._new_session() for _ in self.world.places]
        began_at = [0.0] * len(sessions)
        try:
            consumer.assign(self.world.partitions())
            while not self._stopping.is_set():
                for place, error, _ in self._take(consumer.consume(500, 0.1), sessions.__getitem__):
                    if error.code() in BEGIN_AGAIN and time.monotonic() > began_at[place] + RESTART_EVERY_S:
                        topic, partition = self.world.places[place]
                        consumer.incremental_unassign([TopicPartition(topic, partition)])
                        consumer.incremental_assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
                        sessions[place], began_at[place] = self._new_session(), time.monotonic()
        finally:
            consumer.close()

    def _new_session(self) -> Session:
        return self.recorder.session(SessionKind.LIVE, self.name)


class FinalReader(Reading):
    """Reads every place from its beginning to the high watermark, once, after all other clients have ended.

    Args:
        ends: by place, low and high watermark. A place that is missing here is not read.
    """

    def __init__(self, world: World, ends: Mapping[Place, tuple[int, int]], number: int) -> None:
        super().__init__(world, f"final-{number}")
        self.ends = dict(ends)
        self.done: set[Place] = set()
        self.session = self.recorder.session(SessionKind.FINAL, self.name)
        self.moved_at = time.monotonic()
        """Time of the last progress."""

    def work(self) -> None:
        consumer = self._placed_consumer(enable_partition_eof=True)
        try:
            consumer.assign([TopicPartition(*self.world.places[place], OFFSET_BEGINNING) for place in self.ends])
            self.done = {place for place, (low, high) in self.ends.items() if low >= high}
            while len(self.done) < len(self.ends) and not self._stopping.is_set():
                messages = consumer.consume(1_000, 0.2)
                for place, error, offset in self._take(messages, lambda _: self.session):
                    if error.code() == KafkaError._PARTITION_EOF and place in self.ends and offset >= self.ends[place][1]:
                        self.done.add(place)
                before = len(self.done)
                self.done |= {place for place, (_, high) in self.ends.items() if self.last[place] >= high - 1}
                if messages or len(self.done) > before:
                    self.moved_at = time.monotonic()
        finally:
            consumer.close()


class Member(Reading):
    """A group member: reads its assigned places, commits its positions, leaves and rejoins."""

    def __init__(self, world: World, name: str, group: str, protocol: str = "classic") -> None:
        super().__init__(world, name)
        self.group, self.protocol = group, protocol
        self._draw = random.Random(name)
        self._sessions: dict[Place, Session] = {}
        self._positions: dict[Place, int] = {}
        """Places with records that were shown and not committed: the next offset."""

    def work(self) -> None:
        while not self._stopping.is_set():
            self._one_life()

    def _one_life(self) -> None:
        consumer = Consumer(
            self.world.client_config(
                self.name,
                group_id=self.group,
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                auto_offset_reset="earliest",
                isolation_level="read_uncommitted",
                group_protocol=self.protocol,
                # A group of KIP-848 has the broker's session time.
                **({"session_timeout_ms": 10_000} if self.protocol == "classic" else {}),
            )
        )
        ends_at = time.monotonic() + self._draw.uniform(*MEMBER_LIFE_S)
        commits_at = time.monotonic() + COMMIT_EVERY_S
        topics = list(dict.fromkeys(topic for topic, _ in self.world.places))
        consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        try:
            while not self._stopping.is_set() and time.monotonic() < ends_at:
                self._take_assigned(consumer.consume(200, 0.1))
                if time.monotonic() >= commits_at:
                    self._commit(consumer)
                    commits_at = time.monotonic() + COMMIT_EVERY_S
            self._commit(consumer)
        finally:
            consumer.close()

    def _take_assigned(self, messages: Sequence[Message]) -> None:
        self._take(messages, self._sessions.__getitem__)
        for message in messages:
            offset, partition = message.offset(), message.partition()
            if message.error() is None and offset is not None and partition is not None:
                self._positions[self.world.number_of[message.topic() or "", partition]] = offset + 1

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            answers = ask_positions(self.world, consumer, self.group, partitions, self.name)
        except KafkaException as error:
            self.world.error(self.name, error)
            answers = {}
        for partition in partitions:
            place = self.world.number_of[partition.topic, partition.partition]
            self._sessions[place] = self.recorder.session(SessionKind.GROUP, self.name, self.group)
            self._positions.pop(place, None)
            # If this query for the position fails, the library queries it itself.
            if place in answers:
                partition.offset = OFFSET_BEGINNING if answers[place] == NO_POSITION else answers[place]
        # A group of KIP-848 is told of what is added; the other kind, of everything.
        (consumer.incremental_assign if self.protocol == "consumer" else consumer.assign)(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(consumer)
        self._positions.clear()

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._positions.clear()

    def _commit(self, consumer: Consumer) -> None:
        if not self._positions:
            return
        wanted = dict(self._positions)
        self._positions.clear()
        offsets = [TopicPartition(*self.world.places[place], position) for place, position in wanted.items()]
        invoked_us = self.recorder.now_us()
        outcomes = dict.fromkeys(wanted, Outcome.UNKNOWN)
        try:
            for answer in consumer.commit(offsets=offsets, asynchronous=False) or ():
                if answer.error is None:
                    outcomes[self.world.number_of[answer.topic, answer.partition]] = Outcome.OK
        except KafkaException as error:
            # An earlier try may have taken effect, whatever the answer to the last try says.
            self.world.error(self.name, error)
        ended_us = self.recorder.now_us()
        for place, outcome in outcomes.items():
            self.recorder.commit(
                Commit(
                    group=self.group,
                    place=place,
                    position=wanted[place],
                    outcome=outcome,
                    invoked_us=invoked_us,
                    ended_us=ended_us,
                )
            )


def ask_positions(
    world: World, consumer: Consumer, group: str, partitions: Sequence[TopicPartition], asker: str
) -> dict[Place, int]:
    """Query a group's positions and record the answers. Raises KafkaException if no answer comes."""
    invoked_us = world.recorder.now_us()
    told = consumer.committed(
        [TopicPartition(partition.topic, partition.partition) for partition in partitions], timeout=ASK_TIMEOUT_S
    )
    ended_us = world.recorder.now_us()
    answers: dict[Place, int] = {}
    for position in told:
        if position.error is not None:
            continue
        place = world.number_of[position.topic, position.partition]
        answers[place] = position.offset if position.offset >= 0 else NO_POSITION
        world.recorder.position(
            PositionAnswer(
                group=group,
                place=place,
                position=answers[place],
                invoked_us=invoked_us,
                ended_us=ended_us,
                asker=asker,
            )
        )
    return answers


class Asker(Client):
    """Queries group positions and watermarks all the time. Every second instance opens new connections for each sweep."""

    def __init__(self, world: World, name: str, groups: Sequence[str], *, fresh: bool) -> None:
        super().__init__(world, name)
        self._groups, self._fresh = groups, fresh

    def work(self) -> None:
        names = self._groups or ("headgate-verify-unused",)
        consumers = {} if self._fresh else {group: self._consumer(group) for group in names}
        try:
            while not self._stopping.wait(ASK_EVERY_S):
                if self._fresh:
                    consumers = {group: self._consumer(group) for group in names}
                for group, consumer in consumers.items():
                    if group in self._groups:
                        self._ask_positions(group, consumer)
                self._ask_watermarks(next(iter(consumers.values())))
                if self._fresh:
                    while consumers:
                        consumers.popitem()[1].close()
        finally:
            for consumer in consumers.values():
                consumer.close()

    def _consumer(self, group: str) -> Consumer:
        return Consumer(self.world.client_config(self.name, group_id=group, enable_auto_commit=False))

    def _ask_positions(self, group: str, consumer: Consumer) -> None:
        try:
            ask_positions(self.world, consumer, group, self.world.partitions(), self.name)
        except KafkaException as error:
            self.world.error(self.name, error)

    def _ask_watermarks(self, consumer: Consumer) -> None:
        for place in range(len(self.world.places)):
            if self._stopping.is_set():
                return
            try:
                ask_watermark(self.world, consumer, place, self.name)
            except KafkaException as error:
                self.world.error(self.name, error)


def ask_watermark(world: World, consumer: Consumer, place: Place, asker: str) -> tuple[int, int]:
    """Query the low and high watermark of a place and record the answer. Raises KafkaException if no answer comes."""
    invoked_us = world.recorder.now_us()
    answer = consumer.get_watermark_offsets(TopicPartition(*world.places[place]), timeout=ASK_TIMEOUT_S, cached=False)
    if answer is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    low, high = answer
    world.recorder.watermark(
        WatermarkAnswer(place=place, low=low, high=high, invoked_us=invoked_us, ended_us=world.recorder.now_us(), asker=asker)
    )
    return low, high
