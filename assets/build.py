"""From a declared flood to Dagster: partitions, assets, checks, jobs, a schedule and a sensor. `flood_definitions` is the entry.

::

    flood = Flood(
        name="clicks",
        topic="clicks",
        source=Source(path="s3://lake/clicks/%Y-%m-%d.parquet"),
        key="user_id",
        event_time="clicked_at",
        partitions=Partitions(by="day", start=datetime(2026, 1, 1, tzinfo=UTC)),
    )
    defs = flood_definitions([flood])

`headgate.pipelines.floods.parse` makes the same from ten lines of YAML.
"""

# Dagster reads annotations at run time, so they are not postponed here.
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from headgate.assets.metadata import against_always_on, members_table, partition_metadata, plan_metadata, short_keys, table
from headgate.assets.owners import FLOOD_TAG, HOLD_UNTIL_TAG, OCCURRENCE_TAG, occurrence_id
from headgate.assets.plot import markdown
from headgate.assets.progress import throttled
from headgate.assets.recorder import RECORDERS, broker_seconds, peak
from headgate.assets.reservations import RESERVATIONS
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource
from headgate.assets.sensors import BROKERS, cluster_sensors
from headgate.assets.steps import (
    Run,
    artifacts,
    changed_since,
    clear_failures,
    ensure_topic,
    hold,
    make_plan,
    merge,
    release_if_last,
    spread,
    wait_for_brokers,
    watch_brokers_go,
)
from headgate.pipelines.floods.model import Flood, Partitions
from headgate.pipelines.floods.plan import Plan, covered, deviation
from headgate.pipelines.floods.spans import KEY_FORMATS, Occurrence, TimeSpan, newest_key, occurrences

EXPECT_EVERY_S = 30
LOOK_BACK = timedelta(hours=1)
"""Longest delay of a flood at a fixed time, in seconds, when Dagster was down at that time."""
CATCH_UP_LOOK_S = 12.0
"""Two looks at a group's positions are this many seconds apart: clients commit every five seconds by default."""
CHECKS = {
    "certificate_complete": "A client reads the rows, bytes and checksums of the source from the topic. Partitions of earlier runs "
    "were loaded under the present definition of the flood.",
    "in_order": "Within each partition of the topic no record is older than the one before it.",
    "no_duplicates": "A client reads no offset twice.",
    "plan_against_actual": "The run loaded the planned number of rows. An estimate may be off by half, and `where` may leave out "
    "any number.",
    "nothing_left_out": "The event times of all rows lie in the partition that their path names; no partition takes other rows. "
    "Counted from the metadata of Parquet files, for floods without `where`.",
    "source_unchanged": "Partitions of earlier runs still have as many rows at their source as were loaded. Counted from the "
    "metadata of Parquet files, for floods without `where`.",
}
"""Names and descriptions of the checks that `flood_backfill` reports; `_backfill_result` has a result for each."""


def flood_definitions(
    floods: Sequence[Flood],
    *,
    cluster: ClusterResource | None = None,
    spark: SparkResource | None = None,
    fleet: FleetResource | None = None,
) -> dg.Definitions:
    """The definitions of these floods. Connects to nothing and imports nothing heavy before a run begins.

    Raises ValueError when two floods have one name.
    """
    names = [flood.name for flood in floods]
    if len(set(names)) < len(names):
        raise ValueError(f"floods need names of their own. names=`{', '.join(sorted(names))}`")
    parts = [_Parts(flood) for flood in floods]
    return dg.Definitions(
        assets=[BROKERS, *(asset for part in parts for asset in part.assets)],
        asset_checks=[part.catching_up for part in parts],
        jobs=[job for part in parts for job in (part.job, part.prepare)],
        schedules=[part.schedule for part in parts if part.schedule is not None],
        sensors=[*cluster_sensors(floods), *(part.sensor for part in parts if part.sensor is not None)],
        resources={
            "cluster": cluster or ClusterResource(address=dg.EnvVar("HEADGATE_CLUSTER")),
            "spark": spark or SparkResource(),
            "fleet": fleet or FleetResource(),
        },
        # One process per run: Spark starts once, and a killed run leaves no step that writes on.
        executor=dg.in_process_executor,
    )


