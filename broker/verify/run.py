"""One run: create topics, let clients work until the time is over or a person ends it, then read everything again and judge it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.broker.verify.clients import (
    Asker,
    Client,
    FinalReader,
    LiveReader,
    Member,
    World,
    Writer,
    ask_positions,
    ask_watermark,
)
from headgate.broker.verify.history import Run
from headgate.broker.verify.judging import judge_directory
from headgate.broker.verify.page import Result
from headgate.broker.verify.recorder import Recorder

CREATE_S = 15.0
"""Longest wait for one answer to the creation or deletion of topics."""
TRY_AGAIN = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER)
LOOKS, LOOK_EVERY_S = 50, 0.1
"""Polls for new topics before their creation is requested again."""
ANSWER_S = 5.0
"""Longest wait for the endpoint's first answer."""
CLOSE_S = 10.0
"""Longest time that a consumer may take to close."""
STALL_S = 10.0
"""Longest time without progress of a final read; then it is restarted."""


class CannotRunError(Exception):
    """The endpoint could not be used at all. The message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parameters of a run.

    Args:
        duration_s: time for which producers write.
        rate: records per second, of all producers together.
        producers: number of producers; every second one is idempotent, unless `acks` is 1.
        members: number of members of each group.
        patience_s: longest wait for the topics, for the drain of producers, and again for the final read.
        settle_s: longest wait, after the last acknowledgement, until high watermarks cover all acknowledged records; and again
            until readers and groups have read them.
        progress_s: time between two lines of progress.
        config: properties of librdkafka for every client.
    """

    bootstrap: str
    directory: Path
    duration_s: float = 60.0
    rate: float = 1_000.0
    topics: int = 1
    partitions: int = 6
    replication_factor: int = -1
    producers: int = 4
    readers: int = 2
    groups: int = 1
    group_protocol: str = "classic"
    members: int = 2
    value_bytes: int = 200
    acks: str = "all"
    patience_s: float = 60.0
    settle_s: float = 15.0
    progress_s: float = 2.0
    keep_topics: bool = False
    strict: bool = False
    config: Mapping[str, str] = field(default_factory=dict)
    topic_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Progress:
    """One line about the last seconds."""

    elapsed_s: float
    acks_per_s: float
    latency_us_p99: int | None
    inflight: int
    silent: Sequence[int]
    """Numbers of the places without an acknowledgement."""
    places: int
    errors: int

    def __str__(self) -> str:
        p99 = "-" if self.latency_us_p99 is None else f"{self.latency_us_p99 / 1000:.1f} ms"
        without = f" (without {ranges(self.silent)})" if self.silent else ""
        return (
            f"+{self.elapsed_s:.0f} s: {self.acks_per_s:,.0f} acks/s, p99 {p99}, {self.inflight:,} in flight, "
            f"{self.places - len(self.silent)} of {self.places} partitions acknowledge{without}, {self.errors:,} client errors"
        )


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: ``0, 3-7``."""
    known = set(numbers)
    firsts = [number for number in numbers if number - 1 not in known]
    lasts = [number for number in numbers if number + 1 not in known]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))


class Verification:
    """Runs a plan once.

    Args:
        say: called with each line of progress.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan, self._say = plan, say
        # Its `put` may interrupt its own `get` in a signal handler; the lock of an Event would then be waited for for ever.
        self._stop: SimpleQueue[None] = SimpleQueue()

    def stop(self) -> None:
        """Stop writing, drain and judge. May be called from a signal handler."""
        self._stop.put(None)

    def run(self) -> Result:
        """Raises CannotRunError, HistoryError, OSError (the history cannot be written)."""
        plan = self.plan
        run_id = secrets.randbits(64)
        names = [f"headgate-verify-{run_id:016x}-{number}" for number in range(plan.topics)]
        config: dict[str, Any] = {"bootstrap.servers": plan.bootstrap, **plan.config}
        _create(config, plan, names)
        run = Run(
            run=run_id,
            began_unix_ms=time.time_ns() // 1_000_000,
            places=[(name, partition) for name in names for partition in range(plan.partitions)],
            producers={},
            sessions={},
            endpoint=plan.bootstrap,
        )
        recorder = Recorder(plan.directory, run)
        world = World(recorder, config, acks=plan.acks, value_bytes=plan.value_bytes)
        self._say(f"writes to {', '.join(names)}; history in {plan.directory}; Ctrl-C stops writing and judges")
        writing_us, final_read = self._work(world, [f"headgate-verify-{run_id:016x}-{number}" for number in range(plan.groups)])
        recorder.end(writing_us, final_read)
        result = judge_directory(plan.directory, strict=plan.strict)
        if not plan.keep_topics and not result.exit_code:
            # Uses another client than at the beginning: the first one may wait for a broker that has ended since.
            for problem in _delete(_admin(config), names):
                self._say(f"a topic was not deleted. {problem}")
        return result

    def _work(self, world: World, groups: Sequence[str]) -> tuple[tuple[int, int], dict[int, tuple[int, int, bool]]]:
        plan = self.plan
        writers: list[Client] = [
            Writer(
                world,
                f"producer-{number}",
                idempotent=number % 2 == 0 and plan.acks == "all",
                rate=plan.rate / plan.producers,
            )
            for number in range(plan.producers)
        ]
        readers = [LiveReader(world, f"reader-{number}") for number in range(plan.readers)]
        members = [
            Member(world, f"{group[-1]}-member-{number}", group, _protocol(plan, at))
            for at, group in enumerate(groups)
            for number in range(plan.members)
        ]
        askers: list[Client] = [Asker(world, f"asker-{number}", groups, fresh=number % 2 == 1) for number in range(2)]
        clients: list[Client] = [*writers, *readers, *members, *askers]
        for client in clients:
            client.start()
        began_us = world.recorder.now_us()
        self._watch(world, clients, time.monotonic() + plan.duration_s)
        ended_us = world.recorder.now_us()
        self._say("writing has stopped; waits for the last acknowledgements")
        _end(world, writers, plan.patience_s)
        deadline = time.monotonic() + plan.patience_s
        ends = _watermarks(world, deadline, range(len(world.places)), settle_s=plan.settle_s)
        self._wait_read(world, readers, members, ends)
        _end(world, [*members, *askers, *readers], CLOSE_S)
        _ask_last_positions(world, groups, time.monotonic() + plan.settle_s)
        final = self._read_all(world, time.monotonic() + plan.patience_s)
        for client in clients:
            if client.failure is not None:
                raise client.failure
        return (began_us, ended_us), final

    def _watch(self, world: World, clients: Sequence[Client], deadline: float) -> None:
        """Print progress until the time is over, a person ends the run, or a client fails."""
        counters = world.counters
        began = before = time.monotonic()
        acked, places = 0, [0] * len(world.places)
        while not self._stopped(max(min(self.plan.progress_s, deadline - time.monotonic()), 0)):
            world.recorder.flush()
            now = time.monotonic()
            latencies, counters.latencies_us = sorted(counters.latencies_us), []
            by_place = list(counters.acked_by_place)
            progress = Progress(
                elapsed_s=now - began,
                acks_per_s=(counters.acked - acked) / (now - before),
                latency_us_p99=latencies[len(latencies) * 99 // 100] if latencies else None,
                inflight=sum(len(client._open) for client in clients if isinstance(client, Writer)),
                silent=[number for number, was in enumerate(places) if by_place[number] == was],
                places=len(places),
                errors=counters.errors,
            )
            self._say(str(progress))
            acked, places, before = counters.acked, by_place, now
            if now >= deadline or any(client.failure for client in clients):
                return

    def _stopped(self, within_s: float) -> bool:
        """True if a person ends the run within this time."""
        try:
            self._stop.get(timeout=within_s)
        except Empty:
            return False
        return True

    def _wait_read(
        self, world: World, readers: Sequence[LiveReader], members: Sequence[Member], ends: Mapping[int, tuple[int, int]]
    ) -> None:
        """Let live readers and groups reach the end. If one does not, that is recorded as an event: a time limit is no proof."""
        deadline = time.monotonic() + self.plan.settle_s
        wanted = {place: high - 1 for place, (low, high) in ends.items() if high > low}

        def behind() -> bool:
            groups = {member.group for member in members}
            last = [reader.last for reader in readers]
            last += [
                [max(member.last[place] for member in members if member.group == group) for place in range(len(world.places))]
                for group in groups
            ]
            return any(line[place] < offset for line in last for place, offset in wanted.items())

        while behind() and time.monotonic() < deadline:
            time.sleep(0.1)
        for reader in readers:
            for place, offset in wanted.items():
                if reader.last[place] < offset:
                    topic, partition = world.places[place]
                    text = f"did not come to the end of {topic}/{partition}. at=`{reader.last[place]}` end=`{offset}`"
                    world.error(reader.name, text)

    def _read_all(self, world: World, deadline: float) -> dict[int, tuple[int, int, bool]]:
        """Read everything, from new watermarks. A stalled read is restarted until the deadline."""
        self._say("reads everything once more")
        number = 0
        final: dict[int, tuple[int, int, bool]] = {}
        while len(final) < len(world.places) and (not number or time.monotonic() < deadline):
            missing = [place for place in range(len(world.places)) if place not in final]
            ends = _watermarks(world, deadline, missing, settle_s=0)
            reader = FinalReader(world, ends, number)
            number += 1
            reader.start()
            while reader._thread.is_alive() and time.monotonic() < min(reader.moved_at + STALL_S, deadline + STALL_S):
                time.sleep(0.05)
            reader.stop()
            reader.join(time.monotonic() + CLOSE_S)
            if reader.failure is not None:
                raise reader.failure
            if len(reader.done) == len(ends):
                final |= {place: (low, high, True) for place, (low, high) in ends.items()}
            elif time.monotonic() < deadline:
                world.recorder.given_up(reader.session)
            else:
                final |= {place: (low, high, place in reader.done) for place, (low, high) in ends.items()}
        return final


def _end(world: World, clients: Sequence[Client], patience_s: float) -> None:
    for client in clients:
        client.stop()
    deadline = time.monotonic() + patience_s
    for client in clients:
        if not client.join(deadline):
            world.error(client.name, "does not end; it is left alone")


def _protocol(plan: Plan, number: int) -> str:
    """The protocol of a group."""
    return ("classic", "consumer")[number % 2] if plan.group_protocol == "both" else plan.group_protocol


def _ask_last_positions(world: World, groups: Sequence[str], deadline: float) -> None:
    """Query once more each group's positions, which no member changes any more."""
    for group in groups:
        consumer = Consumer(world.client_config("positions", group_id=group, enable_auto_commit=False))
        try:
            while time.monotonic() < deadline:
                try:
                    if len(ask_positions(world, consumer, group, world.partitions(), "positions")) == len(world.places):
                        break
                except KafkaException as error:
                    world.error("positions", error)
                time.sleep(0.2)
        finally:
            consumer.close()


def _watermarks(world: World, deadline: float, places: Sequence[int], *, settle_s: float) -> dict[int, tuple[int, int]]:
    """Query low and high watermarks until all have been answered, but not after the deadline.

    Args:
        settle_s: longest time for which to query again until they cover all acknowledged records.
    """
    found: dict[int, tuple[int, int]] = {}
    settles = time.monotonic() + settle_s
    consumer = Consumer(world.client_config("watermarks", group_id="headgate-verify-unused", enable_auto_commit=False))
    try:
        while True:
            for place in places:
                try:
                    found[place] = ask_watermark(world, consumer, place, "watermarks")
                except KafkaException as error:
                    world.error("watermarks", error)
            now = time.monotonic()
            covered = all(place in found and found[place][1] > world.counters.offset_by_place[place] for place in places)
            if covered or now > deadline or (len(found) == len(places) and now > settles):
                return found
            time.sleep(0.2)
    finally:
        consumer.close()


def _admin(config: Mapping[str, Any]) -> AdminClient:
    bootstrap = config["bootstrap.servers"]
    try:
        admin = AdminClient({"log_level": 0, **config})
        admin.list_topics(timeout=ANSWER_S)
    except (KafkaException, ValueError, TypeError) as error:
        raise CannotRunError(f"the endpoint does not answer. bootstrap=`{bootstrap}` error=`{_text(error)}`") from error
    return admin


def _text(error: BaseException) -> str:
    inner = error.args[0] if error.args else error
    return inner.str() if hasattr(inner, "str") else str(inner)


def _create(config: Mapping[str, Any], plan: Plan, names: Sequence[str]) -> None:
    """Create the topics and wait until they are known. If the endpoint is slow, a new client asks again."""
    wanted = {
        name: NewTopic(
            name, num_partitions=plan.partitions, replication_factor=plan.replication_factor, config=dict(plan.topic_config)
        )
        for name in names
    }
    deadline = time.monotonic() + plan.patience_s
    while True:
        admin = _admin(config)
        created = admin.create_topics(list(wanted.values()), operation_timeout=CREATE_S)
        wait(created.values(), timeout=CREATE_S)
        for name, future in created.items():
            error = future.exception() if future.done() else None
            if future.done() and (error is None or _is(error, KafkaError.TOPIC_ALREADY_EXISTS)):
                # TOPIC_ALREADY_EXISTS answers a request that was sent again: the names are random.
                wanted.pop(name)
            elif error is not None and not _is(error, *TRY_AGAIN):
                raise CannotRunError(f"a topic cannot be created. error=`{_text(error)}`") from error
        if not wanted and _are_known(admin, plan, names):
            return
        if time.monotonic() > deadline:
            raise CannotRunError(f"the topics do not appear. topics=`{', '.join(names)}` waited_s=`{plan.patience_s}`")


def _are_known(admin: AdminClient, plan: Plan, names: Sequence[str]) -> bool:
    for _ in range(LOOKS):
        known = admin.list_topics(timeout=CREATE_S).topics
        if all(name in known and len(known[name].partitions) == plan.partitions for name in names):
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def _is(error: BaseException, *codes: int) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in codes


def _delete(admin: AdminClient, names: Sequence[str]) -> list[str]:
    """Delete the topics. Returns the errors: the verdict does not depend on them."""
    problems = []
    deleted = admin.delete_topics(list(names), operation_timeout=CREATE_S)
    wait(deleted.values(), timeout=CREATE_S)
    for name, future in deleted.items():
        if not future.done():
            problems.append(f"topic=`{name}` no answer within seconds=`{CREATE_S}`")
        elif (error := future.exception()) is not None:
            problems.append(f"topic=`{name}` error=`{_text(error)}`")
    return problems
