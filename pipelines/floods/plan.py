"""The plan of a flood: its rows and bytes, the number of brokers and their time, and whether the deadline holds. Pure.

Spark's writes by reference cost the brokers next to nothing. The brokers serve the flood's readers, so their number is the one
that delivers the flood within `catch_up`, and the time is the time per row of earlier runs of the same flood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import names_partition, source_path, span_of

SETUP_S = 15.0
"""Start of Spark and of brokers, in seconds, before the first measurement."""
LANE_BYTES_PER_S = 200e6
"""Bytes per second that one lane is counted on to serve: half of what it serves with a core of its own (tests/bench), because
clients and other brokers work on its machine too."""
LANES_MAX = 64
"""Most lanes that a cluster reserves."""
ROWS_PER_S = 100_000.0
"""Rows that one Spark machine moves per second, before the first measurement."""
PAST_RUNS_MAX = 20
SAID_MAX = 20
"""Paths, or partitions, that one message names; a person reads it."""
TOLERANCE = 0.5
"""Tolerated share by which an estimate of rows may be wrong in the check of plan against actual; an exact count has no
tolerance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionSize:
    """The content of one partition's source.

    `exact`: counted, not estimated. `elsewhere`: rows at the partition's path whose time differs from the path's, so that no
    partition takes them; None when unknown, or when the path names no time. `loaded`: rows that are in the topic already and are
    not among `rows`, when only the late ones come.
    """

    key: str
    rows: int
    size_bytes: int
    exact: bool
    elsewhere: int | None = None
    loaded: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """The figures of a finished run: rows and bytes that it added, and the broker-seconds of its time."""

    rows: int
    size_bytes: int
    seconds: float
    broker_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The forecast of a flood. An artifact: its JSON is kept with the run."""

    flood: str
    topic: str
    partitions: tuple[PartitionSize, ...]
    rows: int
    size_bytes: int
    exact: bool
    brokers: int
    seconds: float
    broker_seconds: float
    deadline: datetime
    basis: str
    """The basis of the forecast, for a person."""
    stands: tuple[str, ...] = ()
    """What will stand before and behind the history, and how to change it."""
    notes: tuple[str, ...] = ()
    """What a person should know, and no mistake."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Partitions that are not loaded, each with the reason."""
    lanes: int = 0
    """Lanes that serve the flood's readers, apart from brokers."""
    lanes_why: str = ""
    """The reason for their number, for a person."""

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            **asdict(self),
            "partitions": [asdict(partition) for partition in self.partitions],
            "deadline": self.deadline.isoformat(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan that `to_json` wrote. Raises KeyError, TypeError, ValueError for anything else."""
        texts = {name: tuple(data.get(name, ())) for name in ("stands", "notes")}
        return cls(**{
            **data,
            **texts,
            "partitions": tuple(PartitionSize(**partition) for partition in data["partitions"]),
            "left_out": tuple((key, why) for key, why in data.get("left_out", ())),
            "deadline": datetime.fromisoformat(data["deadline"]),
        })  # fmt: skip


def forecast(
    flood: Flood, sizes: Sequence[PartitionSize], past: Sequence[PastRun], now: datetime, deadline: datetime, readers: int = 1
) -> Plan:
    """Make the plan.

    Args:
        sizes: the source's, by partition, without partitions that are in the topic already.
        past: finished runs of this flood, the newest first.
        readers: consumer groups that read the flood.
    """
    rows = sum(size.rows for size in sizes)
    size_bytes = sum(size.size_bytes for size in sizes)
    useful = [outcome for outcome in past if outcome.rows > 0 and outcome.seconds > 0][:PAST_RUNS_MAX]
    if rows == 0:
        seconds, basis = 0.0, "nothing to add"
    elif useful:
        setup_s, rows_per_s = _fit(useful)
        seconds = setup_s + rows / rows_per_s
        basis = f"{len(useful)} earlier run{'s' if len(useful) > 1 else ''}: {setup_s:.0f} s + {rows_per_s:,.0f} rows/s"
    else:
        seconds = SETUP_S + rows / ROWS_PER_S
        basis = f"no earlier run: {SETUP_S:.0f} s + {ROWS_PER_S:,.0f} rows/s are assumed"
    limits = flood.brokers
    needed = math.ceil(size_bytes / (limits.bytes_per_s * flood.catch_up_ms / 1000))
    brokers = max(limits.minimum, min(limits.maximum, needed))
    lanes, lanes_why = plan_lanes(size_bytes, flood.catch_up_ms, readers)
    return Plan(
        flood=flood.name,
        topic=flood.topic,
        partitions=tuple(sizes),
        rows=rows,
        size_bytes=size_bytes,
        exact=all(size.exact for size in sizes),
        brokers=brokers,
        seconds=round(seconds, 1),
        broker_seconds=round(seconds * brokers, 1),
        deadline=deadline,
        basis=basis,
        lanes=lanes,
        lanes_why=lanes_why,
    )


def plan_lanes(size_bytes: int, catch_up_ms: int, readers: int) -> tuple[int, str]:
    """Number of lanes with which all readers read these bytes in this time, and the reason, for a person."""
    if not size_bytes:
        return 0, "nothing to read"
    bytes_per_s = max(readers, 1) * size_bytes / (catch_up_ms / 1000)
    lanes = min(math.ceil(bytes_per_s / LANE_BYTES_PER_S), LANES_MAX)
    groups = "1 group catches" if readers <= 1 else f"{readers} groups catch"
    return lanes, (f"{groups} up at {bytes_per_s / 1e6:,.3g} MB/s in all, one lane serves about {LANE_BYTES_PER_S / 1e6:.0f} MB/s")


def covered(flood: Flood, sizes: Sequence[PartitionSize]) -> tuple[bool, str]:
    """Whether partitions take all rows at their paths, as far as that is known; and the message about it."""
    if flood.partition_by == "path":
        return True, "each partition takes all rows at its path"
    outside = {source_path(flood, span_of(flood.partitions, size.key)): size.elsewhere for size in sizes if size.elsewhere}
    if outside:
        each = ", ".join(f"{path}: {rows}" for path, rows in sorted(outside.items())[:SAID_MAX])
        return False, (
            "rows are of another time than the path at which they are, and no partition takes them. A `source` without the time in "
            f"its path has all rows for each partition; or `timezone` is another. rows=`{each}` paths=`{len(outside)}`"
        )
    if any(size.elsewhere is None for size in sizes):
        return True, "not counted: the path names no time, or only Spark could count its rows"
    return True, "0 rows are of another time than the path at which they are"


def too_late(plan: Plan, now: datetime) -> str | None:
    """The reason why the deadline cannot be kept; None when it can."""
    if plan.rows == 0:
        return None
    if plan.deadline <= now:
        return f"the deadline is over. deadline=`{plan.deadline.isoformat()}` now=`{now.isoformat(timespec='seconds')}`"
    if now + timedelta(seconds=plan.seconds) > plan.deadline:
        return (
            f"the deadline cannot be kept: the flood takes longer. deadline=`{plan.deadline.isoformat()}` "
            f"now=`{now.isoformat(timespec='seconds')}` forecast_s=`{plan.seconds}`"
        )
    return None


def loads_a_part(flood: Flood) -> bool:
    """True if a partition has some of the rows at its path only: those that meet a condition, or those of its time."""
    return flood.where is not None or not names_partition(flood.source.path, flood.partitions.by)


def deviation(plan: Plan, actual_rows: int, *, filtered: bool = False) -> tuple[bool, float]:
    """Plan against actual: whether the plan was good enough, and the share by which its rows were wrong (0.1: 10 % more than
    planned).

    Args:
        filtered: the flood loads only a part of the rows at its paths, which an estimate does not know: fewer rows are no error.
    """
    off = (actual_rows - plan.rows) / plan.rows if plan.rows else float(actual_rows > 0)
    if plan.exact:
        return off == 0, off
    return (off if filtered else abs(off)) <= TOLERANCE, off


def _fit(past: Sequence[PastRun]) -> tuple[float, float]:
    """Seconds of setup, and rows per second: a line through the measurements, or the ratio of their sums when the line makes no
    sense."""
    count = len(past)
    mean_rows = sum(outcome.rows for outcome in past) / count
    mean_s = sum(outcome.seconds for outcome in past) / count
    spread = sum((outcome.rows - mean_rows) ** 2 for outcome in past)
    if count >= 2 and spread > (0.1 * mean_rows) ** 2 * count:
        s_per_row = sum((outcome.rows - mean_rows) * (outcome.seconds - mean_s) for outcome in past) / spread
        setup_s = mean_s - s_per_row * mean_rows
        if s_per_row > 0 and setup_s >= 0:
            return setup_s, 1 / s_per_row
    setup_s = min(SETUP_S, 0.5 * mean_s)
    return setup_s, mean_rows / (mean_s - setup_s)