def partitions_definition(partitions: Partitions) -> dg.TimeWindowPartitionsDefinition:
    """Dagster's form of a flood's partitions."""
    return dg.TimeWindowPartitionsDefinition(
        start=partitions.start,
        end=partitions.end,
        timezone=partitions.timezone,
        fmt=KEY_FORMATS[partitions.by],
        cron_schedule="0 0 * * *" if partitions.by == "day" else "0 * * * *",
    )


class _Parts:
    """The Dagster objects of one flood."""

    def __init__(self, flood: Flood) -> None:
        self.flood = flood
        self.partitions = partitions_definition(flood.partitions)
        # A backfill of many partitions is one run, so brokers are raised once.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            self._common: dict[str, Any] = {
                "key_prefix": [flood.name],
                "group_name": flood.name,
                "partitions_def": self.partitions,
                "backfill_policy": dg.BackfillPolicy.single_run(),
                "tags": {FLOOD_TAG: flood.name},
            }
            self.assets = [self._plan(), self._capacity(), self._backfill(), self._release()]
        self.catching_up = self._catching_up()
        tags = {FLOOD_TAG: flood.name}
        self.job = dg.define_asset_job(
            f"{flood.name}_flood", selection=dg.AssetSelection.assets(*self.assets), tags=tags,
            description=f"The whole flood into `{flood.topic}`.",
        )  # fmt: skip
        self.prepare = dg.define_asset_job(
            f"{flood.name}_prepare", selection=dg.AssetSelection.assets(*self.assets[:2]), tags=tags,
            description=f"Brokers are raised ahead of a flood into `{flood.topic}`, and wait for it.",
        )  # fmt: skip
        self.schedule = self._schedule()
        self.sensor = self._expected()

    def key(self, name: str) -> dg.AssetKey:
        return dg.AssetKey([self.flood.name, name])

    # -- assets

    def _asset(self, name: str, **more: Any) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
        decorator: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(name=name, **self._common, **more)
        return decorator

    def _plan(self) -> dg.AssetsDefinition:
        flood = self.flood

        @self._asset("flood_plan", kinds={"json"}, description=_PLAN)
        def flood_plan(context: dg.AssetExecutionContext, cluster: ClusterResource) -> dg.MaterializeResult[None]:
            run = Run(flood, context, cluster)
            with clear_failures(run, give_back=False):
                plan = make_plan(run)
            complete, text = covered(flood, plan.partitions)
            if not complete:
                context.log.warning(text)
            for one in plan.partitions:
                context.add_asset_metadata({"dagster/partition_row_count": one.rows}, partition_key=one.key)
            return dg.MaterializeResult(metadata=plan_metadata(plan))

        return flood_plan

    def _capacity(self) -> dg.AssetsDefinition:
        flood = self.flood

        @self._asset("flood_capacity", deps=[self.key("flood_plan")], kinds={"headgate"}, description=_CAPACITY)
        def flood_capacity(
            context: dg.AssetExecutionContext, cluster: ClusterResource, fleet: FleetResource
        ) -> dg.MaterializeResult[None]:
            run = Run(flood, context, cluster)
            with clear_failures(run):
                plan = run.plan()
                if plan.rows == 0:
                    run.say("nothing to add: no brokers are asked for")
                    return dg.MaterializeResult(metadata={"brokers asked for": 0})
                ensure_topic(run)
                began = time.monotonic()
                reserved = hold(run, plan.brokers)
                serving = wait_for_brokers(run, fleet, reserved)
                waited_s = time.monotonic() - began
                splits = spread(run)
            if context.run.tags.get(HOLD_UNTIL_TAG) is not None:
                # The flood's own run takes over the reservation, which lasts until then without this run.
                RESERVATIONS.drop(run.owner.reservation_id)
                RECORDERS.end(run.owner.reservation_id)
            return dg.MaterializeResult(
                metadata={
                    "brokers asked for": reserved,
                    "brokers serving": serving,
                    "waited": dg.MetadataValue.float(round(waited_s, 1)),
                    "reservation": run.owner.reservation_id,
                    "segments": dg.MetadataValue.md("\n".join(f"- {one}" for one in splits) or "spread already"),
                    "serving": members_table(cluster),
                }
            )

        return flood_capacity

    def _backfill(self) -> dg.AssetsDefinition:
        flood = self.flood

        @self._asset(
            "flood_backfill",
            deps=[self.key("flood_capacity")],
            kinds={"spark", "parquet"},
            pool=f"flood_{flood.topic.replace('.', '_').replace('-', '_')}",
            check_specs=[
                dg.AssetCheckSpec(name, asset=self.key("flood_backfill"), description=text) for name, text in CHECKS.items()
            ],
            description=_BACKFILL,
        )
        def flood_backfill(
            context: dg.AssetExecutionContext, cluster: ClusterResource, spark: SparkResource
        ) -> Iterator[dg.MaterializeResult[None]]:
            run = Run(flood, context, cluster)
            with clear_failures(run):
                plan = run.plan()
                pending, loaded = run.pending(), run.loaded()
                otherwise = run.loaded_otherwise(loaded)
                counted, unknown = run.counted(loaded)
                if plan.rows:
                    hold(run, plan.brokers)
                began = time.monotonic()
                certificates = _run_backfill(run, spark, pending) if pending else {}
                seconds = time.monotonic() - began
            cover = covered(flood, [*plan.partitions, *counted.values()])
            yield _backfill_result(run, plan, certificates, otherwise, cover, changed_since(loaded, counted), unknown, seconds)

        return flood_backfill

    def _release(self) -> dg.AssetsDefinition:
        flood = self.flood

        @self._asset("flood_release", deps=[self.key("flood_backfill")], kinds={"headgate"}, description=_RELEASE)
        def flood_release(
            context: dg.AssetExecutionContext, cluster: ClusterResource, fleet: FleetResource
        ) -> dg.MaterializeResult[None]:
            run = Run(flood, context, cluster)
            with clear_failures(run):
                # Renewals stop before the release: a late renewal would open the reservation again.
                RESERVATIONS.drop(run.owner.reservation_id)
                released = release_if_last(run)
                serving = watch_brokers_go(run, fleet) if released else cluster.desired().live_brokers
                merges = merge(run) if released else 0
                samples = RECORDERS.end(run.owner.reservation_id)
            added = _added(run)
            used = broker_seconds(samples)
            span_s = samples[-1].at_s if samples else 0.0
            always = peak(samples) * 86_400.0
            return dg.MaterializeResult(
                metadata={
                    "flood": dg.MetadataValue.md(markdown(samples, f"{flood.name}: {', '.join(short_keys(run.keys))}")),
                    "rows added": added["rows"],
                    "bytes": added["bytes"],
                    "flood seconds": dg.MetadataValue.float(round(added["seconds"], 3)),
                    "run seconds": dg.MetadataValue.float(round(span_s, 1)),
                    "broker-seconds": dg.MetadataValue.float(round(used, 1)),
                    "most brokers": peak(samples),
                    "brokers serving": serving,
                    "segments merged": merges,
                    "released": released,
                    "against always-on": against_always_on(used, always),
                }
            )

        return flood_release

    # -- checks

    def _catching_up(self) -> dg.AssetChecksDefinition:
        flood = self.flood

        @dg.asset_check(
            name="consumers_catching_up",
            asset=self.key("flood_backfill"),
            description="Consumer groups of the topic have read everything, or go on reading.",
        )
        def consumers_catching_up(cluster: ClusterResource) -> dg.AssetCheckResult:
            try:
                first = second = cluster.lags(flood.topic)
                until = time.monotonic() + CATCH_UP_LOOK_S
                while standing(first, second) and time.monotonic() < until:
                    time.sleep(1)
                    second = cluster.lags(flood.topic)
            except Exception as error:  # noqa: BLE001  # a check that cannot read its data fails itself, not the flood
                return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=str(error))
            stuck = standing(first, second)
            rows = [
                dg.TableRecord({"group": group, "lag": lag, "before": first.get(group, (0, 0))[0]})
                for group, (lag, _) in second.items()
            ]
            return dg.AssetCheckResult(
                passed=not stuck,
                severity=dg.AssetCheckSeverity.WARN,
                description=f"not reading: {', '.join(stuck)}" if stuck else f"{len(second)} groups read the topic",
                metadata={"groups": table(rows, {"group": "string", "lag": "int", "before": "int"})} if rows else {},
            )

        return consumers_catching_up

    # -- when it comes

    def _schedule(self) -> dg.ScheduleDefinition | None:
        flood = self.flood
        if flood.occurrences.cron is None:
            return None

        @dg.schedule(
            name=f"{flood.name}_schedule",
            job=self.job,
            cron_schedule=flood.occurrences.cron.text,
            execution_timezone=flood.occurrences.timezone,
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description=f"The flood `{flood.name}` at its times.",
        )
        def flood_schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
            at = context.scheduled_execution_time.astimezone(UTC)
            # Dagster's tick decides, not our cron: they differ when the clock changes to or from summer time.
            partition = newest_key(flood.partitions, at)
            if partition is None:
                yield dg.SkipReason("no partition is over yet")
                return
            yield dg.RunRequest(
                run_key=Occurrence(at, partition).run_key(flood.name, "start"),
                partition_key=partition,
                tags={OCCURRENCE_TAG: occurrence_id(at)},
            )

        return flood_schedule

    def _expected(self) -> dg.SensorDefinition | None:
        flood = self.flood
        if flood.occurrences.cron is None and not flood.occurrences.at:
            return None

        @dg.sensor(
            name=f"{flood.name}_expected",
            jobs=[self.job, self.prepare],
            minimum_interval_seconds=EXPECT_EVERY_S,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description=f"Raises brokers {flood.lead_time_ms / 60_000:g} minutes ahead of the flood `{flood.name}`.",
        )
        def expected(context: dg.SensorEvaluationContext) -> list[dg.RunRequest]:
            return expected_runs(flood, datetime.now(UTC))

        return expected


