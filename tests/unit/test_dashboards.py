"""Grafana's dashboard and Prometheus' alert rules, against the metrics of a real broker.

Compared: each metric that they name, its kind (rates are of counters, quantiles of histograms), and each label. A mismatch means a
panel that stays empty, or an alert that never fires.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.broker.cli.tables import all_metrics
from headgate.broker.runtime.metrics import Entry

PLACE = Path(__file__).parents[2] / "deploy" / "dashboards"
NAME = re.compile(r"\b(?:headgate|process|python_gc)_[a-z0-9_]+")
OF_PROMETHEUS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Metrics that prometheus_client adds."""
OF_SCRAPES = {"job", "instance", "le", "alertname"}


@pytest.fixture(scope="module")
def known() -> dict[str, Entry]:
    """By each name that Prometheus stores."""
    found: dict[str, Entry] = {}
    for entry in asyncio.run(all_metrics()).entries():
        ends = ("_bucket", "_count", "_sum") if entry.kind == "histogram" else ("",)
        found.update((entry.shown + end, entry) for end in ends)
    return found


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((PLACE / "grafana.json").read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load((PLACE / "alerts.yaml").read_text())["groups"][0]["rules"]
    return loaded


def expressions() -> Iterator[tuple[str, str, str]]:
    """(where, expression, text with its labels)."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for rule in rules():
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


def test_every_metric_exists_with_its_kind_and_labels(known: dict[str, Entry]) -> None:
    seen: set[str] = set()
    for where, expression, text in expressions():
        names = NAME.findall(expression)
        assert names, where
        labels = set(OF_SCRAPES)
        for name in names:
            assert name in known or name in OF_PROMETHEUS, f"{where}: there is no metric {name}"
            seen.add(name)
            entry = known.get(name)
            labels |= set() if entry is None else set(entry.labels)
            is_growing = name.endswith(("_total", "_bucket"))
            asked = re.search(rf"(rate|increase)\({name}\b", expression) is not None
            assert asked == is_growing, f"{where}: rates are of counters, and only of them. metric={name}"
        if "histogram_quantile" in expression:
            assert all(name.endswith("_bucket") for name in names) and re.search(r"by \([^)]*\ble\b", expression), where
        grouped = {one.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for one in group.split(",")}
        matched = set(re.findall(r"[{,]\s*([a-z_]+)\s*=", expression))
        shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}", text))
        assert grouped | matched | shown <= labels, f"{where}: no such label. labels={(grouped | matched | shown) - labels}"
        if grouped:
            assert shown <= grouped, f"{where}: the sum has lost a label. labels={shown - grouped}"
    subsystems = {name.split("_")[1] for name in seen if name.startswith("headgate_")}
    assert subsystems >= {"broker", "capacity", "cluster", "flood", "gate", "group", "kafka", "loop", "store", "topic", "wal"}


def test_panels_are_placed_and_numbered() -> None:
    whole = dashboard()
    assert len({one["id"] for one in whole["panels"]}) == len(whole["panels"])
    taken: set[tuple[int, int]] = set()
    for one in whole["panels"]:
        place = one["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, one["title"]
        taken |= cells
    assert "headgate_broker_info" in whole["templating"]["list"][1]["query"]["query"]


def test_alerts_say_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert {"summary", "action"} <= rule["annotations"].keys(), rule["alert"]
