"""The topic of a flood as one asset, made of four steps: plan, capacity, load, release.

One asset, because the noun that other assets depend on is the topic. Its steps stand in a run's timeline, each with its own log.
"""

# Dagster reads annotations at run time, so they are not postponed here.
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from headgate.assets.checks import Outcome, lag, results, specs
from headgate.assets.ending import clear_end
from headgate.assets.kept import Loaded
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
    short_keys,
    size_metadata,
)
from headgate.assets.names import STEPS, source_key, topic_key
from headgate.assets.owners import FLOOD_TAG, HOLD_UNTIL_TAG
from headgate.assets.plot import markdown
from headgate.assets.progress import Follower, Load
from headgate.assets.recorder import RECORDERS, broker_seconds, peak
from headgate.assets.reservations import RESERVATIONS
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource
from headgate.assets.steps import (
    Run,
    ensure_topic,
    hold,
    make_plan,
    merge,
    release_if_last,
    spread,
    wait_for_brokers,
    watch_brokers_go,
)
from headgate.pipelines.calls import apart
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.otherwise import changed_since
from headgate.pipelines.floods.plan import covered
from headgate.pipelines.floods.spans import TimeSpan

if TYPE_CHECKING:
    from headgate.pipelines.certificate import Certificate
    from headgate.pipelines.progress import Progress

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
        run = Run(flood, context, cluster)
        with clear_end(run, "planning", holds=False) as follow:

            def analyse(flood: Flood, span: TimeSpan) -> None:
                follow.at(f"letting Spark judge the expressions on {span.key}")
                spark.analyse(flood, span)

            made = apart(partial(make_plan, run, analyse), spark.cancel)
            need = spark.need(made.size_bytes)
        if need.short is not None:
            context.log.warning(need.short)
        for text in made.stands:
            run.say(text)
        for text in made.notes:
            context.log.warning(text)
        context.log.info(
            f"planned: {made.rows:,} rows, {made.size_bytes:,} bytes, brokers: {made.brokers}, {made.seconds:g} s ({made.basis})"
        )
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
        run = Run(flood, context, cluster)
        with clear_end(run, "reserving brokers") as follow:
            plan = apart(run.plan)
            if plan.rows == 0:
                run.say("nothing to add: no brokers are asked for")
                context.add_output_metadata({"brokers asked for": 0})
                return
            ensure_topic(run)
            began = time.monotonic()
            reserved = hold(run, plan.brokers)
            serving = wait_for_brokers(run, fleet, reserved, follow)
            waited_s = time.monotonic() - began
            follow.at("spreading the topic's segments")
            splits = spread(run)
        if context.run.tags.get(HOLD_UNTIL_TAG) is not None:
            # The flood's own run takes over the reservation, which lasts until then without this run.
            RESERVATIONS.drop(run.owner.reservation_id)
            RECORDERS.end(run.owner.reservation_id)
        context.add_output_metadata({
            "brokers asked for": reserved,
            "brokers serving": serving,
            "waited (seconds)": number(waited_s),
            "reservation": run.owner.reservation_id,
            "segments": dg.MetadataValue.md("\n".join(f"- {split}" for split in splits) or "spread already"),
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
        run = Run(flood, context, cluster)
        with clear_end(run, "comparing the source with the topic") as follow:
            plan = apart(run.plan)
            pending, loaded = apart(run.pending), run.loaded()
            late = {span.key for span in pending if span.late}
            otherwise = run.loaded_otherwise(loaded)
            counted, unknown = apart(lambda: run.counted([one for one in loaded if one[0].key not in late]))
            if plan.rows:
                hold(run, plan.brokers)
            began = time.monotonic()
            planned = {partition.key: partition.rows for partition in plan.partitions}
            certificates = _loaded(run, spark, pending, planned, follow) if pending else {}
            seconds = time.monotonic() - began
        outcome = Outcome(
            plan=plan,
            keys=run.keys,
            certificates=certificates,
            otherwise=otherwise,
            cover=covered(flood, [*plan.partitions, *counted.values()]),
            changed=changed_since(run.rows(), counted),
            unknown=unknown,
            seconds=seconds,
            recording=RECORDERS.so_far(run.owner.reservation_id),
        )
        yield from results(flood, outcome)
        yield dg.Output(None, "loaded")

    return load


def _loaded(
    run: Run, spark: SparkResource, pending: Sequence[TimeSpan], planned: Mapping[str, int], follow: Follower
) -> "dict[str, Certificate]":
    """Load each partition in turn. Returns their certificates, which are also kept with the run."""
    partitions = ensure_topic(run)
    recorder = RECORDERS.begin(run.owner.reservation_id, run.flood.topic, run.cluster.desired, run.cluster.view)
    rows = Load({span.key: planned.get(span.key, 0) for span in pending})
    found: dict[str, Certificate] = {}

    def listen(span: TimeSpan, seen: "Progress") -> None:
        rows.see(span.key, seen, time.monotonic())
        recorder.rows_done = rows.written()
        if seen.message:
            follow.say(f"{span.key}: {seen.message}")
        follow.at(rows.doing(), lambda seconds: rows.text(time.monotonic(), seconds))

    def links(found: Mapping[str, str]) -> None:
        urls = {name: dg.MetadataValue.url(url) for name, url in found.items()}
        context: Any = run.context
        context.log_event(dg.AssetObservation(run.topic_key, metadata={**urls, **cluster_page(run.cluster)}))

    follow.at("beginning the load")
    began = time.monotonic()
    with spark.flood(run.flood, pending, run.cluster.address, partitions, run.max_run_s(), follow, links, listen) as backfill:
        for span in pending:
            certificate = backfill(span)
            found[span.key] = certificate
            rows.finish(span.key)
            now = time.monotonic()
            run.kept.keep_loaded(span.key, Loaded(seconds=round(now - began, 3), certificate=certificate.to_dict()))
            began = now
        follow.at("ending Spark's work")
    return found


def _release(flood: Flood) -> dg.OpDefinition:
    @dg.op(
        name=f"{flood.name}_release",
        ins=_AFTER,
        out=dg.Out(dg.Nothing),
        description="The reservation is given back, brokers hand over and leave, segments become one again.",
    )
    def release(context: dg.AssetExecutionContext, cluster: ClusterResource, fleet: FleetResource) -> None:
        run = Run(flood, context, cluster)
        with clear_end(run, "giving brokers back") as follow:
            rows_now = run.rows()
            # Renewals stop before the release: a late renewal would open the reservation again.
            RESERVATIONS.drop(run.owner.reservation_id)
            released = release_if_last(run)
            serving = watch_brokers_go(run, fleet, follow) if released else cluster.desired().live_brokers
            merges = merge(run) if released else 0
            recording = RECORDERS.end(run.owner.reservation_id)
            behind = lag(flood, cluster)
        samples = recording.samples
        used, most = broker_seconds(samples), peak(samples)
        plan = run.kept.plan()
        planned = {} if plan is None else {partition.key: partition.rows for partition in plan.partitions}
        figures = {key: run.figures(key, rows_now.get(key, 0)) for key in run.keys}
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
            "brokers serving": serving,
            "segments merged": merges,
            "released": released,
            "run seconds": number(samples[-1].at_s if samples else 0.0),
            "against always-on": against_always_on(used, most * 86_400.0),
            **({} if plan is None else {"plan": dg.MetadataValue.json(plan.to_json())}),
            **cluster_page(cluster),
        }
        context.add_asset_metadata(shared, asset_key=run.topic_key)
        for key, one in figures.items():
            if not one:
                rows = rows_now.get(key, 0)
                own: dict[str, Any] = {
                    "dagster/partition_row_count": rows,
                    ROWS: rows,
                    ADDED: 0,
                    "in the topic before": True,
                }
            else:
                share = float(str(one[SECONDS].value)) / seconds if seconds else 0.0
                own = {**one, BROKER_SECONDS: number(used * share), PLANNED: planned.get(key, 0)}
            context.add_asset_metadata(own, asset_key=run.topic_key, partition_key=key)

    return release