def standing(first: Mapping[str, tuple[int, int]], second: Mapping[str, tuple[int, int]]) -> list[str]:
    """The groups that are behind and did not advance between two looks (lag and position of each)."""
    return sorted(group for group, (lag, position) in second.items() if lag and position == first.get(group, (0, -1))[1])


def expected_runs(flood: Flood, now: datetime) -> list[dg.RunRequest]:
    """The runs that are due: preparations of floods within the lead time, and floods whose fixed time has come.

    The same occurrence always yields the same run keys, and Dagster starts each once. Dagster's scheduler starts floods of a
    cron schedule.
    """
    requests = []
    for one in occurrences(flood, now - LOOK_BACK, now + timedelta(milliseconds=flood.lead_time_ms)):
        tags = {OCCURRENCE_TAG: occurrence_id(one.at)}
        if one.at > now:
            requests.append(
                dg.RunRequest(
                    run_key=one.run_key(flood.name, "prepare"),
                    job_name=f"{flood.name}_prepare",
                    partition_key=one.partition,
                    tags={**tags, HOLD_UNTIL_TAG: one.at.isoformat()},
                )
            )
        elif flood.occurrences.cron is None:
            requests.append(
                dg.RunRequest(
                    run_key=one.run_key(flood.name, "start"), job_name=f"{flood.name}_flood", partition_key=one.partition, tags=tags
                )
            )
    return requests


