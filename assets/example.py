"""An example of an asset after a flood: it reads the topic's day with Spark, history and live records alike.

`counts_after(flood)` makes the asset; a code location adds it to the flood's own definitions::

    clicks = flood(name="clicks", topic="clicks", ...)
    defs = dg.Definitions.merge(flood_definitions([clicks]), dg.Definitions(assets=[counts_after(clicks)]))
"""

# Dagster reads annotations at run time, so they are not postponed here.
import dagster as dg

from headgate.assets.build import partitions_definition
from headgate.assets.names import topic_key
from headgate.assets.resources import ClusterResource, SparkResource
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import span_of


def counts_after(flood: Flood) -> dg.AssetsDefinition:
    """The asset ``<flood>_counts``: records and keys of each day of a flood's topic."""

    @dg.asset(
        name=f"{flood.name}_counts",
        deps=[topic_key(flood)],
        partitions_def=partitions_definition(flood.partitions),
        group_name=flood.asset.group or flood.name,
        kinds={"spark"},
        automation_condition=dg.AutomationCondition.eager(),
        description=f"Records and keys of each day in the topic `{flood.topic}`, counted by Spark.",
    )
    def counts(context: dg.AssetExecutionContext, cluster: ClusterResource, spark: SparkResource) -> dg.MaterializeResult[None]:
        from headgate.spark import read_topic

        span = span_of(flood.partitions, context.partition_key)
        records = read_topic(spark.session(), flood.topic, cluster=cluster.address)
        day = records.where((records.timestamp >= span.start) & (records.timestamp < span.end))
        (row,) = day.selectExpr("count(*)", "count(DISTINCT key)").collect()
        return dg.MaterializeResult(
            metadata={"dagster/partition_row_count": int(row[0]), "records": int(row[0]), "keys": int(row[1])}
        )

    return counts
