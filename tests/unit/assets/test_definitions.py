"""The code location: its contents, its loading, and its errors.

Compared: the graph of a flood's assets, its checks, jobs, schedules and sensors with the expected ones; the modules that loading
imports. A mismatch means that Dagster shows something else, or that loading waits for a network, Spark or a broker.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config_schema  # type: ignore[attr-defined]
from dagster._utils.schedules import schedule_execution_time_iterator

from headgate.assets.automation import upstream
from headgate.assets.build import flood_definitions
from headgate.assets.definitions import from_environment
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.floods.parse import parse
from tests.support.floods import CHECKS

ROOT = Path(__file__).parents[3]

FLOODS = """floods:
  - name: clicks
    topic: clicks
    source: /data
    event_time: at
    partitions: {by: day, start: 2026-01-01}
    schedule: {cron: "0 6 * * *"}
  - name: views
    topic: web.views
    source: /data
    event_time: at
    partitions: {by: hour, start: 2026-01-01}
    schedule: {at: [2026-12-01T06:00:00Z]}
    asset:
      key_prefix: [lake, kafka]
      deps: [lake/views, dim/users]
      group: web
      kinds: [kafka, iceberg]
      owners: ["team:web"]
      tags: {tier: "1"}
      automation_condition: upstream
  - name: rare
    topic: rare
    source: /data
    event_time: at
    partitions: {by: day, start: 2026-01-01}
