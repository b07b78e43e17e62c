"""Sensors that look after the cluster while Dagster runs: release at once, reconcile, watch the load.

Capacity ends without them: reservations and gates end by themselves. Sensors make them end sooner, and inform people.
"""

# Dagster reads annotations at run time, so they are not postponed here.
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg
from dagster import DagsterInstance

from headgate.assets.names import topic_key
from headgate.assets.owners import FLOOD_TAG, Owner
from headgate.assets.resources import ClusterResource, FleetResource
from headgate.assets.silent import end_silent
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import gates_of, keys_between

if TYPE_CHECKING:
    from headgate.broker.client.control import Reservation

RELEASE_EVERY_S = 5
_AT_WORK = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
RECONCILE_EVERY_S = 30
LOAD_EVERY_S = 30

BROKERS = dg.AssetSpec(
    "brokers", group_name="fleet", kinds={"headgate"}, description="The brokers of the cluster: how many there are, and why."
)


def cluster_sensors(floods: Sequence[Flood]) -> list[dg.SensorDefinition]:
    """The sensors that all floods share."""
    return [
        _on_end(dg.DagsterRunStatus.FAILURE, floods),
        _on_end(dg.DagsterRunStatus.CANCELED, floods),
        _reconciler(floods),
        _load(),
    ]


def _on_end(status: dg.DagsterRunStatus, floods: Sequence[Flood]) -> dg.SensorDefinition:
    @dg.run_status_sensor(
        name=f"release_on_{'failure' if status is dg.DagsterRunStatus.FAILURE else 'cancel'}",
        run_status=status,
        minimum_interval_seconds=RELEASE_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="A flood's run ended before its time: its brokers are given back and its gates released at once.",
    )
    def release(context: dg.RunStatusSensorContext, cluster: ClusterResource) -> dg.SkipReason:
        done: list[str] = []
        run = context.dagster_run
        for flood in (flood for flood in floods if is_of(flood, run)):
            try:
                done += release_after(context.instance, cluster, flood, run, datetime.now(UTC))
            except HeadgateError as error:
                done.append(f"what {flood.name} holds ends by itself: {error.message}")
        for text in done:
            context.log.info(text)
        return dg.SkipReason("; ".join(done) or "nothing was held")

    return release


def release_after(
    instance: DagsterInstance, cluster: ClusterResource, flood: Flood, run: dg.DagsterRun, now: datetime
) -> list[str]:
    """Release the reservation of a finished run, unless other runs need it, and the gates that it left open, unless another run
    of the flood is active. Returns the actions as text. Raises HeadgateError."""
    done: list[str] = []
    owner = Owner.of(flood.name, run.run_id, run.tags)
    if not owner.needs_it(instance, now) and cluster.release(owner.reservation_id):
        done.append(f"reservation {owner.reservation_id} is released")
    if any(
        candidate.run_id != run.run_id and is_of(flood, candidate)
        for candidate in instance.get_runs(dg.RunsFilter(statuses=_AT_WORK))
    ):
        return done
    open_gates = [name for name, gate in cluster.gates(flood.topic).items() if str(gate.state) == "open"]
    for gate in sorted(gates_of(flood, partition_keys(flood, run), open_gates)):
        if cluster.release_gate(flood.topic, gate):
            done.append(f"gate {gate} is released")
    return done


def partition_keys(flood: Flood, run: dg.DagsterRun) -> list[str]:
    """The partitions of a run, from its tags."""
    partition = run.tags.get("dagster/partition")
    first, last = (
        run.tags.get("dagster/asset_partition_range_start", partition),
        run.tags.get("dagster/asset_partition_range_end", partition),
    )
    return [] if first is None or last is None else keys_between(flood.partitions, first, last)


def is_of(flood: Flood, run: dg.DagsterRun) -> bool:
    """True when a run loads this flood, alone or with other assets."""
    return run.tags.get(FLOOD_TAG) == flood.name or topic_key(flood) in (run.asset_selection or ())


