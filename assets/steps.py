"""The work of a flood's four steps: plan, raise brokers, load history, release brokers.

Each step can run alone and again. The reservation and the gates of a step end by themselves when its process dies, and are
released at once while the process lives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import dagster as dg

from headgate.assets.kept import Kept
from headgate.assets.metadata import ADDED, BROKER_SECONDS, SECONDS, SIZE, loaded_metadata, short_keys
from headgate.assets.names import topic_key
from headgate.assets.owners import HOLD_UNTIL_TAG, Owner
from headgate.assets.progress import Follower
from headgate.assets.recorder import RECORDERS
from headgate.assets.reservations import RESERVATIONS
from headgate.assets.resources import ClusterResource, FleetResource
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.otherwise import declared_otherwise
from headgate.pipelines.floods.plan import PartitionSize, PastRun, Plan, too_late
from headgate.pipelines.floods.spans import TimeSpan, deadline_at, gate_id, gates_of, source_path, spans_of
from headgate.pipelines.floods.spread import Part, next_merge, next_split
from headgate.pipelines.floods.standing import Topic, check_topic, loaded_rows, topic_of
from headgate.pipelines.room import ROOM, ROOM_OFFSETS

if TYPE_CHECKING:
    from headgate.broker.client import Gate
    from headgate.pipelines.floods.planning import Analyse

Context: TypeAlias = dg.OpExecutionContext | dg.AssetExecutionContext
POLL_S = 0.5
LEAVE_WAIT_S = 90.0
"""Longest time that a run watches the brokers leave, in seconds. They leave without it too."""
PAST_EVENTS = 200
RESHARDS_MAX = 64
_MAX_RUN_S = 24 * 3600.0


@dataclass(slots=True)
class Run:
    """One step of one flood in one Dagster run."""

    flood: Flood
    context: Context
    cluster: ClusterResource
    rows_before: Mapping[str, int] | None = None
    """The rows of each partition that were in the topic when the step looked first; None before that."""

    @property
    def owner(self) -> Owner:
        """The owner of the run's reservation."""
        return Owner.of(self.flood.name, self.context.run.run_id, self.context.run.tags)

    @property
    def topic_key(self) -> dg.AssetKey:
        """The asset of the flood's topic."""
        return topic_key(self.flood)

    @property
    def kept(self) -> Kept:
        """The files of this run."""
        return Kept(self.context.instance, self.flood, self.context.run.run_id)

    @property
    def keys(self) -> list[str]:
        """The partitions of this run. Raises InvalidError for a run without any."""
        if not (self.context.has_partition_key or self.context.has_partition_key_range):
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"a flood comes in by partitions: launch it for some. flood=`{self.flood.name}` by=`{self.flood.partitions.by}`",
            )
        return sorted(self.context.partition_keys)

    def say(self, text: str) -> None:
        """A line in the run's log."""
        self.context.log.info(text)

    def topic(self) -> Topic | None:
        """The topic as the flood finds it; None if it does not exist."""
        found = self.cluster.topic(self.flood.topic)
        return None if found is None else topic_of(found, self.cluster.gates(self.flood.topic).values())

    def pending(self) -> list[TimeSpan]:
        """The partitions of which rows are missing in the topic, oldest first. Raises HeadgateError."""
        from headgate.pipelines.floods.planning import pending

        topic = self.topic()
        if self.rows_before is None:
            self.rows_before = self._rows(topic)
        return pending(self.flood, self.keys, topic, datetime.now(UTC))

    def rows(self) -> dict[str, int]:
        """The rows of each partition that are in the topic, with the late ones, by key."""
        return self._rows(self.topic())

    def _rows(self, topic: Topic | None) -> dict[str, int]:
        return {} if topic is None else {key: loaded_rows(self.flood, key, topic) for key in self.keys}

    def newly_filled(self) -> dict[str, int]:
        """The partitions that got rows since this step looked first, each with all its rows in the topic. Raises HeadgateError."""
        before = self.rows_before
        return {} if before is None else {key: rows for key, rows in self.rows().items() if rows > before.get(key, 0)}

    def figures(self, key: str, rows: int) -> dict[str, Any]:
        """The metadata of a partition that this run loaded; empty for any other. `rows`: all those of the partition in the topic,
        of which this run may have added only the late ones."""
        loaded = self.kept.loaded(key)
        return {} if loaded is None else loaded_metadata(loaded, rows, str(self.kept.certificate_path(key)))

    def loaded(self) -> list[tuple[TimeSpan, Gate]]:
        """The partitions that are in the topic already, oldest first, with their gates."""
        gates = self.cluster.gates(self.flood.topic)
        spans = spans_of(self.flood.partitions, sorted(filled_keys(self.flood, self.keys, gates)))
        return [(span, gates[gate_id(self.flood, span.key)]) for span in spans]

    def loaded_otherwise(self, loaded: Sequence[tuple[TimeSpan, Gate]]) -> list[str]:
        """Messages about partitions that were loaded under another definition of the flood."""
        from headgate.pipelines.floods.job import job_of

        found: dict[str, list[str]] = {}
        for span, gate in loaded:
            if parts := job_of(self.flood, span, cluster="", partitions=1).differs_from(gate):
                found.setdefault(", ".join(parts), []).append(span.key)
        return declared_otherwise(found)

    def counted(self, loaded: Sequence[tuple[TimeSpan, Gate]]) -> tuple[dict[str, PartitionSize], list[str]]:
        """The current content of the source for loaded partitions, by key; and messages about partitions whose metadata do not
        tell."""
        from headgate.pipelines.floods.measure import can_count, measure

        found: dict[str, PartitionSize] = {}
        unknown: dict[str, list[str]] = {}
        for _, group in groupby((span for span, _ in loaded), partial(source_path, self.flood)):
            spans = list(group)
            why = "only Spark could count its rows"
            try:
                sizes = measure(self.flood, spans, datetime.now(UTC)) if can_count(self.flood) else []
            except HeadgateError as error:
                # The source may be gone by now.
                sizes, why = [], f"it cannot be read ({error.reason})"
            found.update((size.key, size) for size in sizes if size.exact)
            if missing := [span.key for span in spans if span.key not in found]:
                unknown.setdefault(why, []).extend(missing)
        return found, [
            f"not compared with the source: {why}. partitions=`{', '.join(short_keys(keys))}`" for why, keys in unknown.items()
        ]

    def plan(self) -> Plan:
        """The plan of this run; made now when the run has none."""
        plan = self.kept.plan()
        if plan is None:
            self.say("this run has no plan yet: it is made now")
            plan = make_plan(self)
        return plan

    def max_run_s(self) -> float:
        """No renewal later than this, in seconds after a step began."""
        return float(self.context.run.tags.get("dagster/max_runtime", _MAX_RUN_S))


