"""Metadata of a flood for people, as Dagster shows it. Numbers are typed, and their labels name the unit, so that Dagster plots
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from headgate.assets.kept import Loaded
from headgate.broker.runtime.errors import HeadgateError
from headgate.pipelines.floods.plan import SAID_MAX, PartitionSize, Plan

if TYPE_CHECKING:
    from headgate.assets.resources import ClusterResource
    from headgate.pipelines.columns.memory import Need

ROWS = "rows"
ADDED = "rows added"
SIZE = "bytes"
SECONDS = "seconds"
RATE = "rows per second"
BROKERS = "brokers"
BROKER_SECONDS = "broker-seconds"
PLANNED = "planned rows"
LAG = "lag (records)"
P99 = "p99 of producers (ms)"
"""From the arrival of a produce request until its ack, at all brokers, while the flood ran."""


def number(value: float) -> dg.FloatMetadataValue:
    """A number that is plotted, also when it is whole."""
    return dg.MetadataValue.float(round(float(value), 3))


def loaded_metadata(loaded: Loaded, rows: int, path: str) -> dict[str, Any]:
    """The figures of one partition that a run loaded.

    Args:
        rows: all rows of the partition that are in the topic.
        path: the file of its certificate.
    """
    certificate = loaded.certificate
    source = certificate.get("source") or {}
    return {
        "dagster/partition_row_count": rows,
        ROWS: rows,
        ADDED: int(certificate["added_rows"]),
        SIZE: int(certificate["size_bytes"]),
        "files": int(certificate["files"]),
        SECONDS: number(loaded.seconds),
        RATE: number(int(certificate["rows"]) / loaded.seconds if loaded.seconds else 0.0),
        "gate": str(certificate["gate_id"]),
        "complete": bool(certificate["complete"]),
        "read back": bool(certificate["verified"]),
        "work": work_of(certificate),
        **({"table": str(certificate["snapshot"])} if certificate.get("snapshot") else {}),
        "checksum": str(source.get("checksum") or ""),
        "certificate": dg.MetadataValue.json(dict(certificate)),
        "certificate file": dg.MetadataValue.path(path),
    }


def work_of(certificate: Mapping[str, Any]) -> str:
    """The way that a partition's rows took; empty if the run wrote nothing."""
    if certificate.get("engine_reason"):
        return f"Spark moved the rows: {certificate['engine_reason']}"
    return "on columns, with Arrow" if certificate.get("engine") else ""


def size_metadata(size: PartitionSize) -> dict[str, Any]:
    """What the source has for one partition."""
    rows = size.rows + size.loaded
    return {
        "dagster/partition_row_count": rows,
        ROWS: rows,
        SIZE: round(size.size_bytes * rows / size.rows) if size.loaded and size.rows else size.size_bytes,
        "counted": "exactly" if size.exact else "estimated",
    }


def plan_metadata(plan: Plan) -> dict[str, Any]:
    """The plan of a run."""
    rows = [
        dg.TableRecord(
            {"partition": partition.key, "rows": partition.rows, "bytes": partition.size_bytes, "exact": partition.exact}
        )
        for partition in plan.partitions
    ]
    return {
        PLANNED: plan.rows,
        "planned bytes": plan.size_bytes,
        "planned brokers": plan.brokers,
        "planned lanes": f"{plan.lanes}: {plan.lanes_why}",
        "planned seconds": number(plan.seconds),
        "planned broker-seconds": number(plan.broker_seconds),
        "forecast rests on": plan.basis,
        "deadline": plan.deadline.isoformat(timespec="seconds"),
        "order": dg.MetadataValue.md("\n".join(f"- {stand}" for stand in plan.stands) or "not known"),
        **({"notes": dg.MetadataValue.md("\n".join(f"- {note}" for note in plan.notes))} if plan.notes else {}),
        **({"left out": "; ".join(f"{key}: {why}" for key, why in plan.left_out[:SAID_MAX])} if plan.left_out else {}),
        "plan": dg.MetadataValue.json(plan.to_json()),
        **({"partitions": table(rows, {"partition": "string", "rows": "int", "bytes": "int", "exact": "bool"})} if rows else {}),
    }


def memory_metadata(need: Need) -> dict[str, Any]:
    """The memory that Spark's Python workers need, if the flood works on columns."""
    found: dict[str, Any] = {"memory of a task (MiB)": need.task_bytes >> 20}
    if need.tasks is not None:
        found["tasks at a time"] = need.tasks
    return found


def members_table(cluster: ClusterResource) -> Any:
    """The brokers that serve."""
    view = cluster.view()
    rows = [
        dg.TableRecord({
            "broker": member.broker_id,
            "address": f"{member.host}:{member.kafka_port}",
            "segments": sum(segment.broker_id == member.broker_id for segment in view.segments),
            "cpu %": round(100 * member.cpu_share, 1),
        })
        for member in view.members
    ]  # fmt: skip
    return table(rows, {"broker": "int", "address": "string", "segments": "int", "cpu %": "float"}) if rows else "none"


def cluster_page(cluster: ClusterResource) -> dict[str, Any]:
    """A link to the cluster's own page: that of the leader, or else of any broker. Empty when no broker serves pages."""
    try:
        view = cluster.view()
    except HeadgateError:
        return {}
    members = sorted(
        (member for member in view.members if member.http_port), key=lambda member: member.broker_id != view.leader_broker_id
    )
    return {"cluster page": dg.MetadataValue.url(f"http://{members[0].host}:{members[0].http_port}/")} if members else {}


def table(rows: Sequence[dg.TableRecord], columns: Mapping[str, str]) -> dg.TableMetadataValue:
    """A table. `columns`: names with their types."""
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table(records=list(rows), schema=schema)


def against_always_on(used: float, always: float) -> str:
    """The broker-seconds of a run beside those of brokers that are always there."""
    if not always:
        return "no broker was seen"
    return f"{used:,.0f} broker-seconds; had they been always on, {always:,.0f} a day"
