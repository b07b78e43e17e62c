"""The checks of a flood's topic: their names, their meaning, and their results."""

# Dagster reads annotations at run time, so they are not postponed here.
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from headgate.assets.metadata import ADDED, BROKERS, LAG, P99, PLANNED, ROWS, SECONDS, SIZE, number, table
from headgate.assets.names import topic_key
from headgate.assets.progress import Follower
from headgate.assets.recorder import Recording, peak
from headgate.assets.resources import ClusterResource, GroupLag
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import Plan, deviation, loads_a_part

if TYPE_CHECKING:
    from headgate.pipelines.certificate import Certificate

CATCH_UP_LOOK_S = 12.0
"""Two looks at a group's positions are this many seconds apart: clients commit every five seconds by default."""
CHECKS = {
    "certificate_complete": "A client reads the rows, bytes and checksums of the source from the topic. Partitions of earlier runs "
    "were loaded under the present definition of the flood.",
    "in_order": "Within each partition of the topic no record is older than the one before it.",
    "no_duplicates": "Counts offsets that a client reads more than once, of all records of the loaded partitions. Rows that are "
    "twice in the source are two records, and do not count.",
    "plan_against_actual": "The run loaded the planned number of rows. An estimate may be off by half; `where`, and files "
    "with rows of other times, may leave out any number.",
    "nothing_left_out": "The event times of all rows lie in the partition that their path names; no partition takes other rows. "
    "Counted from the metadata of Parquet files, for floods without `where`.",
    "source_unchanged": "Partitions of earlier runs still have as many rows at their source as were loaded. Counted from the "
    "metadata of Parquet files, for floods without `where`.",
}
"""Names and descriptions of the checks that the load reports; `results` has a result for each."""


def specs(flood: Flood) -> list[dg.AssetCheckSpec]:
    """The checks of a flood, as Dagster's specifications."""
    return [dg.AssetCheckSpec(name, asset=topic_key(flood), description=text) for name, text in CHECKS.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a load found.

    `keys`: all partitions of the run. `certificates`: those of loaded partitions. `otherwise`: messages about partitions that were
    loaded under another definition. `cover`: whether partitions take all rows of their paths, and the message. `changed`,
    `unknown`: messages about sources that changed, and about sources that cannot be compared. `seconds`: duration of the load.
    `recording`: the cluster meanwhile.
    """

    plan: Plan
    keys: Sequence[str]
    certificates: "Mapping[str, Certificate]"
    otherwise: Sequence[str]
    cover: tuple[bool, str]
    changed: Sequence[str]
    unknown: Sequence[str]
    seconds: float
    recording: Recording


def results(flood: Flood, outcome: Outcome) -> Iterator[dg.AssetCheckResult]:
    """The results of all checks of `CHECKS`."""
    found = list(outcome.certificates.values())
    added = sum(one.added_rows for one in found)
    read = sum(one.rows for one in found)
    problems = [*outcome.otherwise, *(problem for one in found for problem in one.problems())]
    doubles = sum(one.duplicate_rows or 0 for one in found)
    disorder = sum(one.disordered_rows or 0 for one in found)
    looked = all(one.verified or one.rows == 0 for one in found)
    note = "" if looked else " (not read back: the flood says `verify: false`, or it was committed before)"
    good, off = deviation(outcome.plan, read, filtered=loads_a_part(flood))
    before = len(outcome.keys) - len(found)
    size = sum(one.size_bytes for one in found)
    p99_ms = outcome.recording.p99_ms

    def check(
        name: str, passed: bool, text: str, *, warn: bool = False, figures: Mapping[str, Any] | None = None
    ) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            asset_key=topic_key(flood),
            check_name=name,
            passed=passed,
            severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
            description=text,
            metadata=figures,
        )

    yield check(
        "certificate_complete", not problems, "\n".join(problems) or f"{added:,} rows{note}",
        figures={
            ROWS: read, ADDED: added, SIZE: size, SECONDS: number(outcome.seconds), "problems": len(problems),
            BROKERS: peak(outcome.recording.samples), **({} if p99_ms is None else {P99: number(p99_ms)}),
        },
    )  # fmt: skip
    yield check(
        "in_order", disorder == 0, f"{disorder:,} records before an older one of their partition{note}",
        figures={"records out of order": disorder, "records read": read if looked else 0},
    )  # fmt: skip
    yield check(
        "no_duplicates", doubles == 0, f"{doubles:,} of {read:,} offsets were read more than once{note}",
        figures={"offsets read twice": doubles, "records read": read if looked else 0},
    )  # fmt: skip
    yield check(
        "plan_against_actual", good, f"{off:+.1%} rows against the plan", warn=True,
        figures={PLANNED: outcome.plan.rows, ROWS: read, "difference %": number(100 * off)},
    )  # fmt: skip
    yield check("nothing_left_out", *outcome.cover, warn=True)
    yield check(
        "source_unchanged", not outcome.changed,
        "\n".join([*outcome.changed, *outcome.unknown]) or f"{before} partitions were in the topic before",
        warn=True, figures={"partitions there before": before},
    )  # fmt: skip


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
                "group": group, "lag": one.lag, "before": first.get(group, one).lag, "members": one.members,
            })
            for group, one in second.items()
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
                LAG: sum(one.lag for one in second.values()),
                "largest lag (records)": max((one.lag for one in second.values()), default=0),
                "groups": len(second),
                **({"lag by group": table(rows, columns)} if rows else {}),
            },
        )

    return consumers_catching_up


def considered(flood: Flood, lags: Mapping[str, GroupLag]) -> dict[str, GroupLag]:
    """The groups that the check looks at: those that the flood names, or all with members."""
    return {group: one for group, one in lags.items() if (group in flood.groups if flood.groups else one.members > 0)}


def lag(flood: Flood, cluster: ClusterResource) -> int | None:
    """The records that these groups have not read; None when the brokers do not say."""
    try:
        return sum(one.lag for one in considered(flood, cluster.lags(flood.topic)).values())
    except HeadgateError:
        return None


def standing(first: Mapping[str, GroupLag], second: Mapping[str, GroupLag]) -> list[str]:
    """The groups that are behind and did not advance between two looks."""
    return sorted(group for group, one in second.items() if one.lag and group in first and one.position == first[group].position)