def filled_keys(flood: Flood, keys: Sequence[str], gates: Mapping[str, Any]) -> set[str]:
    """The partitions whose gate is filled."""
    return set(gates_of(flood, keys, (name for name, gate in gates.items() if str(gate.state) == "filled")).values())


# -- plan


def make_plan(run: Run, analyse: Analyse | None = None) -> Plan:
    """Judge the source and forecast.

    Args:
        analyse: judges expressions with Spark; None leaves them to the load.

    Raises:
        HeadgateError: no source, columns that do not fit, a topic of another shape, too little time.
    """
    from headgate.pipelines.floods import planning

    flood = run.flood
    now = datetime.now(UTC)
    started = run.context.instance.get_run_stats(run.context.run.run_id).launch_time
    began = datetime.fromtimestamp(started, UTC) if started else now
    plan = planning.make_plan(
        flood, run.keys, run.topic(), now, deadline=deadline_at(flood, began), past=past_runs(run), analyse=analyse
    )
    run.kept.keep_plan(plan)
    check_deadline(plan, now)
    return plan


def check_deadline(plan: Plan, now: datetime) -> None:
    """Raise InvalidError when the deadline of a plan cannot be kept."""
    late = too_late(plan, now)
    if late is not None:
        raise InvalidError(Reason.POLICY_VIOLATION, late)


