"""Floods that follow the assets that write their source, without cron: the condition `upstream`, as Dagster's daemon evaluates it.

Compared: the partitions that each evaluation requests with those that the upstream assets got. A mismatch means that a day is not
flooded, or is requested again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.assets.automation import automation_sensor
from headgate.assets.build import flood_definitions
from headgate.assets.names import topic_key
from headgate.pipelines.floods.model import Asset
from tests.support.floods import flood
from tests.support.stand_in import StandInCluster, StandInSpark, book

NOW = datetime(2026, 1, 20, 12, tzinfo=UTC)
LAKE, USERS = dg.AssetKey(["lake", "clicks"]), dg.AssetKey(["dim", "users"])


class Ticks:
    """A flood with two assets before it, and the daemon that evaluates its condition."""

    def __init__(self, instance: dg.DagsterInstance, source: str) -> None:
        self.instance = instance
        self.name, self.book = book()
        self.flood = flood(source, asset=Asset(deps=("lake/clicks", "dim/users"), automation_condition="upstream"))
        partitions = dg.DailyPartitionsDefinition(start_date="2026-01-01")

        before = [dg.AssetSpec(key, partitions_def=partitions) for key in (LAKE, USERS)]
        own = flood_definitions([self.flood], cluster=StandInCluster(name=self.name), spark=StandInSpark(name=self.name))
        self.definitions = dg.Definitions.merge(own, dg.Definitions(assets=before))
        self._cursor: Any = None

    def written(self, day: str, *keys: dg.AssetKey) -> None:
        """The assets before the flood got a day."""
        for key in keys:
            self.instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=day))

    def requested(self) -> set[str | None]:
        """The partitions that the next evaluation requests."""
        selection = dg.AssetSelection.assets(topic_key(self.flood))
        result = dg.evaluate_automation_conditions(
            self.definitions, self.instance, selection, evaluation_time=NOW, cursor=self._cursor
        )
        self._cursor = result.cursor
        return {str(one) for one in result.get_requested_partitions(topic_key(self.flood))}

    def run(self, day: str) -> None:
        job = self.definitions.resolve_job_def("clicks_flood")
        assert job.execute_in_process(instance=self.instance, tags={"dagster/partition": day}).success


@pytest.fixture
def ticks(tmp_path: Path) -> Iterator[Ticks]:
    path = tmp_path / "clicks.parquet"
    pq.write_table(pa.table({"at": pa.array([NOW.replace(day=5)] * 7, pa.timestamp("us", tz="UTC"))}), path)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ticks(instance, str(path))


def test_a_day_is_flooded_when_all_assets_before_it_have_it(ticks: Ticks) -> None:
    ticks.written("2026-01-02", LAKE, USERS)
    assert ticks.requested() == set(), "what was there before the first look is loaded by hand, as with Dagster's own conditions"
    ticks.written("2026-01-05", LAKE, USERS)
    assert ticks.requested() == {"2026-01-05"}
    assert ticks.requested() == set(), "it is requested once, whether or not its run has begun"
    ticks.written("2026-01-03", LAKE)
    assert ticks.requested() == set(), "dim/users lacks that day"
    ticks.written("2026-01-03", USERS)
    ticks.written("2026-01-19", LAKE, USERS)
    assert ticks.requested() == {"2026-01-03", "2026-01-19"}, "whichever day it is of"


def test_a_day_that_the_topic_has_is_not_requested_again(ticks: Ticks) -> None:
    assert ticks.requested() == set()
    ticks.book.rows = {"2026-01-05": 7}
    ticks.run("2026-01-05")
    ticks.written("2026-01-05", LAKE, USERS)
    assert ticks.requested() == set()
    ticks.written("2026-01-05", LAKE)
    assert ticks.requested() == set(), "a day that its source got anew stays as it is in the topic"


def test_the_sensor_runs_from_the_start(ticks: Ticks) -> None:
    sensor = automation_sensor([ticks.flood])
    assert sensor is not None and sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert automation_sensor([flood("/data")]) is None
