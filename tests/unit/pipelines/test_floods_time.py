"""Cron, partitions and occurrences: our times against Dagster's own, for random schedules, zones and moments.

A mismatch means that a flood is prepared for another moment than the one at which Dagster starts it, or gets another day's rows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.assets.build import partitions_definition
from headgate.assets.owners import HOLD_UNTIL_TAG, OCCURRENCE_TAG
from headgate.assets.schedules import expected_runs
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.floods.cron import Cron
from headgate.pipelines.floods.model import By, Flood, Occurrences, Partitions, Source
from headgate.pipelines.floods.parse import parse_all
from headgate.pipelines.floods.planning import make_plan
from headgate.pipelines.floods.spans import (
    KEY_FORMATS,
    deadline_at,
    first_key,
    gate_id,
    keys_between,
    newest_key,
    occurrences,
    part_of,
    path_span,
    source_path,
    span_of,
    spans_of,
)
from tests.support import floods

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
CHANGING = (
    "Europe/Berlin", "America/New_York", "America/Havana", "America/Sao_Paulo", "Africa/Casablanca", "Africa/Cairo",
    "Antarctica/Troll", "Asia/Amman", "Pacific/Chatham", "Europe/Istanbul", "America/St_Johns",
)  # fmt: skip
"""Zones with summer time, at midnight too, by two hours, from an offset of 30 or 45 minutes, and zones that changed their rule."""
# 03:00 and later: cron implementations differ in the hour that the clock skips or repeats.
CRONS = (
    "0 6 * * *",
    "15,45 4-8 * * *",
    "*/20 3 * * *",
    "0 12 1 * *",
    "30 5 * * mon-fri",
    "0 4 13 * 5",
    "5 23 29 2 *",
    "0 9 * jan,jul 0",
    "0 4 */2 * 1",
    "0 4 1 * */3",
    "0 4 1-31 * tue",
)


@settings(deadline=None)
@given(st.sampled_from(CRONS), st.sampled_from(ZONES), st.integers(0, 4 * 365 * 24 * 3600))
def test_occurrences_are_those_of_dagster(text: str, zone: str, seconds: int) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    ours = list(islice(Cron.parse(text).after(moment, zone), 4))
    theirs = islice(schedule_execution_time_iterator(moment.timestamp(), text, zone, ascending=True), 6)
    # Dagster's result includes the moment itself.
    assert ours == [one.astimezone(UTC) for one in theirs if one > moment][:4]


@pytest.mark.parametrize(
    "text",
    [
        "", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *", "5-1 * * * *",
        "*/0 * * * *", "0 0 30 2 *", "1,,2 * * * *", "\u0663 * * * *",
    ],
)  # fmt: skip
def test_what_is_no_cron(text: str) -> None:
    with pytest.raises(ValueError):
        Cron.parse(text)


@pytest.mark.parametrize("by", ["day", "hour"])
@pytest.mark.parametrize("zone", CHANGING)
def test_partitions_around_a_change_of_the_clock_are_those_of_dagster(zone: str, by: By) -> None:
    """The keys and their spans, three days around each change; and no other name of a partition is one."""
    place = ZoneInfo(zone)
    for change in changes(place):
        start, end = ((change + timedelta(days=days)).astimezone(place) for days in (-2, 2))
        start, end = (one.replace(hour=0, minute=0, fold=0) for one in (start, end))
        partitions = Partitions(by=by, start=start, end=end, timezone=zone)
        definition = partitions_definition(partitions)
        theirs = definition.get_partition_keys(current_time=end + timedelta(days=1))
        assert keys_between(partitions, first_key(partitions), theirs[-1]) == list(theirs), change
        assert newest_key(partitions, end + timedelta(days=1)) == theirs[-1]
        spans = [span_of(partitions, key) for key in theirs]
        windows = [definition.time_window_for_partition_key(key) for key in theirs]
        assert [(one.start, one.end) for one in spans] == [(one.start.astimezone(UTC), one.end.astimezone(UTC)) for one in windows]
        assert all(one.end == after.start for one, after in pairwise(spans)), "each moment is in one partition"
        assert [newest_key(partitions, one.end) for one in spans] == list(theirs), "each partition is over once"
        assert len({gate_id(flood(), key) for key in theirs}) == len(theirs)
        assert all(re.fullmatch("[A-Za-z0-9._-]{1,100}", gate_id(flood(), key)) for key in theirs), "a gate's id"
        named = {(start.replace(tzinfo=None) + timedelta(hours=hours)).strftime(KEY_FORMATS[by]) for hours in range(96)}
        for key in named - set(theirs):
            with pytest.raises(ValueError):
                span_of(partitions, key)


def changes(place: ZoneInfo) -> list[datetime]:
    """The days of some years in which the offset of a zone changes."""
    days = [datetime(year, 1, 1, 12, tzinfo=UTC) + timedelta(days=day) for year in (2016, 2018, 2022, 2026) for day in range(365)]
    offsets = [day.astimezone(place).utcoffset() for day in days]
    found = [day for day, (before, after) in zip(days[1:], pairwise(offsets), strict=True) if before != after]
    assert found
    return found


@pytest.mark.parametrize(
    ("zone", "start", "whole"),
    [
        ("Australia/Lord_Howe", 2026, False), ("Asia/Pyongyang", 2014, False), ("Asia/Pyongyang", 2019, True),
        ("Asia/Kathmandu", 2026, True), ("Pacific/Chatham", 2026, True), ("America/Caracas", 2016, False), ("UTC", 2026, True),
    ],
)  # fmt: skip
def test_hours_of_a_clock_that_changes_by_half_an_hour_are_refused(zone: str, start: int, whole: bool) -> None:
    """Dagster's own hours lose half an hour there."""
    text = (
        "floods: [{name: c, topic: c, source: /d, event_time: at, "
        f"partitions: {{by: hour, start: {start}-01-01, timezone: {zone}}}}}]"
    )
    if whole:
        assert parse_all([(text, "f")])
    else:
        with pytest.raises(InvalidError, match="as hours begin at other minutes after the clock of"):
            parse_all([(text, "f")])
    assert parse_all([(text.replace("by: hour", "by: day"), "f")])