def past_runs(run: Run) -> list[PastRun]:
    """The figures of earlier runs of this flood, the newest first: the sums over their partitions."""
    found: dict[str, list[PastRun]] = {}
    for record in run.context.instance.fetch_materializations(run.topic_key, limit=PAST_EVENTS).records:
        materialization = record.asset_materialization
        values = {} if materialization is None else {name: one.value for name, one in materialization.metadata.items()}
        with suppress(KeyError, ValueError):  # an event of another version, or of a partition that was in the topic before
            past = PastRun(
                rows=int(str(values[ADDED])),
                size_bytes=int(str(values[SIZE])),
                seconds=float(str(values[SECONDS])),
                broker_seconds=float(str(values[BROKER_SECONDS])),
            )
            found.setdefault(record.run_id, []).append(past)
    return [
        PastRun(
            rows=sum(one.rows for one in each),
            size_bytes=sum(one.size_bytes for one in each),
            seconds=sum(one.seconds for one in each),
            broker_seconds=sum(one.broker_seconds for one in each),
        )
        for each in found.values()
    ]


# -- capacity


def ensure_topic(run: Run) -> int:
    """Create the topic if it does not exist. Returns its number of partitions. Raises InvalidError when it differs from the
    declaration."""
    flood = run.flood
    topic = run.topic()
    if topic is None:
        run.cluster.create_topic(flood.topic, flood.topic_partitions, {ROOM: str(ROOM_OFFSETS)})
        run.say(f"topic {flood.topic} was made")
        topic = run.topic()
        assert topic is not None, "it was just made"
    # Another client may have made it meanwhile.
    check_topic(flood, topic)
    return topic.partitions


def hold(run: Run, brokers: int) -> int:
    """Reserve brokers for this run, and renew the reservation until the run ends or dies. Returns the reserved number.

    When the cluster does not allow that number, the reservation takes the largest allowed one. Raises InvalidError if the flood
    says ``short: fail``, or if every number is refused.
    """
    owner = run.owner
    ttl_ms, most_s, say = reservation_ttl_ms(run), run.max_run_s(), run.context.log.warning
    reserved = brokers
    while True:
        try:
            RESERVATIONS.hold(run.cluster, owner.reservation_id, reserved, ttl_ms, owner.text, most_s, say)
            break
        except InvalidError as error:
            if run.flood.brokers.short == "fail" or reserved == 1:
                raise
            if reserved == brokers:
                say(f"{error.message} rule=`short: run`: the flood asks for as many as it may")
            reserved -= 1
    RECORDERS.begin(owner.reservation_id, run.flood.topic, run.cluster.desired, run.cluster.view)
    return reserved


def reservation_ttl_ms(run: Run) -> int:
    """Time that the brokers outlive this run, in ms: longer when the run raises them ahead of an occurrence."""
    ttl_ms = run.flood.reservation_ttl_ms
    text = run.context.run.tags.get(HOLD_UNTIL_TAG)
    if text is None:
        return ttl_ms
    left = datetime.fromisoformat(text) - datetime.now(UTC)
    return ttl_ms + max(0, int(left.total_seconds() * 1000))


def wait_for_brokers(run: Run, fleet: FleetResource, brokers: int, follow: Follower) -> int:
    """Wait until this number of brokers serves, or the flood's limit ends. Returns the number of serving brokers.

    Raises InvalidError when there are fewer and the flood says ``short: fail``.
    """
    limits = run.flood.brokers
    running = fleet.fleet(run.cluster)
    until = time.monotonic() + limits.wait_ms / 1000
    asked = 0
    while True:
        state = run.cluster.desired()
        if not running.follows and asked != state.brokers:
            asked = state.brokers
            note = running.scale(asked).note
            run.say(f"{running.name}: brokers asked for: {asked}" + (f": {note}" if note else ""))
        if state.live_brokers >= brokers:
            run.say(f"brokers that serve: {state.live_brokers}")
            return state.live_brokers
        if time.monotonic() > until:
            text = (
                f"the fleet did not reach the asked size. fleet=`{running.name}` asked=`{brokers}` serving=`{state.live_brokers}`"
            )
            if limits.short == "fail" or state.live_brokers == 0:
                raise InvalidError(Reason.POLICY_VIOLATION, f"{text} rule=`short: {limits.short}`")
            run.context.log.warning(f"{text} rule=`short: run`: the flood runs with what came")
            return state.live_brokers
        text = f"waiting for brokers: {state.live_brokers} of {brokers} serve"
        follow.at("waiting for brokers", lambda seconds, text=text: f"{text}, {seconds:.0f} s so far")  # type: ignore[misc]
        time.sleep(POLL_S)


