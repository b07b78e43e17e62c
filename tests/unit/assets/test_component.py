"""Three ways to declare a flood: `floods.yaml`, the component, and Python objects.

Compared: the serialized snapshots of the definitions. A mismatch means that one declaration has two meanings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value
from dagster.components.testing import create_defs_folder_sandbox

import headgate.dagster as hg
from headgate.broker.runtime.errors import InvalidError

FLOODS = """
floods:
  - name: clicks
    topic: web.clicks
    source: s3://lake/clicks/%Y-%m-%d.parquet
    key: user_id
    event_time: clicked_at
    partitions: {by: day, start: 2026-01-01, timezone: Europe/Berlin}
    schedule: {cron: "0 6 * * *"}
    deadline: 90m
    brokers: {min: 1, max: 3}
    groups: [billing]
    asset: {deps: [lake/clicks], key_prefix: kafka, owners: ["team:web"], automation_condition: upstream}
"""


def snapshot(definitions: dg.Definitions) -> Any:
    """Everything that Dagster shows of a code location, as values."""
    with warnings.catch_warnings():
        # Dagster reads a property of schedules that it deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        return canonical(json.loads(serialize_value(RepositorySnap.from_def(definitions.get_repository_def()))))


def canonical(value: Any) -> Any:
    """The value with lists in one order: Dagster makes some of them from sets."""
    if isinstance(value, dict):
        return {name: canonical(one) for name, one in value.items()}
    return sorted(map(canonical, value), key=repr) if isinstance(value, list) else value


def component(attributes: dict[str, Any], directory: Path = Path(".")) -> dg.Definitions:
    """The definitions of a component with these attributes."""
    return hg.FloodsComponent(**attributes).definitions(directory)


def test_three_declarations_are_the_same_definitions(tmp_path: Path) -> None:
    (tmp_path / "floods.yaml").write_text(FLOODS)
    from_file = hg.from_environment({"HEADGATE_FLOODS": str(tmp_path / "floods.yaml")})
    from_component = component(yaml.safe_load(FLOODS))
    fields = yaml.safe_load(FLOODS)["floods"][0]
    from_fields = hg.flood_definitions([hg.flood(**fields)], cluster=hg.ClusterResource())
    from_objects = hg.flood_definitions(
        [
            hg.Flood(
                name="clicks",
                topic="web.clicks",
                source=hg.Source(path="s3://lake/clicks/%Y-%m-%d.parquet"),
                key="user_id",
                event_time="clicked_at",
                partitions=hg.Partitions(start=datetime.fromisoformat("2026-01-01T00:00:00+01:00"), timezone="Europe/Berlin"),
                occurrences=hg.flood(**fields).occurrences,
                deadline=90 * 60_000,
                groups=("billing",),
                asset=hg.Asset(
                    deps=(dg.AssetKey(["lake", "clicks"]),),
                    key_prefix=("kafka",),
                    owners=("team:web",),
                    automation_condition=hg.upstream(),
                ),
            )
        ],
        cluster=hg.ClusterResource(),
    )
    expected = snapshot(from_file)
    assert snapshot(from_component) == expected
    assert snapshot(from_fields) == expected
    assert snapshot(from_objects) == expected


def test_a_component_reads_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(FLOODS)
    assert snapshot(component({"files": ["more.yaml"]}, tmp_path)) == snapshot(component(yaml.safe_load(FLOODS)))


def test_a_mistake_names_the_field() -> None:
    with pytest.raises(InvalidError, match=r"attributes: floods\[0\]\.topik: expected no such field \(did you mean `topic`\?\)"):
        component(yaml.safe_load(FLOODS.replace("topic:", "topik:")))
    with pytest.raises(InvalidError, match=r"flood: floods\[0\]\.deadline: expected a duration"):
        hg.flood(name="a", topic="a", source="/a", event_time="at", partitions={"start": "2026-01-01"}, deadline="soon")
    with pytest.raises(InvalidError, match=r"flood: expected plain values"):
        hg.flood(name="a", topic="a", source="/a", event_time="at", partitions={"start": datetime.now(UTC).time}, deadline="2h")


@pytest.mark.parametrize(
    ("asset", "text"),
    [
        ("{deps: [lake clicks]}", "expected keys of assets, such as `lake/clicks`"),
        ("{owners: web}", "expected e-mail addresses, or teams such as `team:web`"),
        ("{kinds: [a, b, c, d]}", "expected at most 3 kinds"),
        ("{tags: {tier: '1 2'}}", "expected names and values of letters"),
        ("{group: my group}", "expected letters, digits and `_`"),
        ("{automation_condition: soon}", "expected `upstream`, `eager`, `on_missing` or `on_cron(0 6 * * *)`, found `soon`"),
        ("{automation_condition: on_cron(0 25 * * *)}", "expected hour between 0 and 23"),
    ],
)
def test_a_mistake_in_the_asset_is_named(asset: str, text: str) -> None:
    document = FLOODS.replace(FLOODS[FLOODS.index("{deps") : FLOODS.rindex("}") + 1], asset)
    with pytest.raises(InvalidError) as caught:
        hg.parse(document, "floods.yaml")
    assert text in caught.value.message


def test_dg_scaffolds_a_component_that_loads(tmp_path: Path) -> None:
    """`dg` finds the component by the entry point of the installed package."""
    project = tmp_path / "lake"
    (project / "src" / "lake" / "defs").mkdir(parents=True)
    (project / "src" / "lake" / "__init__.py").touch()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "lake"\nversion = "1"\n[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "lake"\n'
    )
    arguments = ["scaffold", "defs", "headgate.dagster.FloodsComponent", "clicks", "--topic", "web.clicks"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dg")), *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "src"), "DAGSTER_HOME": str(tmp_path), "DG_CLI_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = yaml.safe_load((project / "src" / "lake" / "defs" / "clicks" / "defs.yaml").read_text())
    assert written["type"] == "headgate.dagster.FloodsComponent"
    assert component(written["attributes"]).resolve_asset_graph().get(dg.AssetKey("clicks")).is_materializable


VARIABLES = """
import dagster as dg