def test_an_hour_that_comes_twice_is_stored_at_one_path() -> None:
    berlin = Partitions(by="hour", start=datetime(2026, 1, 1, tzinfo=UTC), timezone="Europe/Berlin")
    one = flood(source=Source(path="/d/%Y-%m-%d/%H"), partitions=berlin)
    first, second = (span_of(berlin, key) for key in ("2026-10-25-02:00", "2026-10-25-02:00+0100"))
    assert source_path(one, first) == source_path(one, second) == "/d/2026-10-25/02"
    named = path_span(one, second)
    assert named is not None and (named.start, named.end) == (first.start, second.end), "no row there is left out"
    by_path = replace(one, partition_by="path")
    assert (part_of(by_path, first).text("at"), part_of(by_path, second).text("at")) == (None, "(false)"), "no row is loaded twice"


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_plan_counts_the_path_of_an_hour_that_comes_twice_once(tmp_path: Path, kind: str) -> None:
    berlin = Partitions(by="hour", start=datetime(2026, 10, 24, tzinfo=UTC), timezone="Europe/Berlin")
    place = tmp_path / "2026-10-25" / "02"
    place.mkdir(parents=True)
    rows = pa.table({"at": ["2026-10-25T00:30:00Z"] * 10})
    if kind == "parquet":
        pq.write_table(rows, place / "a.parquet")
    else:
        (place / "a.csv").write_text("at\n" + "2026-10-25T00:30:00Z\n" * 10)
    source = Source(path=f"{tmp_path}/%Y-%m-%d/%H", format=kind, options={"header": "true"} if kind == "csv" else {})
    one = flood(source=source, partitions=berlin, partition_by="path", event_time="to_timestamp(at)")
    keys = ["2026-10-25-02:00", "2026-10-25-02:00+0100"]
    now = datetime(2026, 10, 26, tzinfo=UTC)
    for asked, wanted in ((keys, [10, 0]), (keys[:1], [10]), (keys[1:], [0])):
        plan = make_plan(one, asked, None, now, deadline=now + timedelta(hours=1))
        assert [part.rows for part in plan.partitions] == wanted


