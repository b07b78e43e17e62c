"""Live topics in Dagster: a resource that produces, consumes and measures lag, and sensors that start runs.

A sensor's decision is pure: what was seen last time (its cursor) and what is seen now give the runs and the next cursor. A run key
names the seen state, so that Dagster starts one run for it, however often a sensor asks.
"""

# Dagster reads annotations at run time, so they are not postponed here.
import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import dagster as dg
from pydantic import Field

import headgate
from headgate.assets.resources import ClusterResource
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.cluster import CALL_MS, GroupLag
from headgate.pipelines.loop import call

if TYPE_CHECKING:
    from headgate.broker.client import ConsumerRecord
    from headgate.broker.client.types import Start

RECORDS_MAX = 100_000
"""Records that one `consume` returns at most, unless it is told another number: they are all in memory."""
RUNS_PER_TICK_MAX = 100
LOOK_EVERY_S = 30
OFFSETS_TAG = "headgate/offsets"
TOPIC_TAG = "headgate/topic"
GATE_TAG = "headgate/gate"
LAG_TAG = "headgate/lag"


class Message(NamedTuple):
    """A record to send. Text is sent as UTF-8, any other value than bytes as JSON. `timestamp_ms`: default: now."""

    value: Any
    key: bytes | str | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


class TopicsResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The topics of a Headgate cluster. Methods raise HeadgateError after half a minute of retries."""

    address: str = Field(default="127.0.0.1:9095", description="host:grpc_port of any broker, or several with commas between")

    def produce(self, topic: str, messages: Iterable[Any]) -> dict[int, int]:
        """Send messages, and wait until they are durable. Returns the offset behind the last one, by partition.

        Args:
            messages: `Message`s, or bare values.
        """

        async def work() -> dict[int, int]:
            ends: dict[int, int] = {}
            async with headgate.Producer(self.address) as producer:
                sent = []
                for given in messages:
                    message = given if isinstance(given, Message) else Message(given)
                    sent.append(
                        await producer.send(
                            topic,
                            _bytes(message.value),
                            key=None if message.key is None else _bytes(message.key),
                            headers=message.headers,
                            timestamp_ms=message.timestamp_ms,
                        )
                    )
                for delivery in await asyncio.gather(*sent):
                    ends[delivery.partition] = max(ends.get(delivery.partition, 0), delivery.offset + 1)
            return ends

        return call(work())

    def consume(
        self,
        topic: str,
        start: Literal["earliest"] | Mapping[int, int] = "earliest",
        end: Mapping[int, int] | None = None,
        *,
        limit: int = RECORDS_MAX,
    ) -> "list[ConsumerRecord]":
        """Read the records that are there, in offset order per partition. Never waits for records to come.

        Args:
            start: the first offset, by partition; other partitions are not read.
            end: the offset behind the last record, by partition. Default: the present end.
            limit: at most so many records.
        """

        async def work() -> "list[ConsumerRecord]":
            ends = dict(self.ends(topic) if end is None else end)
            found: list[ConsumerRecord] = []
            async with headgate.Consumer(self.address, timeout_ms=CALL_MS) as consumer:
                begin: dict[int, Start] = dict.fromkeys(ends, start) if start == "earliest" else dict(start)
                starts = {headgate.TopicPartition(topic, partition): offset for partition, offset in begin.items()}
                begins = await consumer.offsets(starts)
                left = {
                    partition: ends[partition.partition]
                    for partition, first in begins.items()
                    if first < ends.get(partition.partition, 0)
                }
                await consumer.assign({partition: begins[partition] for partition in left})
                while len(found) < limit and any(consumer.position(partition) < until for partition, until in left.items()):
                    for record in await consumer.poll(timeout_ms=CALL_MS, records_max=limit):
                        if record.offset < ends[record.partition] and len(found) < limit:
                            found.append(record)
            return found

        return call(work())

    def ends(self, topic: str) -> dict[int, int]:
        """The offset behind the last readable record, by partition. Raises InvalidError for a topic that does not exist."""
        found = self._cluster.topic(topic)
        if found is None:
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"no such topic. topic=`{topic}`")
        return {partition.number: partition.high_watermark for partition in found.partitions}

    def lags(self, topic: str) -> dict[str, GroupLag]:
        """The consumer groups with positions in a topic."""
        return self._cluster.lags(topic)

    def lag(self, topic: str, group: str) -> int:
        """Records that a group has not read. Raises InvalidError for a group without a position in the topic."""
        found = self.lags(topic).get(group)
        if found is None:
            raise InvalidError(
                Reason.GROUP_ID_NOT_FOUND, f"the group has no position in the topic. group=`{group}` topic=`{topic}`"
            )
        return found.lag

    def filled_gates(self, topic: str) -> list[str]:
        """The gates of a topic whose history is there, by id: ``<flood>.<partition>``."""
        return sorted(name for name, gate in self._cluster.gates(topic).items() if str(gate.state) == "filled")

    @property
    def _cluster(self) -> ClusterResource:
        return ClusterResource(address=self.address)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


# -- sensors


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecords:
    """A run for every `at_least` new records or more. The run's tag `headgate/offsets` has their range: `offsets_of` reads it."""

    at_least: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """A run when a group's lag rises above a number of records; the next one after it was below half of it."""

    group: str
    above: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledGates:
    """A run for each gate that is filled: for history that entered the topic, by whatever program."""


