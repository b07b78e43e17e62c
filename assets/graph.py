"""The topic of a flood as one asset, made of four steps: plan, capacity, load, release.

One asset, because the noun that other assets depend on is the topic. Its steps stand in a run's timeline, each with its own log.
"""

# Dagster reads annotations at run time, so they are not postponed here.
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from headgate.assets.checks import lag, results, specs
from headgate.assets.ending import clear_end
from headgate.assets.metadata import (
    ADDED,
    BROKER_SECONDS,
    BROKERS,
    LAG,
    P99,
    PLANNED,
    ROWS,
    SECONDS,
    against_always_on,
    cluster_page,
    members_table,
    memory_metadata,
    number,
    plan_metadata,
    size_metadata,
)
from headgate.assets.names import STEPS, source_key, topic_key
from headgate.assets.owners import FLOOD_TAG, HOLD_UNTIL_TAG
from headgate.assets.plot import markdown
from headgate.assets.recorder import RECORDERS, broker_seconds, peak
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource
from headgate.assets.steps import DagsterRun
from headgate.pipelines.floods import steps as work
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.otherwise import short_keys
from headgate.pipelines.reservations import RESERVATIONS

_AFTER = {"after": dg.In(dg.Nothing)}
_DESCRIPTION = """History enters the topic `{topic}` by reference: Spark writes Parquet files into the topic's store, and one commit
per partition makes them readable, wholly or not at all, before the live records. The same partition again adds nothing.

Steps: **plan** counts the source and forecasts brokers and time; **capacity** reserves brokers and waits for them; **load** runs
Spark, commits, and reads everything back; **release** gives the brokers back."""


def steps(flood: Flood) -> dict[str, dg.OpDefinition]:
    """The steps of a flood, by their names of `STEPS`."""
    return dict(zip(STEPS, (_plan(flood), _capacity(flood), _load(flood), _release(flood)), strict=True))


def topic_asset(
    flood: Flood, ops: Mapping[str, dg.OpDefinition], partitions: dg.PartitionsDefinition[str], condition: Any
) -> dg.AssetsDefinition:
    """The asset of a flood's topic.

    Args:
        ops: its steps.
        condition: its automation condition, or None.
    """
    asset, checks = flood.asset, specs(flood)
    upstream = {f"dep_{number}": dep for number, dep in enumerate(upstream_of(flood))}
    after = {"plan": None, "capacity": "plan", "load": "capacity", "release": "load"}
    outputs = {"topic": ("release", "result"), **{check.get_python_identifier(): ("load", check.name) for check in checks}}
    graph = dg.GraphDefinition(
        name=flood.name,
        node_defs=list(ops.values()),
        dependencies={
            dg.NodeInvocation(ops[name].name, alias=name): {
                "after": dg.DependencyDefinition(before, "loaded" if before == "load" else "result")
            } if before else {}
            for name, before in after.items()
        },
        input_mappings=[
            dg.InputMapping(graph_input_name=name, mapped_node_name="plan", mapped_node_input_name=name) for name in upstream
        ],
        output_mappings=[
            dg.OutputMapping(graph_output_name=name, mapped_node_name=node, mapped_node_output_name=output)
            for name, (node, output) in outputs.items()
        ],
    )  # fmt: skip
    # A backfill of many partitions is one run, so brokers are raised once.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        made = dg.AssetsDefinition.from_graph(
            graph,
            keys_by_input_name={name: dep.asset_key for name, dep in upstream.items()},
            partition_mappings={name: dep.partition_mapping for name, dep in upstream.items() if dep.partition_mapping} or None,
            keys_by_output_name={"topic": topic_key(flood)},
            partitions_def=partitions,
            backfill_policy=dg.BackfillPolicy.single_run(),
            check_specs=checks,
        )
    return made.map_asset_specs(
        lambda spec: spec.replace_attributes(
            group_name=asset.group or flood.name,
            description=_DESCRIPTION.format(topic=flood.topic),
            metadata={"topic": flood.topic, "source": flood.source.path},
            tags={FLOOD_TAG: flood.name, **asset.tags},
            kinds={"headgate", "spark", *asset.kinds} if len(asset.kinds) < 2 else set(asset.kinds),
            owners=list(asset.owners),
            automation_condition=condition,
        )
    )


def upstream_of(flood: Flood) -> list[dg.AssetDep]:
    """The assets that the topic's asset depends on: those that write the source, or else the source's own asset."""
    own = source_key(flood)
    if own is not None:
        return [dg.AssetDep(own)]
    return [dg.AssetDep.from_coercible(dg.AssetKey(dep.split("/")) if isinstance(dep, str) else dep) for dep in flood.asset.deps]


# -- the steps


