"""The code location: floods from YAML files, as Dagster definitions.

``HEADGATE_FLOODS``: files or directories, with ``:`` between them; default: ``floods.yaml`` beside this module.
``HEADGATE_CLUSTER``: address of the cluster. ``HEADGATE_SPARK_MASTER``, ``HEADGATE_FLEET``, ``HEADGATE_FLEET_WORKLOAD``,
``HEADGATE_FLEET_NAMESPACE`` and ``HEADGATE_FLEET_MAX``: fields of the resources of these names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from headgate.assets.build import flood_definitions
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.fleets.settings import FleetSettings
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.parse import parse_all

DEFAULT_FILE = Path(__file__).with_name("floods.yaml")


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions; Dagster calls this function when it loads the code location."""
    return from_environment(os.environ)


def from_environment(environment: Mapping[str, str]) -> dg.Definitions:
    """The definitions for an environment. Raises InvalidError with each mistake of the files and its line, or of the
    environment."""
    return flood_definitions(
        load(environment.get("HEADGATE_FLOODS", str(DEFAULT_FILE))),
        cluster=ClusterResource(address=environment.get("HEADGATE_CLUSTER", "127.0.0.1:9095")),
        spark=SparkResource(master=environment.get("HEADGATE_SPARK_MASTER", "local[*]")),
        fleet=FleetResource(**FleetSettings.from_environment(environment).model_dump()),
    )


def load(paths: str) -> list[Flood]:
    """The floods of files, or of all ``.yaml`` files of directories. Raises InvalidError."""
    files: list[Path] = []
    for part in filter(None, paths.split(":")):
        path = Path(part)
        files += sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
    if not files:
        raise InvalidError(Reason.INVALID_CONFIG, f"there is no file with floods (.yaml, .yml). HEADGATE_FLOODS=`{paths}`")
    documents = []
    for file in files:
        try:
            documents.append((file.read_text(), str(file)))
        except (OSError, UnicodeDecodeError) as error:
            why = str(getattr(error, "strerror", None) or error).lower()
            raise InvalidError(
                Reason.INVALID_CONFIG, f"floods cannot be read: {why}. HEADGATE_FLOODS=`{paths}` file=`{file}`"
            ) from error
    return parse_all(documents)
