"""Floods as a component of Dagster: ``type: headgate.dagster.FloodsComponent``, scaffolded by ``dg scaffold defs``.

Its attributes are the fields of ``floods.yaml``, so that one declaration has one meaning everywhere.
"""

# Dagster reads annotations at run time, so they are not postponed here.
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from headgate.assets.build import flood_definitions
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource
from headgate.pipelines.floods.parse import parse_all, parse_values


class FloodParams(BaseModel):
    """Parameters of ``dg scaffold defs headgate.dagster.FloodsComponent NAME``."""

    name: str = Field(default="clicks", description="name of the flood, and of the topic's asset")
    topic: str = Field(default="", description="the topic; default: the name")
    source: str = Field(default="./history/%Y-%m-%d.parquet", description="where the history is; %Y, %m, %d: the partition's day")
    event_time: str = Field(default="event_time", description="the column of the event's time")
    start: str = Field(default="", description="the first day; default: a week ago")


class FloodsScaffolder(dg.Scaffolder[FloodParams]):
    """Writes a component's ``defs.yaml`` with one flood."""

    @classmethod
    def get_scaffold_params(cls) -> type[FloodParams]:
        """The parameters of the command."""
        return FloodParams

    def scaffold(self, request: dg.ScaffoldRequest[FloodParams]) -> None:
        """Write the file."""
        params = request.params
        flood = {
            "name": params.name,
            "topic": params.topic or params.name,
            "source": params.source,
            "event_time": params.event_time,
            "partitions": {"by": "day", "start": params.start or (datetime.now(UTC) - timedelta(days=7)).date().isoformat()},
            "deadline": "2h",
            "brokers": {"min": 1, "max": 3},
        }
        dg.scaffold_component(request, {"cluster": "127.0.0.1:9095", "floods": [flood]})


@dg.scaffold_with(FloodsScaffolder)
class FloodsComponent(dg.Component, dg.Model, dg.Resolvable):
    """Floods: history that enters topics by reference, as assets. One component of a project declares all its floods.

    `floods` has the fields of ``floods.yaml``; `files` are such files, relative to this one.
    """

    floods: list[dict[str, Any]] = Field(default_factory=list, description="as under `floods:` in floods.yaml")
    files: list[str] = Field(default_factory=list, description="files with floods, relative to this one")
    cluster: str = Field(default="127.0.0.1:9095", description="host:grpc_port of any broker, or several with commas between")
    spark: dict[str, Any] = Field(default_factory=dict, description="fields of SparkResource: master, driver_memory, conf")
    fleet: dict[str, Any] = Field(default_factory=dict, description="fields of FleetResource: kind, workload, namespace ...")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the floods. Raises InvalidError with each mistake."""
        return self.definitions(context.path)

    def definitions(self, directory: Path) -> dg.Definitions:
        """The definitions. `directory`: that of the component's file."""
        document: Mapping[str, Any] = {"floods": self.floods}
        declared = parse_values(document, "attributes") if self.floods or not self.files else []
        declared += parse_all([((directory / name).read_text(), name) for name in self.files])
        return flood_definitions(
            declared,
            cluster=ClusterResource(address=self.cluster),
            spark=SparkResource(**self.spark),
            fleet=FleetResource(**self.fleet),
        )
