"""Headgate in Dagster: floods as assets with their checks, schedules and sensors, and the resources that they use.

Needs the extra ``assets``: ``pip install 'headgate[assets]'``.
"""

from headgate.assets.build import flood_definitions
from headgate.assets.definitions import from_environment
from headgate.assets.resources import ClusterResource, FleetResource, SparkResource
from headgate.pipelines.floods.model import Brokers, Flood, Occurrences, Partitions, Source
from headgate.pipelines.floods.parse import parse, parse_all

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
