"""The resources of assets: the cluster, Spark, and the fleet. Nothing is imported or connected to before its first use.

The work is done by `pipelines/cluster.py`, `pipelines/floods/spark.py` and `fleets/`; a test overrides the methods with a stand-in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import dagster as dg
from pydantic import Field

from headgate.pipelines.cluster import ClusterCalls
from headgate.pipelines.fleets.settings import FleetSettings
from headgate.pipelines.floods.spark import SparkCalls

if TYPE_CHECKING:
    from headgate.pipelines.fleets.interface import Fleet


class ClusterResource(ClusterCalls, dg.ConfigurableResource):  # type: ignore[type-arg]
    """A Headgate cluster. Methods raise HeadgateError after half a minute of retries."""

    address: str = Field(default="127.0.0.1:9095", description="host:grpc_port of any broker, or several with commas between")


class SparkResource(SparkCalls, dg.ConfigurableResource):  # type: ignore[type-arg]
    """Spark. The first flood of the process starts a session, which later floods reuse."""

    master: str = Field(default="local[*]", description="any Spark master")
    driver_memory: str = Field(default="", description="heap of the driver's JVM, such as 4g; empty: Spark's own")
    conf: dict[str, str] = Field(default_factory=dict, description="more Spark settings")


class FleetResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The component that starts and stops brokers."""

    kind: Literal["local", "kubernetes"] = Field(
        default="local", description="local: `headgate up`, or KEDA: they follow by themselves"
    )
    workload: str = Field(default="", description="kubernetes: the StatefulSet or Deployment")
    namespace: str = Field(default="default", description="kubernetes: the namespace")
    workload_kind: Literal["statefulset", "deployment"] = Field(
        default="statefulset", description="kubernetes: what the workload is"
    )
    minimum: int = Field(default=1, ge=0, description="never asked for fewer brokers")
    maximum: int = Field(default=64, ge=1, description="never asked for more brokers")

    def fleet(self, cluster: ClusterCalls) -> Fleet:
        """The fleet. Raises FatalError when it is not configured."""
        return FleetSettings(**{name: getattr(self, name) for name in FleetSettings.model_fields}).fleet(cluster)
