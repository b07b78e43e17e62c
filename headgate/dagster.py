"""Headgate in Dagster: floods as assets with their checks, schedules and sensors, and the resources that they use.

Needs the extra ``assets``: ``pip install 'headgate[assets]'``.
"""

from headgate.broker.runtime.extras import require

require("assets", __name__)

from headgate.assets.build import flood_definitions  # noqa: E402
from headgate.assets.definitions import from_environment  # noqa: E402
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource  # noqa: E402
from headgate.pipelines.floods.model import Brokers, Flood, Occurrences, Partitions, Source  # noqa: E402
from headgate.pipelines.floods.parse import parse, parse_all  # noqa: E402

__all__ = [
    "Brokers",
    "ClusterResource",
    "FleetResource",
    "Flood",
    "Occurrences",
    "Partitions",
    "Source",
    "SparkResource",
    "flood_definitions",
    "from_environment",
    "parse",
    "parse_all",
]
