"""Metadata of a flood for people, as Dagster shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from headgate.assets.resources import ClusterResource
from headgate.pipelines.floods.plan import Plan

if TYPE_CHECKING:
    from headgate.pipelines.certificate import Certificate


def partition_metadata(certificate: Certificate) -> dict[str, Any]:
    source = certificate.source
    return {
        "dagster/partition_row_count": certificate.rows,
        "rows": certificate.rows,
        "gate": certificate.gate_id,
        "complete": certificate.complete,
        "read back": certificate.verified,
        "work": certificate.work,
        "checksum": "" if source is None or source.checksum is None else f"{source.checksum:016x}",
        "certificate": dg.MetadataValue.json(certificate.to_dict()),
    }


def plan_metadata(plan: Plan) -> dict[str, Any]:
    rows = [
        dg.TableRecord({"partition": one.key, "rows": one.rows, "bytes": one.size_bytes, "exact": one.exact})
        for one in plan.partitions
    ]
    return {
        "rows": plan.rows,
        "bytes": plan.size_bytes,
        "brokers": plan.brokers,
        "forecast seconds": dg.MetadataValue.float(plan.seconds),
        "forecast broker-seconds": dg.MetadataValue.float(plan.broker_seconds),
        "forecast rests on": plan.basis,
        "deadline": plan.deadline.isoformat(timespec="seconds"),
        "plan": dg.MetadataValue.json(plan.to_json()),
        **({"partitions": table(rows, {"partition": "string", "rows": "int", "bytes": "int", "exact": "bool"})} if rows else {}),
    }


def members_table(cluster: ClusterResource) -> Any:
    view = cluster.view()
    rows = [
        dg.TableRecord({
            "broker": one.broker_id,
            "address": f"{one.host}:{one.kafka_port}",
            "segments": sum(segment.broker_id == one.broker_id for segment in view.segments),
            "cpu %": round(100 * one.cpu_share, 1),
        })
        for one in view.members
    ]  # fmt: skip
    return table(rows, {"broker": "int", "address": "string", "segments": "int", "cpu %": "float"}) if rows else "none"


def table(rows: Sequence[dg.TableRecord], columns: Mapping[str, str]) -> dg.TableMetadataValue:
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table(records=list(rows), schema=schema)


def against_always_on(used: float, always: float) -> str:
    if not always:
        return "no broker was seen"
    return f"{used:,.0f} broker-seconds; had they been always on, {always:,.0f} a day"


def short_keys(keys: Sequence[str]) -> list[str]:
    return list(keys) if len(keys) < 3 else [f"{keys[0]} ... {keys[-1]}"]
