"""Headgate in Dagster: floods as assets with their checks, schedules and sensors, and the resources that they use.

Needs the extra ``assets``: ``pip install 'headgate[assets]'``.
"""

from headgate.broker.runtime.extras import require

require("assets", __name__)

from headgate.assets.automation import upstream  # noqa: E402
from headgate.assets.build import flood_definitions  # noqa: E402
from headgate.assets.component import FloodsComponent  # noqa: E402
from headgate.assets.definitions import from_environment  # noqa: E402
from headgate.assets.example import counts_after  # noqa: E402
from headgate.assets.names import source_key, topic_key  # noqa: E402
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource  # noqa: E402
from headgate.assets.topics import (  # noqa: E402
    FilledGates,
    Lag,
    Message,
    NewRecords,
    TopicsResource,
    offsets_of,
    topic_sensor,
)
from headgate.pipelines.floods.model import Asset, Brokers, Flood, Occurrences, Partitions, Source  # noqa: E402
from headgate.pipelines.floods.parse import flood, parse, parse_all  # noqa: E402

__all__ = [
    "Asset",
    "Brokers",
    "ClusterResource",
    "FilledGates",
    "FleetResource",
    "Flood",
    "FloodsComponent",
    "Lag",
    "Message",
    "NewRecords",
    "Occurrences",
    "Partitions",
    "Source",
    "SparkResource",
    "TopicsResource",
    "counts_after",
    "flood",
    "flood_definitions",
    "from_environment",
    "offsets_of",
    "parse",
    "parse_all",
    "source_key",
    "topic_key",
    "topic_sensor",
    "upstream",
]