@settings(deadline=None)
@given(st.sampled_from(("day", "hour")), st.sampled_from(ZONES), st.integers(0, 3 * 365 * 24))
def test_partitions_are_those_of_dagster(by: str, zone: str, hours: int) -> None:
    partitions = Partitions(by=by, start=datetime(2024, 1, 1, tzinfo=UTC), timezone=zone)  # type: ignore[arg-type]
    definition = partitions_definition(partitions)
    now = datetime(2024, 1, 3, tzinfo=UTC) + timedelta(hours=hours, minutes=7)
    with dg.partition_loading_context(effective_dt=now):
        theirs = definition.get_last_partition_key()
    ours = newest_key(partitions, now)
    assert ours == theirs
    assert ours is not None
    span = definition.time_window_for_partition_key(ours)
    if by == "day" or "-0" not in repr(zone):
        found = span_of(partitions, ours)
        assert (found.start, found.end) == (span.start.astimezone(UTC), span.end.astimezone(UTC))


def flood(**changes: object) -> Flood:
    return floods.flood("/data/%Y/%m-%d.parquet", **changes)


def test_a_partition_is_read_by_path_and_by_time() -> None:
    one = flood(where="country = 'NZ' or vip")
    span = span_of(one.partitions, "2026-02-28")
    assert source_path(one, span) == "/data/2026/02-28.parquet"
    escaped = replace(one, source=Source(path="s3://lake/my%20data/100%/%d"))
    assert source_path(escaped, span) == "s3://lake/my%20data/100%/28"
    assert part_of(one, span).text(one.event_time) == (
        "(country = 'NZ' or vip) and at >= timestamp '2026-02-28 00:00:00+00:00' and at < timestamp '2026-03-01 00:00:00+00:00'"
    )
    assert str(part_of(one, span).text("to_timestamp(t)")).startswith("(country = 'NZ' or vip) and (to_timestamp(t)) >= ")


def test_a_day_of_another_zone_and_of_another_length() -> None:
    berlin = Partitions(start=datetime(2026, 1, 1, tzinfo=UTC), timezone="Europe/Berlin")
    spring = span_of(berlin, "2026-03-29")
    assert spring.end - spring.start == timedelta(hours=23)
    assert [one.key for one in spans_of(berlin, ["2026-03-30", "2026-03-29", "2026-03-30"])] == ["2026-03-29", "2026-03-30"]
    with pytest.raises(ValueError):
        span_of(berlin, "2026-03-29-01:00")


