"""The checks of a flood's topic: their names, their meaning, and their results."""

# Dagster reads annotations at run time, so they are not postponed here.
import time
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from headgate.assets.metadata import ADDED, BROKERS, LAG, P99, PLANNED, ROWS, SECONDS, SIZE, number, table
from headgate.assets.names import topic_key
from headgate.assets.recorder import Recording, peak
from headgate.assets.resources import ClusterResource
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.cluster import GroupLag
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.outcome import CHECKS, Outcome, judgements
from headgate.pipelines.follower import Follower

CATCH_UP_LOOK_S = 12.0
"""Two looks at a group's positions are this many seconds apart: clients commit every five seconds by default."""


def specs(flood: Flood) -> list[dg.AssetCheckSpec]:
    """The checks of a flood, as Dagster's specifications."""
    return [dg.AssetCheckSpec(name, asset=topic_key(flood), description=text) for name, text in CHECKS.items()]


def results(flood: Flood, outcome: Outcome, recording: Recording) -> Iterator[dg.AssetCheckResult]:
    """The results of all checks of `CHECKS`. `recording`: the cluster during the load."""
    read = outcome.read if outcome.looked else 0
    p99_ms = recording.p99_ms
    figures: dict[str, dict[str, Any]] = {
        "certificate_complete": {
            ROWS: outcome.read, ADDED: outcome.added, SIZE: outcome.size_bytes, SECONDS: number(outcome.seconds),
            "problems": len(outcome.problems), BROKERS: peak(recording.samples),
            **({} if p99_ms is None else {P99: number(p99_ms)}),
        },
        "in_order": {"records out of order": outcome.disorder, "records read": read},
        "no_duplicates": {"offsets read twice": outcome.doubles, "records read": read},
        "plan_against_actual": {
            PLANNED: outcome.plan.rows, ROWS: outcome.read, "difference %": number(100 * outcome.deviation(flood)[1]),
        },
        "source_unchanged": {"partitions there before": outcome.before},
    }  # fmt: skip
    for judgement in judgements(flood, outcome):
        yield dg.AssetCheckResult(
            asset_key=topic_key(flood),
            check_name=judgement.name,
            passed=judgement.passed,
            severity=dg.AssetCheckSeverity.WARN if judgement.warns else dg.AssetCheckSeverity.ERROR,
            description=judgement.text,
            metadata=figures.get(judgement.name),
        )


def catching_up(flood: Flood) -> dg.AssetChecksDefinition:
    """The check of the topic's consumer groups."""

    @dg.asset_check(
        name="consumers_catching_up",
        asset=topic_key(flood),
        description="Consumer groups have read everything, or go on reading: "
        + (f"of {', '.join(flood.groups)}." if flood.groups else "of all groups that have members."),
    )
    def consumers_catching_up(context: dg.AssetCheckExecutionContext, cluster: ClusterResource) -> dg.AssetCheckResult:
        try:
            with Follower(context.log.info) as follow:
                follow.at("watching the topic's consumer groups")
                first = second = considered(flood, cluster.lags(flood.topic))
                until = time.monotonic() + CATCH_UP_LOOK_S
                while standing(first, second) and time.monotonic() < until:
                    time.sleep(1)
                    second = considered(flood, cluster.lags(flood.topic))
        except Exception as error:  # noqa: BLE001  # a check that cannot read its data fails itself, not the flood
            return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=str(error))
        missing = sorted(set(flood.groups) - set(second))
        stuck = standing(first, second)
        rows = [
            dg.TableRecord({
                "group": group, "lag": lag.lag, "before": first.get(group, lag).lag, "members": lag.members,
            })
            for group, lag in second.items()
        ]  # fmt: skip
        columns = {"group": "string", "lag": "int", "before": "int", "members": "int"}
        problems = [f"not reading: {', '.join(stuck)}"] if stuck else []
        if missing:
            problems.append(f"without a position in the topic: {', '.join(missing)}")
        return dg.AssetCheckResult(
            passed=not problems,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(problems) or f"{len(second)} groups read the topic",
            metadata={
                LAG: sum(lag.lag for lag in second.values()),
                "largest lag (records)": max((lag.lag for lag in second.values()), default=0),
                "groups": len(second),
                **({"lag by group": table(rows, columns)} if rows else {}),
            },
        )

    return consumers_catching_up


def considered(flood: Flood, lags: Mapping[str, GroupLag]) -> dict[str, GroupLag]:
    """The groups that the check looks at: those that the flood names, or all with members."""
    return {group: lag for group, lag in lags.items() if (group in flood.groups if flood.groups else lag.members > 0)}


def lag(flood: Flood, cluster: ClusterResource) -> int | None:
    """The records that these groups have not read; None when the brokers do not say."""
    try:
        return sum(lag.lag for lag in considered(flood, cluster.lags(flood.topic)).values())
    except HeadgateError:
        return None


def standing(first: Mapping[str, GroupLag], second: Mapping[str, GroupLag]) -> list[str]:
    """The groups that are behind and did not advance between two looks."""
    return sorted(group for group, lag in second.items() if lag.lag and group in first and lag.position == first[group].position)