def _plan(flood: Flood) -> dg.OpDefinition:
    own = source_key(flood)

    @dg.op(
        name=f"{flood.name}_plan",
        ins={f"dep_{number}": dg.In(dg.Nothing) for number in range(len(upstream_of(flood)))},
        out=dg.Out(dg.Nothing),
        description="What comes, and what it will take: rows and bytes from the source's metadata, brokers and time from earlier "
        "runs.",
    )
    def plan(context: dg.OpExecutionContext, cluster: ClusterResource, spark: SparkResource) -> None:
        run = DagsterRun.of(flood, context, cluster)
        with clear_end(run, "planning", holds=False) as follow:
            made, need = work.judge(run, spark, follow)
        if own is not None:
            for partition in made.partitions:
                context.log_event(dg.AssetObservation(own, partition=partition.key, metadata=size_metadata(partition)))
        context.add_output_metadata({**plan_metadata(made), **memory_metadata(need)})

    return plan


def _capacity(flood: Flood) -> dg.OpDefinition:
    @dg.op(
        name=f"{flood.name}_capacity",
        ins=_AFTER,
        out=dg.Out(dg.Nothing),
        description="Brokers for the flood: a reservation that ends by itself, a wait until they serve, and the topic's segments "
        "spread over them.",
    )
    def capacity(context: dg.OpExecutionContext, cluster: ClusterResource, fleet: FleetResource) -> None:
        run = DagsterRun.of(flood, context, cluster)
        with clear_end(run, "reserving brokers") as follow:
            raised = work.raise_brokers(run, lambda: fleet.fleet(cluster), follow)
        if raised is None:
            context.add_output_metadata({"brokers asked for": 0})
            return
        if context.run.tags.get(HOLD_UNTIL_TAG) is not None:
            # The flood's own run takes over the reservation, which lasts until then without this run.
            RESERVATIONS.drop(run.reservation_id)
            run.unwatch()
        context.add_output_metadata({
            "brokers asked for": raised.reserved,
            "brokers serving": raised.serving,
            "waited (seconds)": number(raised.waited_s),
            "reservation": run.reservation_id,
            "segments": dg.MetadataValue.md("\n".join(f"- {split}" for split in raised.splits) or "spread already"),
            "serving": members_table(cluster),
            **cluster_page(cluster),
        })  # fmt: skip

    return capacity


def _load(flood: Flood) -> dg.OpDefinition:
    checks = specs(flood)

    @dg.op(
        name=f"{flood.name}_load",
        ins=_AFTER,
        out={"loaded": dg.Out(dg.Nothing), **{check.name: dg.Out(dg.Nothing) for check in checks}},
        pool=f"flood_{flood.topic.replace('.', '_').replace('-', '_')}",
        description="The history, by reference: Spark writes files, one commit per partition fills its gate, and everything is "
        "read back.",
    )
    def load(
        context: dg.OpExecutionContext, cluster: ClusterResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult | dg.Output[None]]:
        run = DagsterRun.of(flood, context, cluster)
        with clear_end(run, "comparing the source with the topic") as follow:
            outcome = work.load(run, spark, follow)
        yield from results(flood, outcome, RECORDERS.so_far(run.reservation_id))
        yield dg.Output(None, "loaded")

    return load


def _release(flood: Flood) -> dg.OpDefinition:
    @dg.op(
        name=f"{flood.name}_release",
        ins=_AFTER,
        out=dg.Out(dg.Nothing),
        description="The reservation is given back, brokers hand over and leave, segments become one again.",
    )
    def release(context: dg.AssetExecutionContext, cluster: ClusterResource, fleet: FleetResource) -> None:
        run = DagsterRun.of(flood, context, cluster)
        with clear_end(run, "giving brokers back") as follow:
            given = work.give_back(run, lambda: fleet.fleet(cluster), follow)
            recording = RECORDERS.end(run.reservation_id)
            behind = lag(flood, cluster)
        samples = recording.samples
        used, most = broker_seconds(samples), peak(samples)
        plan = run.kept_plan()
        planned = {} if plan is None else {partition.key: partition.rows for partition in plan.partitions}
        figures = {key: run.figures(key, given.rows.get(key, 0)) for key in run.keys}
        seconds = sum(float(str(figure[SECONDS].value)) for figure in figures.values() if figure)
        shared = {
            **(
                {"flood": dg.MetadataValue.md(markdown(samples, f"{flood.name}: {', '.join(short_keys(run.keys))}"))}
                if samples
                else {}
            ),
            BROKERS: most,
            **({} if recording.p99_ms is None else {P99: number(recording.p99_ms)}),
            **({} if behind is None else {LAG: behind}),
            "brokers serving": given.serving,
            "segments merged": given.merges,
            "released": given.released,
            "run seconds": number(samples[-1].at_s if samples else 0.0),
            "against always-on": against_always_on(used, most * 86_400.0),
            **({} if plan is None else {"plan": dg.MetadataValue.json(plan.to_json())}),
            **cluster_page(cluster),
        }
        context.add_asset_metadata(shared, asset_key=run.topic_key)
        for key, value in figures.items():
            if not value:
                rows = given.rows.get(key, 0)
                own: dict[str, Any] = {
                    "dagster/partition_row_count": rows,
                    ROWS: rows,
                    ADDED: 0,
                    "in the topic before": True,
                }
            else:
                share = float(str(value[SECONDS].value)) / seconds if seconds else 0.0
                own = {**value, BROKER_SECONDS: number(used * share), PLANNED: planned.get(key, 0)}
            context.add_asset_metadata(own, asset_key=run.topic_key, partition_key=key)

    return release
