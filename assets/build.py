"""From a declared flood to Dagster: partitions, assets, checks, jobs, a schedule and sensors. `flood_definitions` is the entry.

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

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from headgate.assets.automation import automation_sensor, condition_of
from headgate.assets.checks import catching_up
from headgate.assets.graph import steps, topic_asset
from headgate.assets.names import topic_key
from headgate.assets.owners import FLOOD_TAG
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource
from headgate.assets.schedules import expected_sensors, schedule_of
from headgate.assets.sensors import BROKERS, cluster_sensors
from headgate.assets.sources import source_asset, source_sensor
from headgate.assets.topics import TopicsResource
from headgate.pipelines.floods.model import Flood, Partitions
from headgate.pipelines.floods.spans import KEY_FORMATS


def flood_definitions(
    floods: Sequence[Flood],
    *,
    cluster: ClusterResource | None = None,
    spark: SparkResource | None = None,
    fleet: FleetResource | None = None,
) -> dg.Definitions:
    """The definitions of these floods. Connects to nothing and imports nothing heavy before a run begins.

    Raises ValueError when two floods have one name, or an automation condition is none.
    """
    names = [flood.name for flood in floods]
    if len(set(names)) < len(names):
        raise ValueError(f"floods need names of their own. names=`{', '.join(sorted(names))}`")
    parts = [FloodParts(flood) for flood in floods]
    shared = [*cluster_sensors(floods), automation_sensor(floods)]
    return dg.Definitions(
        assets=[BROKERS, *(asset for part in parts for asset in part.assets)],
        asset_checks=[part.catching_up for part in parts],
        jobs=[job for part in parts for job in (part.job, part.prepare)],
        schedules=[part.schedule for part in parts if part.schedule is not None],
        sensors=[sensor for sensor in (*shared, *(sensor for part in parts for sensor in part.sensors)) if sensor is not None],
        resources={
            "cluster": cluster or ClusterResource(address=dg.EnvVar("HEADGATE_CLUSTER")),
            "topics": TopicsResource(address=cluster.address if cluster else dg.EnvVar("HEADGATE_CLUSTER")),
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


class FloodParts:
    """The Dagster objects of one flood: two assets, a check, two jobs, a schedule and sensors."""

    def __init__(self, flood: Flood) -> None:
        partitions = partitions_definition(flood.partitions)
        ops = steps(flood)
        self.topic = topic_asset(flood, ops, partitions, condition_of(flood))
        self.source = source_asset(flood, partitions)
        self.catching_up = catching_up(flood)
        tags = {FLOOD_TAG: flood.name}
        self.job = dg.define_asset_job(
            f"{flood.name}_flood", selection=dg.AssetSelection.assets(topic_key(flood)), tags=tags,
            description=f"The whole flood into `{flood.topic}`.",
        )  # fmt: skip
        self.prepare = _prepare(flood, ops, partitions)
        self.schedule = schedule_of(flood, self.job)
        self.sensors = [*expected_sensors(flood), source_sensor(flood)]

    @property
    def assets(self) -> list[dg.AssetsDefinition | dg.AssetSpec]:
        """The flood's assets."""
        return [self.topic] if self.source is None else [self.source, self.topic]


def _prepare(flood: Flood, ops: Mapping[str, dg.OpDefinition], partitions: dg.PartitionsDefinition[str]) -> dg.JobDefinition:
    """The job that raises brokers ahead of a flood: the first two steps of its asset."""

    @dg.job(
        name=f"{flood.name}_prepare",
        partitions_def=partitions,
        tags={FLOOD_TAG: flood.name},
        description=f"Brokers are raised ahead of a flood into `{flood.topic}`, and wait for it.",
    )
    def prepare() -> None:
        ops["capacity"].alias("capacity")(ops["plan"].alias("plan")())

    return prepare