def _run_backfill(run: Run, spark: SparkResource, pending: Sequence[TimeSpan]) -> dict[str, Any]:
    """Load each partition in turn. Returns their certificates, which are also kept beside the plan."""
    partitions = ensure_topic(run)
    recorder = RECORDERS.begin(run.owner.reservation_id, run.flood.topic, run.cluster.desired, run.cluster.view)
    tell = throttled(run.say)
    found: dict[str, Any] = {}
    directory = artifacts(run.context, run.flood.name)
    directory.mkdir(parents=True, exist_ok=True)
    names = {span: f"{span.key} ({number} of {len(pending)})" for number, span in enumerate(pending, 1)}

    def listen(span: TimeSpan, seen: Any) -> None:
        of = f" {seen.rows_done:,} of {seen.rows_total:,} rows" if seen.rows_total else ""
        tell(f"{span.key} {seen.phase}", f"{names[span]}: {seen.message or seen.phase}{of if not seen.message else ''}")

    with spark.flood(run.flood, pending, run.cluster.address, partitions, run.max_run_s(), run.say, listen) as backfill:
        for span in pending:
            certificate = backfill(span)
            found[span.key] = certificate
            (directory / f"certificate-{span.key.replace(':', '.')}.json").write_text(certificate.to_json())
            recorder.rows_done += certificate.added_rows
            run.context.add_asset_metadata(partition_metadata(certificate), partition_key=span.key)
    return found