def spread(run: Run) -> list[str]:
    """Split the topic's segments so that every broker leads a part of it. Returns the actions as text; a failure is logged and
    skipped."""
    done: list[str] = []
    for _ in range(RESHARDS_MAX):
        view = run.cluster.view()
        brokers = [member.broker_id for member in view.members if not member.draining]
        step = next_split(_parts(run.flood.topic, view), brokers)
        if step is None:
            break
        try:
            run.cluster.split(step.segment, step.at, step.broker)
        except HeadgateError as error:
            # The flood works without it: the leader splits by load.
            run.context.log.warning(f"segment was not split: {error.message}")
            break
        done.append(f"segment {step.segment} split at partition {step.at} for broker {step.broker}")
    return done


def _parts(topic: str, view: Any) -> list[Part]:
    return [
        Part(id=segment.id, first=segment.first_partition, end=segment.end_partition, broker=segment.broker_id)
        for segment in view.segments
        if segment.topic == topic
    ]


# -- release


def let_go(run: Run) -> bool:
    """Stop renewals and release the reservation, unless other runs of the same backfill or occurrence need it.

    Never raises: a reservation that is not released ends by itself.
    """
    owner = run.owner
    RECORDERS.end(owner.reservation_id)
    RESERVATIONS.drop(owner.reservation_id)
    return release_if_last(run)


def release_if_last(run: Run) -> bool:
    """Release the reservation unless another run needs it. Returns True if it was released. Never raises."""
    owner = run.owner
    if run.context.run.tags.get(HOLD_UNTIL_TAG) is None and owner.needs_it(
        run.context.instance, datetime.now(UTC), without=run.context.run.run_id
    ):
        run.say(f"reservation {owner.reservation_id} is left to the other runs of {owner.kind} {owner.id}")
        return False
    try:
        run.cluster.release(owner.reservation_id)
    except HeadgateError as error:
        run.context.log.warning(f"reservation could not be released, it ends by itself: {error.message}")
        return False
    return True


def watch_brokers_go(run: Run, fleet: FleetResource, follow: Follower) -> int:
    """Wait until no surplus broker is left and each leaving broker has handed over its partitions. Returns the number of serving
    brokers."""
    running = fleet.fleet(run.cluster)
    until = time.monotonic() + LEAVE_WAIT_S
    asked = 0
    while True:
        state = run.cluster.desired()
        if not running.follows and asked != state.brokers:
            asked = state.brokers
            running.scale(asked)
        # A broker that is told to leave no longer serves, but leads until others do.
        gone = state.live_brokers <= state.brokers and not any(member.draining for member in run.cluster.view().members)
        if gone or time.monotonic() > until:
            return state.live_brokers
        text = f"brokers leave: {state.live_brokers} serve, {state.brokers} are to stay"
        follow.at("waiting for brokers to leave", lambda seconds, text=text: f"{text}, {seconds:.0f} s so far")  # type: ignore[misc]
        time.sleep(POLL_S)


def merge(run: Run) -> int:
    """Merge neighbouring segments of the topic at one broker. Returns the number of merges."""
    for done in range(RESHARDS_MAX):
        pair = next_merge(_parts(run.flood.topic, run.cluster.view()))
        if pair is None:
            return done
        try:
            run.cluster.merge(*pair)
        except HeadgateError as error:
            run.context.log.warning(f"segments were not merged: {error.message}")
            return done
    return RESHARDS_MAX