def _reconciler(floods: Sequence[Flood]) -> dg.SensorDefinition:
    @dg.sensor(
        name="fleet_reconciler",
        minimum_interval_seconds=RECONCILE_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Ends runs without a process, releases what runs left behind, and tells the fleet the number of brokers.",
    )
    def fleet_reconciler(
        context: dg.SensorEvaluationContext, cluster: ClusterResource, fleet: FleetResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            text = reconcile(context.instance, cluster, fleet, floods, datetime.now(UTC))
        except HeadgateError as error:
            return dg.SkipReason(f"the cluster cannot be reconciled now: {error.message}")
        return dg.SkipReason("; ".join(text) or "all is as it should be")

    return fleet_reconciler


def reconcile(
    instance: DagsterInstance, cluster: ClusterResource, fleet: FleetResource, floods: Sequence[Flood], now: datetime
) -> list[str]:
    """End runs without a process; release reservations of finished runs; scale the fleet. Returns the actions as text.

    Raises HeadgateError when the cluster or the fleet does not answer.
    """
    done = end_silent(instance, floods, now)
    reservations = cluster.reservations()
    for reservation in abandoned(instance, reservations, now):
        if cluster.release(reservation.id):
            done.append(f"reservation {reservation.id} is released: {reservation.owner} is over")
    running = fleet.fleet(cluster)
    if not running.follows:
        wanted = cluster.desired().brokers
        before = running.state().asked
        if before != wanted:
            state = running.scale(wanted)
            done.append(f"{running.name}: brokers {before} to {state.asked}" + (f" ({state.note})" if state.note else ""))
    return done


def abandoned(instance: DagsterInstance, reservations: "Sequence[Reservation]", now: datetime) -> "list[Reservation]":
    """Dagster's reservations that no run needs. Reservations of other programs stay."""
    found = []
    for reservation in reservations:
        owner = Owner.parse(reservation.owner)
        # A run of another Dagster is unknown here: this one releases only reservations of runs that it knows to be over.
        if owner is not None and _known(instance, owner) and not owner.needs_it(instance, now):
            found.append(reservation)
    return found


def _known(instance: DagsterInstance, owner: Owner) -> bool:
    if owner.kind == "run":
        return instance.get_run_by_id(owner.id) is not None
    if owner.kind == "backfill":
        return instance.get_backfill(owner.id) is not None
    return True


def _load() -> dg.SensorDefinition:
    @dg.sensor(
        name="fleet_load",
        minimum_interval_seconds=LOAD_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Brokers that are wanted and that are there, and floods that nobody planned.",
    )
    def fleet_load(context: dg.SensorEvaluationContext, cluster: ClusterResource) -> dg.SensorResult | dg.SkipReason:
        try:
            desired, view, reservations = cluster.desired(), cluster.view(), cluster.reservations()
        except HeadgateError as error:
            return dg.SkipReason(f"the cluster does not answer: {error.message}")
        reserved = max((reservation.brokers for reservation in reservations), default=0)
        # The deciding reason comes first.
        unplanned = desired.brokers > reserved and bool(desired.reasons) and desired.reasons[0].startswith("the load ")
        seen = f"{desired.brokers}/{desired.live_brokers}/{reserved}/{unplanned}"
        if seen == context.cursor:
            return dg.SkipReason(f"brokers: {desired.live_brokers} of {desired.brokers}, as before")
        observation = dg.AssetObservation(
            BROKERS.key,
            metadata={
                "desired": desired.brokers,
                "live": desired.live_brokers,
                "reserved": reserved,
                "unplanned flood": unplanned,
                "why": "; ".join(desired.reasons),
                # A cluster without topics has no segments, and their sum is the integer 0, not a float.
                "bytes in per second": dg.MetadataValue.float(
                    round(sum((segment.bytes_in_per_s for segment in view.segments), 0.0), 1)
                ),
                "bytes out per second": dg.MetadataValue.float(
                    round(sum((segment.bytes_out_per_s for segment in view.segments), 0.0), 1)
                ),
            },
        )
        return dg.SensorResult(asset_events=[observation], cursor=seen)

    return fleet_load