@dg.template_var
def lake() -> str:
    return "s3://lake"

@dg.template_var
def days() -> dict:
    return {"by": "day", "start": "2026-01-01"}

@dg.template_var
def history():
    return lambda name: f"s3://lake/{name}/%Y-%m-%d.parquet"
"""
DEFS = """
type: headgate.dagster.FloodsComponent
template_vars_module: .variables
attributes:
  cluster: "{{ env.HEADGATE_CLUSTER }}"
  floods:
    - &usual
      {name: clicks, topic: clicks, source: "{{ lake }}/clicks/%Y-%m-%d.parquet", event_time: at, partitions: "{{ days }}",
       deadline: 2h, brokers: {min: 1, max: 3}}
    - {<<: *usual, name: orders, topic: orders, source: "{{ history('orders') }}"}
post_processing:
  assets:
    - {target: "key:clicks", attributes: {group_name: web, tags: {tier: "1"}, owners: ["team:web"]}}
    - {target: "key:orders", attributes: {automation_condition: "{{ automation_condition.eager() }}"}}
"""


@pytest.mark.filterwarnings("ignore")  # Dagster warns of its own code: pydantic's old names, parameters in beta
def test_a_component_takes_variables_aliases_and_post_processing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of a project, as `dg` loads it. Both floods share one object of the variable `days`."""
    monkeypatch.setenv("HEADGATE_CLUSTER", "broker.example:9095")
    with create_defs_folder_sandbox() as sandbox:
        place = sandbox.defs_folder_path / "floods"
        place.mkdir()
        (place / "defs.yaml").write_text(DEFS)
        (place / "variables.py").write_text(VARIABLES)
        with sandbox.load_component_and_build_defs(place) as (loaded, definitions):
            assert isinstance(loaded, hg.FloodsComponent) and loaded.cluster == "broker.example:9095"
            clicks, orders = (definitions.get_assets_def(name) for name in ("clicks", "orders"))
            spec = clicks.get_asset_spec(dg.AssetKey("clicks"))
            assert (spec.group_name, spec.tags["tier"], list(spec.owners)) == ("web", "1", ["team:web"])
            condition = orders.get_asset_spec(dg.AssetKey("orders")).automation_condition
            assert condition is not None and condition.get_label() == "eager"
            assert isinstance(clicks.node_def, dg.GraphDefinition) and len(clicks.node_def.nodes) == 4, "it has its four steps"
            snapshot(definitions)
    with pytest.raises(InvalidError, match="found one that contains itself"):
        fields: dict[str, Any] = {}
        fields["partitions"] = fields
        component({"floods": [fields]})
