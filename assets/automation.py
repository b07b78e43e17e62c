"""Floods that begin by Dagster's own automation: when the assets that write their source have a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import dagster as dg

from headgate.assets.names import topic_key
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.parse import ON_CRON

Condition: TypeAlias = dg.AutomationCondition[Any]


def upstream() -> Condition:
    """Each partition that the topic lacks, once, when all assets before it get it; whichever day it is of.

    Partitions that they have at the first evaluation are not requested, as with Dagster's own conditions: a new sensor starts no
    backfill.
    """
    ready: Condition = dg.AutomationCondition.missing() & ~dg.AutomationCondition.any_deps_missing()
    idle: Condition = ~dg.AutomationCondition.any_deps_in_progress() & ~dg.AutomationCondition.in_progress()
    return (ready.newly_true().since_last_handled() & idle).with_label("upstream has the partition")


def condition_of(flood: Flood) -> Condition | None:
    """The automation condition of a flood's topic. Raises ValueError for an unknown one."""
    declared = flood.asset.automation_condition
    if declared is None or isinstance(declared, dg.AutomationCondition):
        return declared
    if declared == "upstream":
        return upstream()
    if declared == "eager":
        return dg.AutomationCondition.eager()
    if declared == "on_missing":
        return dg.AutomationCondition.on_missing()
    if isinstance(declared, str) and (found := ON_CRON.fullmatch(declared)):
        return dg.AutomationCondition.on_cron(found[1], flood.partitions.timezone)
    raise ValueError(f"not a condition: a word such as `upstream`, or an AutomationCondition. automation_condition=`{declared}`")


def automation_sensor(floods: Sequence[Flood]) -> dg.AutomationConditionSensorDefinition | None:
    """The sensor that evaluates the conditions of these floods, running from the start; None when no flood has one."""
    keys = [topic_key(flood) for flood in floods if flood.asset.automation_condition is not None]
    if not keys:
        return None
    return dg.AutomationConditionSensorDefinition(
        "flood_automation",
        target=dg.AssetSelection.assets(*keys),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Launches floods whose automation condition is true.",
    )