def _backfill_result(
    run: Run,
    plan: Plan,
    certificates: Mapping[str, Any],
    otherwise: Sequence[str],
    cover: tuple[bool, str],
    changed: Sequence[str],
    unknown: Sequence[str],
    seconds: float,
) -> dg.MaterializeResult[None]:
    context = run.context
    added = sum(one.added_rows for one in certificates.values())
    size = sum(one.size_bytes for one in certificates.values())
    (artifacts(context, run.flood.name)).mkdir(parents=True, exist_ok=True)
    _added_path(run).write_text(f"{added} {size} {seconds}")
    good, off = deviation(plan, sum(one.rows for one in certificates.values()), filtered=run.flood.where is not None)
    problems = [*otherwise, *(problem for one in certificates.values() for problem in one.problems())]
    doubles = sum(one.duplicate_rows or 0 for one in certificates.values())
    disorder = sum(one.disordered_rows or 0 for one in certificates.values())
    looked = all(one.verified or one.rows == 0 for one in certificates.values())
    note = "" if looked else " (not read back: the flood says `verify: false`, or it was committed before)"
    backfill = context.asset_key
    results = [
        _check(backfill, "certificate_complete", not problems, "\n".join(problems) or f"{added:,} rows{note}"),
        _check(backfill, "in_order", disorder == 0, f"{disorder:,} records before an older one of their partition{note}"),
        _check(backfill, "no_duplicates", doubles == 0, f"{doubles:,} offsets came twice{note}"),
        _check(backfill, "plan_against_actual", good, f"{off:+.1%} rows against the plan", dg.AssetCheckSeverity.WARN),
        _check(backfill, "nothing_left_out", *cover, dg.AssetCheckSeverity.WARN),
        _check(
            backfill,
            "source_unchanged",
            not changed,
            "\n".join([*changed, *unknown]) or f"{len(run.keys) - len(certificates)} partitions were in the topic before",
            dg.AssetCheckSeverity.WARN,
        ),
    ]
    rows = [
        dg.TableRecord({"partition": key, "rows": one.rows, "added": one.added_rows, "files": one.files, "bytes": one.size_bytes})
        for key, one in certificates.items()
    ]
    metadata: dict[str, Any] = {
        "rows added": added,
        "bytes": size,
        "seconds": dg.MetadataValue.float(round(seconds, 2)),
        "rows per second": dg.MetadataValue.float(round(added / seconds, 1) if seconds and added else 0.0),
        "topic": run.flood.topic,
        "partitions there before": len(run.keys) - len(certificates),
    }
    if rows:
        metadata["partitions"] = table(rows, {"partition": "string", "rows": "int", "added": "int", "files": "int", "bytes": "int"})
    return dg.MaterializeResult(metadata=metadata, check_results=results)


def _check(
    asset: dg.AssetKey, name: str, passed: bool, text: str, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(asset_key=asset, check_name=name, passed=passed, severity=severity, description=text)


def _added_path(run: Run) -> Any:
    return artifacts(run.context, run.flood.name) / "added"


def _added(run: Run) -> dict[str, Any]:
    """The rows, bytes and seconds that the backfill of this run added; empty without a backfill."""
    try:
        rows, size, seconds = _added_path(run).read_text().split()
        return {"rows": int(rows), "bytes": int(size), "seconds": float(seconds)}
    except (OSError, ValueError):
        return {"rows": 0, "bytes": 0, "seconds": 0.0}


_PLAN = """What comes, and what it will take: rows and bytes from the source's metadata, brokers and time from earlier runs.
Partitions that are in the topic already count as nothing."""
_CAPACITY = """Brokers for the flood: a reservation that ends by itself, a wait until they serve, and the topic's segments spread
over them."""
_BACKFILL = """The history, by reference: Spark writes Parquet files into the topic's store, and one commit per partition
makes them readable, wholly or not at all. The same partition again adds nothing."""
_RELEASE = """The reservation is given back, brokers hand over and leave, segments become one again."""