Trigger: TypeAlias = NewRecords | Lag | FilledGates


def topic_sensor(
    topic: str,
    trigger: Trigger,
    *,
    target: Any,
    name: str | None = None,
    every_s: int = LOOK_EVERY_S,
    running: bool = True,
) -> dg.SensorDefinition:
    """A sensor on a topic. What was there before its first look starts no run.

    Args:
        target: the job or assets to run, as of `dagster.sensor`.
        name: default: of topic and trigger.
        running: it runs from the start, without a click.
    """
    kind = {NewRecords: "records", Lag: "lag", FilledGates: "gates"}[type(trigger)]

    @dg.sensor(
        name=name or f"{''.join(letter if letter.isalnum() else '_' for letter in topic)}_{kind}",
        target=target,
        minimum_interval_seconds=every_s,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=f"Starts runs for the topic `{topic}`: {trigger}.",
    )
    def on_topic(context: dg.SensorEvaluationContext, topics: TopicsResource) -> dg.SensorResult | dg.SkipReason:
        try:
            now = look(topics, topic, trigger)
        except HeadgateError as error:
            return dg.SkipReason(error.message)
        before = None if context.cursor is None else json.loads(context.cursor)
        requests, cursor = decide(topic, trigger, before, now)
        reason = None if requests else dg.SkipReason(f"nothing new: {json.dumps(now)[:200]}")
        return dg.SensorResult(run_requests=requests, cursor=json.dumps(cursor), skip_reason=reason)

    return on_topic


def look(topics: TopicsResource, topic: str, trigger: Trigger) -> Any:
    """What a trigger looks at, as JSON values. Raises HeadgateError."""
    if isinstance(trigger, NewRecords):
        return {str(partition): end for partition, end in topics.ends(topic).items()}
    if isinstance(trigger, Lag):
        found = topics.lags(topic).get(trigger.group)
        return [0, 0] if found is None else [found.lag, found.position]
    return topics.filled_gates(topic)


def decide(topic: str, trigger: Trigger, before: Any, now: Any) -> tuple[list[dg.RunRequest], Any]:
    """The runs to start, and the next cursor. `before`: the last cursor, None at the first look."""
    if isinstance(trigger, NewRecords):
        return _new_records(topic, trigger, before, now)
    if isinstance(trigger, Lag):
        lag, position = now
        above = bool(before) if lag > trigger.above // 2 else False
        if lag <= trigger.above or above:
            return [], above
        tags = {TOPIC_TAG: topic, LAG_TAG: str(lag)}
        return [dg.RunRequest(run_key=f"{topic}/lag/{trigger.group}/{position}/{lag}", tags=tags)], True
    if before is None:
        return [], now
    seen = set(before)
    fresh = [gate for gate in now if gate not in seen][:RUNS_PER_TICK_MAX]
    requests = [dg.RunRequest(run_key=f"{topic}/gate/{gate}", tags={TOPIC_TAG: topic, GATE_TAG: gate}) for gate in fresh]
    return requests, sorted({*(seen & set(now)), *fresh})


def _new_records(
    topic: str, trigger: NewRecords, before: Mapping[str, int] | None, now: Mapping[str, int]
) -> tuple[list[dg.RunRequest], Mapping[str, int]]:
    if before is None or any(now.get(partition, 0) < end for partition, end in before.items()):
        return [], now  # the first look, or a topic that was deleted and created again
    ranges = {partition: [before.get(partition, 0), end] for partition, end in now.items() if end > before.get(partition, 0)}
    if sum(end - start for start, end in ranges.values()) < trigger.at_least:
        return [], before
    state = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()[:16]
    tags = {TOPIC_TAG: topic, OFFSETS_TAG: json.dumps(ranges)}
    return [dg.RunRequest(run_key=f"{topic}/records/{state}", tags=tags)], now


def offsets_of(tags: Mapping[str, str]) -> tuple[dict[int, int], dict[int, int]]:
    """The start and the end, by partition, of the new records for which a sensor started a run: arguments of `consume`.

    Raises InvalidError for tags of another run.
    """
    if OFFSETS_TAG not in tags:
        raise InvalidError(Reason.INVALID_REQUEST, f"the run was not started by a sensor on new records: no tag {OFFSETS_TAG}")
    ranges = {int(partition): (start, end) for partition, (start, end) in json.loads(tags[OFFSETS_TAG]).items()}
    return {partition: start for partition, (start, _) in ranges.items()}, {
        partition: end for partition, (_, end) in ranges.items()
    }
