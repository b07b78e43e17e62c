"""The four steps of a flood's run: plan, raise brokers, load history, give brokers back. For Dagster's asset and for the command.

Each step can run alone and again. The reservation and the gates of a step end by themselves when its process dies, and are
released at once while the process lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.calls import apart
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.otherwise import changed_since
from headgate.pipelines.floods.outcome import Outcome
from headgate.pipelines.floods.plan import Plan, covered, too_late
from headgate.pipelines.floods.run import Run
from headgate.pipelines.floods.spans import TimeSpan, deadline_at
from headgate.pipelines.floods.spark import SparkCalls
from headgate.pipelines.floods.spread import Part, next_merge, next_split
from headgate.pipelines.floods.standing import check_topic
from headgate.pipelines.follower import Follower, Load
from headgate.pipelines.reservations import RESERVATIONS
from headgate.pipelines.room import ROOM, ROOM_OFFSETS

if TYPE_CHECKING:
    from headgate.pipelines.columns.memory import Need
    from headgate.pipelines.fleets.interface import Fleet
    from headgate.pipelines.floods.planning import Analyse
    from headgate.pipelines.progress import Progress

POLL_S = 0.5
FEW = 10
"""Partitions of a load up to which each change of its work gets a line of its own. With more of them, small ones, the log would be
nothing else."""
LEAVE_WAIT_S = 90.0
"""Longest time that a run watches the brokers leave, in seconds. They leave without it too."""
RESHARDS_MAX = 64
_NUMBERS = (Reason.POLICY_VIOLATION, Reason.INVALID_REQUEST)
"""Reasons with which a cluster refuses the number of brokers: a smaller one may be allowed."""


# -- plan


def judge(run: Run, spark: SparkCalls, follow: Follower) -> tuple[Plan, Need]:
    """Judge the source, forecast, and say both. Returns the plan, and the memory that Spark's tasks need.

    Raises:
        HeadgateError: no source, columns that do not fit, a topic of another shape, too little time.
    """

    def analyse(flood: Flood, span: TimeSpan) -> None:
        follow.at(f"letting Spark judge the expressions on {span.key}")
        spark.analyse(flood, span)

    plan = apart(partial(make_plan, run, analyse), spark.cancel)
    need = spark.need(plan.size_bytes)
    if need.short is not None:
        run.warn(need.short)
    for text in plan.stands:
        run.say(text)
    for text in plan.notes:
        run.warn(text)
    run.say(f"planned: {plan.rows:,} rows, {plan.size_bytes:,} bytes, brokers: {plan.brokers}, {plan.seconds:g} s ({plan.basis})")
    run.say(f"lanes: {plan.lanes} ({plan.lanes_why})")
    return plan, need


def make_plan(run: Run, analyse: Analyse | None = None) -> Plan:
    """Make the plan of a run and keep it. Raises as `judge`.

    Args:
        analyse: judges expressions with Spark; None leaves them to the load.
    """
    from headgate.pipelines.floods import planning

    run.check_keys()
    now, topic = datetime.now(UTC), run.topic()
    if topic is not None and run.flood.verify:
        _check_readable(run)
    plan = planning.make_plan(
        run.flood, run.keys, topic, now, deadline=deadline_at(run.flood, run.began), past=run.past_runs(), analyse=analyse,
        readers=run.readers(),
    )  # fmt: skip
    run.keep_plan(plan)
    if (late := too_late(plan, now)) is not None:
        raise InvalidError(Reason.POLICY_VIOLATION, late)
    return plan


def _check_readable(run: Run) -> None:
    try:
        run.cluster.check_readable(run.flood.topic)
    except InvalidError as error:
        raise InvalidError(
            error.reason, f"a load is read back, which this user may not (declare `verify: false`, or allow it): {error.message}"
        ) from error


def plan_of(run: Run) -> Plan:
    """The plan of this run; made now when the run has none."""
    plan = run.kept_plan()
    if plan is None:
        run.say("this run has no plan yet: it is made now")
        plan = make_plan(run)
    return plan


# -- capacity


@dataclass(frozen=True, slots=True)
class Raised:
    """Brokers of a run: `reserved`, `serving` after `waited_s` seconds, and what was done to spread the topic over them."""

    reserved: int
    serving: int
    waited_s: float
    splits: Sequence[str]


def raise_brokers(run: Run, fleet: Callable[[], Fleet], follow: Follower) -> Raised | None:
    """Reserve brokers, wait until they serve, and spread the topic's segments over them. Returns None when there is nothing to add.

    Raises:
        InvalidError: the reservation is refused, the topic has another shape. RetryError: too few brokers came in time, and the
            flood says ``short: fail``; the cluster does not answer.
    """
    plan = apart(partial(plan_of, run))
    if plan.rows == 0:
        run.say("nothing to add: no brokers are asked for")
        return None
    ensure_topic(run)
    began = time.monotonic()
    reserved = hold(run, plan.brokers, plan.lanes)
    serving = wait_for_brokers(run, fleet(), reserved, follow)
    waited_s = time.monotonic() - began
    follow.at("spreading the topic's segments")
    return Raised(reserved, serving, waited_s, spread(run))


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


def hold(run: Run, brokers: int, lanes: int) -> int:
    """Reserve brokers and lanes for this run, and renew the reservation until the run ends or dies. Returns the reserved number
    of brokers.

    When the cluster does not allow that number, the reservation takes the largest allowed one. Raises InvalidError if the flood
    says ``short: fail``, or if every number is refused.
    """
    reserved, had_asked = brokers, run.asked
    while True:
        try:
            run.asked = True  # also when the answer is lost
            RESERVATIONS.hold(run.cluster, run.reservation_id, reserved, run.ttl_ms, run.owner, run.most_s, run.warn, lanes)
            break
        except InvalidError as error:
            run.asked = had_asked
            if run.flood.brokers.short == "fail" or reserved == 1 or error.reason not in _NUMBERS:
                raise
            if reserved == brokers:
                run.warn(f"{error.message} rule=`short: run`: the flood asks for as many as it may")
            reserved -= 1
    run.watch()
    return reserved


def wait_for_brokers(run: Run, running: Fleet, brokers: int, follow: Follower) -> int:
    """Wait until this number of brokers serves, or the flood's limit ends. Returns the number of serving brokers.

    Raises RetryError when there are fewer and the flood says ``short: fail``, or when there is none.
    """
    limits = run.flood.brokers
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
                raise RetryError(Reason.NOT_READY, f"{text} rule=`short: {limits.short}`")
            run.warn(f"{text} rule=`short: run`: the flood runs with what came")
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
            run.warn(f"segment was not split: {error.message}")
            break
        done.append(f"segment {step.segment} split at partition {step.at} for broker {step.broker}")
    return done


def _parts(topic: str, view: Any) -> list[Part]:
    return [
        Part(id=segment.id, first=segment.first_partition, end=segment.end_partition, broker=segment.broker_id)
        for segment in view.segments
        if segment.topic == topic
    ]


# -- load


def load(run: Run, spark: SparkCalls, follow: Follower) -> Outcome:
    """Compare the source with the topic and load what is missing. Returns what was found. Raises HeadgateError."""
    plan = apart(partial(plan_of, run))
    pending, loaded = apart(run.pending), run.loaded()
    late = {span.key for span in pending if span.late}
    otherwise = run.loaded_otherwise(loaded)
    counted, unknown = apart(lambda: run.partition_sizes([one for one in loaded if one[0].key not in late]))
    if plan.rows:
        hold(run, plan.brokers, plan.lanes)
    began = time.monotonic()
    if pending:
        planned = {partition.key: partition.rows for partition in plan.partitions}
        _load(run, spark, pending, planned, follow)
    return Outcome(
        plan=plan,
        keys=run.keys,
        certificates=run.certificates,
        otherwise=otherwise,
        cover=covered(run.flood, [*plan.partitions, *counted.values()]),
        changed=changed_since(run.rows(), counted),
        unknown=unknown,
        seconds=time.monotonic() - began,
    )


def _load(run: Run, spark: SparkCalls, pending: Sequence[TimeSpan], planned: Mapping[str, int], follow: Follower) -> None:
    """Load each partition in turn. Their certificates are kept with the run."""
    partitions = ensure_topic(run)
    rows = Load({span.key: planned.get(span.key, 0) for span in pending})
    few = len(pending) <= FEW

    def listen(span: TimeSpan, seen: Progress) -> None:
        rows.see(span.key, seen, time.monotonic())
        run.moved(rows.written())
        if seen.message and (few or not seen.rows_done):
            follow.say(f"{span.key}: {seen.message}")
        follow.at(rows.doing(), lambda seconds: rows.text(time.monotonic(), seconds), at_once=few)

    run.watch()
    follow.at("beginning the load")
    began = time.monotonic()
    with spark.flood(run.flood, pending, run.cluster.address, partitions, run.most_s, follow, run.show_links, listen) as backfill:
        for span in pending:
            certificate = backfill(span)
            rows.finish(span.key)
            now = time.monotonic()
            run.keep_loaded(span.key, round(now - began, 3), certificate)
            began = now
        follow.at("ending Spark's work")


# -- release


@dataclass(frozen=True, slots=True)
class GivenBack:
    """`released`: no other run needs the brokers. `rows`: those of each partition in the topic, by key."""

    released: bool
    serving: int
    merges: int
    rows: Mapping[str, int]


def give_back(run: Run, fleet: Callable[[], Fleet], follow: Follower) -> GivenBack:
    """Release the reservation, watch surplus brokers leave, and merge the topic's segments. Raises HeadgateError."""
    rows = run.rows()
    # Renewals stop before the release: a late renewal would open the reservation again.
    RESERVATIONS.drop(run.reservation_id)
    released = run.release()
    serving = watch_brokers_go(run, fleet(), follow) if released else run.cluster.desired().live_brokers
    return GivenBack(released, serving, merge(run) if released else 0, rows)


def watch_brokers_go(run: Run, running: Fleet, follow: Follower) -> int:
    """Wait until no surplus broker is left and each leaving broker has handed over its partitions. Returns the number of serving
    brokers."""
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
            run.warn(f"segments were not merged: {error.message}")
            return done
    return RESHARDS_MAX
