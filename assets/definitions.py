"""The code location: floods from YAML files, as Dagster sees them.

``HEADGATE_FLOODS``: files or directories, with ``:`` between them; default: ``floods.yaml`` beside this module.
``HEADGATE_CLUSTER``: where the cluster is. ``HEADGATE_SPARK_MASTER``, ``HEADGATE_FLEET``, ``HEADGATE_FLEET_WORKLOAD``,
``HEADGATE_FLEET_NAMESPACE``, ``HEADGATE_FLEET_REGION``, ``HEADGATE_FLEET_MAX``: Spark and the fleet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from assets.build import flood_definitions
from assets.floods.model import Flood
from assets.floods.parse import parse_all
from assets.resources import ClusterResource, FleetResource, SparkResource
from broker.runtime.errors import InvalidError, Reason

DEFAULT_FILE = Path(__file__).with_name("floods.yaml")


@dg.definitions
def defs() -> dg.Definitions:
    """Read when the code location is loaded."""
    return from_environment(os.environ)


def from_environment(environment: Mapping[str, str]) -> dg.Definitions:
    """Raises InvalidError: what is wrong in the files, each mistake with its line."""
    fleet: dict[str, object] = {"kind": environment.get("HEADGATE_FLEET", "local")}
    for field in ("workload", "namespace", "region"):
        if value := environment.get(f"HEADGATE_FLEET_{field.upper()}"):
            fleet[field] = value
    if most := environment.get("HEADGATE_FLEET_MAX"):
        fleet["maximum"] = int(most)
    return flood_definitions(
        load(environment.get("HEADGATE_FLOODS", str(DEFAULT_FILE))),
        cluster=ClusterResource(address=environment.get("HEADGATE_CLUSTER", "127.0.0.1:9095")),
        spark=SparkResource(master=environment.get("HEADGATE_SPARK_MASTER", "local[*]")),
        fleet=FleetResource(**fleet),  # type: ignore[arg-type]  # pydantic checks them
    )


def load(paths: str) -> list[Flood]:
    """The floods of files, or of all ``.yaml`` files of directories. Raises InvalidError."""
    files: list[Path] = []
    for part in filter(None, paths.split(":")):
        path = Path(part)
        files += sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
    documents = []
    for file in files:
        try:
            documents.append((file.read_text(), str(file)))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidError(Reason.INVALID_CONFIG, f"floods cannot be read: {error}. HEADGATE_FLOODS=`{paths}`") from error
    return parse_all(documents)
