"""The files that a run keeps: its plan, the certificates of its partitions, and the outcome of the load. They lie in Dagster's
storage, so that each step may be another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagster import DagsterInstance

from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The outcome of one partition's load. `seconds` of all partitions of a run add up to the seconds of the load."""

    seconds: float
    certificate: Mapping[str, Any]


class Kept:
    """The files of one flood in one run."""

    def __init__(self, instance: DagsterInstance, flood: Flood, run_id: str) -> None:
        self.directory = Path(instance.storage_directory()) / "headgate" / flood.name / run_id

    def keep_plan(self, plan: Plan) -> None:
        """Keep the plan."""
        self._write("plan.json", plan.to_json())

    def plan(self) -> Plan | None:
        """The plan; None without a readable one."""
        try:
            return Plan.from_json(json.loads((self.directory / "plan.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def certificate_path(self, key: str) -> Path:
        """The file of a partition's certificate."""
        return self.directory / f"certificate-{key.replace(':', '.')}.json"

    def keep_loaded(self, key: str, loaded: Loaded) -> None:
        """Keep the outcome and the certificate of one partition."""
        self._write(self.certificate_path(key).name, dict(loaded.certificate))
        self._write(f"loaded-{key.replace(':', '.')}.json", asdict(loaded))

    def loaded(self, key: str) -> Loaded | None:
        """The outcome of one partition; None when this run did not load it."""
        try:
            return Loaded(**json.loads((self.directory / f"loaded-{key.replace(':', '.')}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / name).write_text(json.dumps(value, indent=2))