"""

VIEWS = dg.AssetKey(["lake", "kafka", "views"])

_LOAD = """
import socket, sys
def refuse(*arguments, **named):
    raise AssertionError("loading talks to the network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
import dagster
from headgate.assets.definitions import defs
dagster.Definitions.validate_loadable(defs())
heavy = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "boto3", "kubernetes", "grpc.aio", "confluent_kafka"}
heavy.add("headgate.broker.client")
print(sorted(heavy & set(sys.modules)))
"""


def test_loading_touches_no_network_no_spark_and_no_broker() -> None:
    run = subprocess.run([sys.executable, "-c", _LOAD], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_what_floods_become() -> None:
    definitions = flood_definitions(parse(FLOODS, "f.yaml"))
    graph = definitions.resolve_asset_graph()
    edges = {
        key.to_user_string(): sorted(parent.to_user_string() for parent in graph.get(key).parent_keys)
        for key in graph.get_all_asset_keys()
    }
    assert edges == {
        "brokers": [],
        "clicks": ["clicks_source"],
        "clicks_source": [],
        "lake/kafka/views": ["dim/users", "lake/views"],
        "dim/users": [],
        "lake/views": [],
        "rare": ["rare_source"],
        "rare_source": [],
    }
    topic = graph.get(dg.AssetKey("clicks"))
    assert topic.backfill_policy == dg.BackfillPolicy.single_run()
    assert topic.pools == {"flood_clicks"} and graph.get(VIEWS).pools == {"flood_web_views"}
    assert {key.name for key in graph.asset_check_keys if key.asset_key == topic.key} == CHECKS
    views = graph.get(VIEWS)
    assert (views.group_name, views.owners, views.tags["tier"]) == ("web", ["team:web"], "1")
    assert views.kinds == {"kafka", "iceberg"} and topic.kinds == {"headgate", "spark"}
    assert views.automation_condition == upstream() and topic.automation_condition is None
    assert not graph.get(dg.AssetKey("clicks_source")).is_materializable
    repository = definitions.get_repository_def()
    assert sorted(one.name for one in repository.schedule_defs) == ["clicks_schedule"]
    assert sorted(one.name for one in repository.sensor_defs) == [
        "clicks_expected", "clicks_source_watch", "fleet_load", "fleet_reconciler", "flood_automation", "rare_source_watch",
        "release_on_cancel", "release_on_failure", "views_due", "views_expected",
    ]  # fmt: skip
    names = {job.name for job in repository.get_all_jobs()}
    assert {f"{flood}_{what}" for flood in ("clicks", "views", "rare") for what in ("flood", "prepare")} <= names


def test_the_schedule_asks_for_the_day_that_is_over() -> None:
    repository = flood_definitions(parse(FLOODS, "f.yaml")).get_repository_def()
    (schedule,) = repository.schedule_defs
    at = datetime(2026, 5, 2, 6, tzinfo=UTC)
    context = dg.build_schedule_context(scheduled_execution_time=at, repository_def=repository)
    (request,) = schedule.evaluate_tick(context).run_requests or ()
    assert request.partition_key == "2026-05-01" and request.tags["headgate/occurrence"] == "20260502T060000Z"


@pytest.mark.parametrize("tick", ["2026-03-29T01:00:00+00:00", "2026-10-25T01:30:00+00:00"])
def test_a_day_on_which_the_clock_is_changed_is_not_left_out(tick: str) -> None:
    """Dagster delays 02:30 to 03:00 on the day that has no 02:30, and takes the second one on the day that has two."""
    text = FLOODS.replace('{cron: "0 6 * * *"}', '{cron: "30 2 * * *", timezone: Europe/Berlin}')
    text = text.replace("{by: day, start: 2026-01-01}", "{by: day, start: 2026-01-01, timezone: Europe/Berlin}")
    repository = flood_definitions(parse(text, "f.yaml")).get_repository_def()
    (schedule,) = repository.schedule_defs
    at = datetime.fromisoformat(tick)
    ticks = schedule_execution_time_iterator(at.timestamp() - 3600, "30 2 * * *", "Europe/Berlin", ascending=True)
    assert at.timestamp() in [one.timestamp() for one in islice(ticks, 2)]
    context = dg.build_schedule_context(scheduled_execution_time=at, repository_def=repository)
    (request,) = schedule.evaluate_tick(context).run_requests or ()
    assert request.partition_key == (at - timedelta(days=1)).date().isoformat()


def test_two_floods_of_one_name_from_code() -> None:
    flood = parse(FLOODS, "f.yaml")[0]
    with pytest.raises(ValueError, match="names of their own"):
        flood_definitions([flood, flood])


def test_the_environment_chooses_files_cluster_and_fleet(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FLOODS)
    environment = {
        "HEADGATE_FLOODS": str(tmp_path),
        "HEADGATE_CLUSTER": "broker:1",
        "HEADGATE_FLEET": "kubernetes",
        "HEADGATE_FLEET_WORKLOAD": "brokers",
        "HEADGATE_FLEET_MAX": "7",
        "HEADGATE_SPARK_MASTER": "spark://one:7077",
    }
    resources = from_environment(environment).resources or {}
    assert resources["cluster"].address == "broker:1" and resources["spark"].master == "spark://one:7077"
    assert (resources["fleet"].kind, resources["fleet"].workload, resources["fleet"].maximum) == ("kubernetes", "brokers", 7)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"HEADGATE_FLEET": "nomad"}, r"input should be 'local' or 'kubernetes'\. HEADGATE_FLEET=`nomad`"),
        ({"HEADGATE_FLEET_MAX": "many"}, r"valid integer.*\. HEADGATE_FLEET_MAX=`many`"),
        ({"HEADGATE_FLEET_MAX": "0"}, r"greater than or equal to 1\. HEADGATE_FLEET_MAX=`0`"),
        ({"HEADGATE_FLEET": "kubernetes"}, r"HEADGATE_FLEET_WORKLOAD is missing: .*\. HEADGATE_FLEET=`kubernetes`"),
        ({"HEADGATE_FLOODS": ""}, r"no file with floods .*\. HEADGATE_FLOODS=``"),
        ({"HEADGATE_FLOODS": "."}, r"no file with floods .*\. HEADGATE_FLOODS=`\.`"),
    ],
)
def test_a_mistake_in_the_environment_stops_the_loading(
    environment: dict[str, str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError, match=text):
        from_environment(environment)


def test_a_mistake_in_the_file_stops_the_loading(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FLOODS.replace("event_time: at", "event_tme: at", 1))
    with pytest.raises(
        InvalidError, match=r"f\.yaml:5: floods\[0\]\.event_tme: expected no such field \(did you mean `event_time`\?\)"
    ):
        from_environment({"HEADGATE_FLOODS": str(tmp_path)})


def test_the_files_beside_it_are_what_dagster_takes() -> None:
    for place in (ROOT, ROOT / "assets"):  # the first one for `dg dev` in a checkout, the other one for `headgate ui`
        workspace = yaml.safe_load((place / "workspace.yaml").read_text())
        assert workspace == {
            "load_from": [{"python_module": {"module_name": "headgate.assets.definitions", "location_name": "headgate"}}]
        }
    instance = yaml.safe_load((ROOT / "assets" / "dagster.yaml").read_text())
    assert instance["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    assert set(instance) <= set(dagster_instance_config_schema())
