"""Keys of a flood's assets. Pure.

The asset of the topic has the flood's name: several floods may lead into one topic, and each has partitions of its own.
"""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg

from headgate.pipelines.floods.model import Flood

STEPS = ("plan", "capacity", "load", "release")
"""The steps of a topic's asset, in their order."""


def topic_key(flood: Flood) -> dg.AssetKey:
    """The key of the topic's asset."""
    return dg.AssetKey([*flood.asset.key_prefix, flood.name])


def source_key(flood: Flood) -> dg.AssetKey | None:
    """The key of the source's own asset; None when assets of Dagster write the source."""
    return None if flood.asset.deps else dg.AssetKey([*flood.asset.key_prefix, f"{flood.name}_source"])


def check_keys(flood: Flood, names: Collection[str]) -> list[dg.AssetCheckKey]:
    """The keys of checks of the topic's asset."""
    return [dg.AssetCheckKey(topic_key(flood), name) for name in names]
