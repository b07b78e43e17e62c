"""The owner of a reservation, and whether that owner still needs it.

The owner of a run's reservation is an occurrence of a flood, else a backfill of the UI, else the run alone. All runs of one
backfill therefore share one reservation, and the cluster is raised once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

if TYPE_CHECKING:
    from dagster._core.execution.backfill import PartitionBackfill

BACKFILL_TAG = "dagster/backfill"
OCCURRENCE_TAG = "headgate/occurrence"
HOLD_UNTIL_TAG = "headgate/hold_until"
FLOOD_TAG = "headgate/flood"
OWNER_PREFIX = "dagster"
RUNS_MAX = 10_000
GRACE = timedelta(minutes=10)
"""Time that a reservation ahead of an occurrence outlives the occurrence's time while its run has not begun."""

Kind = Literal["occurrence", "backfill", "run"]
_ENDED_BACKFILLS = ("COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED", "FAILING")


@dataclass(frozen=True, slots=True)
class Owner:
    """The unit to which a run belongs: an occurrence, a backfill, or the run itself."""

    flood: str
    kind: Kind
    id: str

    @property
    def text(self) -> str:
        """The text of the owner in a reservation."""
        return f"{OWNER_PREFIX}/{self.kind}/{self.flood}/{self.id}"

    @property
    def reservation_id(self) -> str:
        """The id of the owner's reservation."""
        return f"{self.flood}.{self.id}"

    @classmethod
    def of(cls, flood: str, run_id: str, tags: Mapping[str, str]) -> Owner:
        """The owner of a run."""
        if occurrence := tags.get(OCCURRENCE_TAG):
            return cls(flood, "occurrence", occurrence)
        if backfill := tags.get(BACKFILL_TAG):
            return cls(flood, "backfill", backfill)
        return cls(flood, "run", run_id)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner in a reservation's text; None unless Dagster made the reservation."""
        parts = text.split("/")
        if len(parts) != 4 or parts[0] != OWNER_PREFIX or parts[1] not in ("occurrence", "backfill", "run"):
            return None
        return cls(parts[2], parts[1], parts[3])  # type: ignore[arg-type]  # the check above allows only these three

    def needs_it(self, instance: DagsterInstance, now: datetime, *, without: str = "") -> bool:
        """True when a current or future run needs the reservation.

        Args:
            without: id of a run that does not count: the one that asks.
        """
        if self.kind == "run":
            run = instance.get_run_by_id(self.id)
            return run is not None and not run.is_finished and run.run_id != without
        tag = BACKFILL_TAG if self.kind == "backfill" else OCCURRENCE_TAG
        runs = [
            run for run in instance.get_runs(RunsFilter(tags={tag: self.id}), limit=RUNS_MAX)
            if self.kind == "backfill" or run.tags.get(FLOOD_TAG) == self.flood
        ]  # fmt: skip
        if any(not run.is_finished and run.run_id != without for run in runs):
            return True
        if self.kind == "occurrence":
            begun = any(run.tags.get(HOLD_UNTIL_TAG) is None for run in runs)
            return not begun and now < occurrence_time(self.id) + GRACE
        return _more_to_come(instance, self.id, runs)


def occurrence_id(at: datetime) -> str:
    """A time, as written in tags and ids."""
    return at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def occurrence_time(text: str) -> datetime:
    """The reverse of `occurrence_id`; the epoch for any other text."""
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def _more_to_come(instance: DagsterInstance, backfill_id: str, runs: Sequence[DagsterRun]) -> bool:
    """True when a backfill may still start runs. Dagster records its end at a tick of the daemon, later than the end of its last
    run."""
    backfill = instance.get_backfill(backfill_id)
    if backfill is None or backfill.status.value in _ENDED_BACKFILLS:
        return False
    if backfill.status.value.startswith("CANCEL"):
        return False
    asked = backfill.partition_names or _asked(backfill)
    if not asked:
        return True  # unknown until the backfill has ended
    begun: set[str] = set()
    for run in runs:
        if run.status is not DagsterRunStatus.NOT_STARTED:
            begun |= _partitions(run, asked)
    return not begun >= set(asked)


def _asked(backfill: PartitionBackfill) -> list[str]:
    """The partitions that were requested from a backfill of assets."""
    data = backfill.asset_backfill_data
    if data is None:
        return []
    found: set[str] = set()
    for key in data.target_subset.asset_keys:
        subset = data.target_subset.partitions_subsets_by_asset_key.get(key)
        found.update(() if subset is None else subset.get_partition_keys())
    return sorted(found)


def _partitions(run: DagsterRun, asked: Sequence[str]) -> set[str]:
    """The requested partitions that a run covers. Keys of days and hours sort as their times do."""
    if partition := run.tags.get("dagster/partition"):
        return {partition}
    first, last = run.tags.get("dagster/asset_partition_range_start"), run.tags.get("dagster/asset_partition_range_end")
    return set() if first is None or last is None else {key for key in asked if first <= key <= last}