@pytest.mark.parametrize(
    ("path", "by", "key", "start", "end"),
    [
        ("/d/%Y-%m-%d", "day", "2026-03-29", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("/d/%Y-%m-%d/%H", "day", "2026-03-30", "2026-03-29T22:00", "2026-03-30T22:00"),
        ("/d/%Y/%m", "day", "2026-12-31", "2026-11-30T23:00", "2026-12-31T23:00"),
        ("/d/%Y/%m", "day", "2026-03-30", "2026-02-28T23:00", "2026-03-31T22:00"),
        ("/d/%Y", "day", "2026-03-30", "2025-12-31T23:00", "2026-12-31T23:00"),
        ("/d/%Y%m%d", "hour", "2026-03-29-05:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("/d/%Y%m%d%H", "hour", "2026-03-29-05:00", "2026-03-29T03:00", "2026-03-29T04:00"),
        ("/d", "day", "2026-03-30", None, None),
        ("/d/%m-%d", "day", "2026-03-30", None, None),
    ],
)
def test_the_time_that_a_path_names(path: str, by: str, key: str, start: str | None, end: str | None) -> None:
    partitions = Partitions(by=by, start=datetime(2026, 1, 1, tzinfo=UTC), timezone="Europe/Berlin")
    found = path_span(flood(source=Source(path=path), partitions=partitions), span_of(partitions, key))
    times = None if found is None else (found.start.isoformat()[:16], found.end.isoformat()[:16])
    assert times == (None if start is None else (start, end))


def test_ids_of_gates_are_what_the_cluster_takes() -> None:
    assert gate_id(flood(), "2026-01-01-05:00") == "clicks.2026-01-01-05.00"


def test_a_deadline_is_a_span_or_a_time() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    assert deadline_at(flood(deadline=60_000), began) == began + timedelta(minutes=1)
    assert deadline_at(flood(deadline=began), began + timedelta(days=1)) == began


def test_a_flood_is_prepared_once_ahead_of_each_occurrence() -> None:
    one = flood(occurrences=Occurrences(cron=Cron.parse("0 6 * * *")), lead_time_ms=600_000)
    assert expected_runs(one, datetime(2026, 2, 1, 5, 49, tzinfo=UTC)) == []
    first = expected_runs(one, datetime(2026, 2, 1, 5, 51, tzinfo=UTC))
    again = expected_runs(one, datetime(2026, 2, 1, 5, 59, tzinfo=UTC))
    assert [run.run_key for run in first] == [run.run_key for run in again] == ["clicks/prepare/2026-02-01T06:00:00Z"]
    assert first[0].job_name == "clicks_prepare" and first[0].partition_key == "2026-01-31"
    assert first[0].tags == {OCCURRENCE_TAG: "20260201T060000Z", HOLD_UNTIL_TAG: "2026-02-01T06:00:00+00:00"}
    assert expected_runs(one, datetime(2026, 2, 1, 6, 1, tzinfo=UTC)) == [], "Dagster's scheduler starts it"


def test_floods_at_fixed_times_are_begun_by_the_sensor() -> None:
    one = flood(occurrences=Occurrences(at=(datetime(2026, 2, 1, 6, tzinfo=UTC),)), lead_time_ms=600_000)
    assert [run.job_name for run in expected_runs(one, datetime(2026, 2, 1, 5, 55, tzinfo=UTC))] == ["clicks_prepare"]
    begun = expected_runs(one, datetime(2026, 2, 1, 6, 20, tzinfo=UTC))
    assert [(run.run_key, run.job_name) for run in begun] == [("clicks/start/2026-02-01T06:00:00Z", "clicks_flood")]
    assert expected_runs(one, datetime(2026, 2, 1, 8, tzinfo=UTC)) == [], "an hour late is too late"


def test_nothing_comes_before_the_first_partition_is_over() -> None:
    one = flood(occurrences=Occurrences(cron=Cron.parse("0 6 * * *")))
    assert occurrences(one, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC)) == []


def test_a_schedule_stops_with_its_last_partition() -> None:
    """Before, the last day was prepared again at every tick."""
    ended = replace(flood().partitions, end=datetime(2026, 1, 4, tzinfo=UTC))
    times = Occurrences(cron=Cron.parse("0 6 * * *"))
    until = datetime(2026, 2, 1, tzinfo=UTC)
    found = occurrences(flood(occurrences=times, partitions=ended), datetime(2026, 1, 1, tzinfo=UTC), until)
    assert [(one.at.day, one.partition) for one in found] == [(2, "2026-01-01"), (3, "2026-01-02"), (4, "2026-01-03")]
    fixed = Occurrences(at=tuple(datetime(2026, 1, day, 6, tzinfo=UTC) for day in (3, 9, 10)))
    found = occurrences(flood(occurrences=fixed, partitions=ended), datetime(2026, 1, 1, tzinfo=UTC), until)
    assert [(one.at.day, one.partition) for one in found] == [(3, "2026-01-02"), (9, "2026-01-03")]
