"""Floods as tests declare them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headgate.pipelines.floods.model import Flood, Partitions, Source
from headgate.pipelines.floods.outcome import CHECKS as OF_OUTCOME

CHECKS = {*OF_OUTCOME, "consumers_catching_up"}
"""Names of the asset checks of a flood."""


def flood(path: str = "/data", **changes: Any) -> Flood:
    """A flood of clicks, by day from 2026 on, from Parquet files at a path."""
    values: dict[str, Any] = {
        "name": "clicks",
        "topic": "clicks",
        "source": Source(path=path),
        "event_time": "at",
        "partitions": Partitions(start=datetime(2026, 1, 1, tzinfo=UTC)),
    }
    return Flood(**{**values, **changes})
