"""A flood's run in Dagster: `pipelines/floods/steps.py` has its steps. Here is what Dagster alone knows: the owner of the brokers,
earlier runs, and where plan and certificates are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import dagster as dg

from headgate.assets.kept import Kept, Loaded
from headgate.assets.metadata import ADDED, BROKER_SECONDS, SECONDS, SIZE, cluster_page, loaded_metadata
from headgate.assets.names import topic_key
from headgate.assets.owners import HOLD_UNTIL_TAG, Owner
from headgate.assets.recorder import RECORDERS
from headgate.assets.resources import ClusterResource
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import PastRun, Plan
from headgate.pipelines.floods.run import MAX_RUN_S, Run

if TYPE_CHECKING:
    from headgate.pipelines.certificate import Certificate

Context: TypeAlias = dg.OpExecutionContext | dg.AssetExecutionContext
PAST_EVENTS = 200


@dataclass(kw_only=True)
class DagsterRun(Run):
    """One step of one flood in one Dagster run."""

    context: Context
    cluster: ClusterResource

    @classmethod
    def of(cls, flood: Flood, context: Context, cluster: ClusterResource) -> Self:
        """The run of a step; without partitions if Dagster's run has none."""
        run, log = context.run, context.log
        owner = Owner.of(flood.name, run.run_id, run.tags)
        started = context.instance.get_run_stats(run.run_id).launch_time
        return cls(
            flood=flood,
            context=context,
            cluster=cluster,
            keys=sorted(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else [],
            reservation_id=owner.reservation_id,
            owner=owner.text,
            say=log.info,
            warn=log.warning,
            began=datetime.fromtimestamp(started, UTC) if started else datetime.now(UTC),
            ttl_ms=reservation_ttl_ms(flood, run.tags.get(HOLD_UNTIL_TAG)),
            asked=True,
            most_s=float(run.tags.get("dagster/max_runtime", MAX_RUN_S)),
        )

    @property
    def topic_key(self) -> dg.AssetKey:
        """The asset of the flood's topic."""
        return topic_key(self.flood)

    @property
    def kept(self) -> Kept:
        """The files of this run."""
        return Kept(self.context.instance, self.flood, self.context.run.run_id)

    def figures(self, key: str, rows: int) -> dict[str, Any]:
        """The metadata of a partition that this run loaded; empty for any other. `rows`: all those of the partition in the topic,
        of which this run may have added only the late ones."""
        loaded = self.kept.loaded(key)
        return {} if loaded is None else loaded_metadata(loaded, rows, str(self.kept.certificate_path(key)))

    # -- in Dagster's way

    def keep_plan(self, plan: Plan) -> None:
        self.kept.keep_plan(plan)

    def kept_plan(self) -> Plan | None:
        return self.kept.plan()

    def keep_loaded(self, key: str, seconds: float, certificate: Certificate) -> None:
        super().keep_loaded(key, seconds, certificate)
        self.kept.keep_loaded(key, Loaded(seconds=seconds, certificate=certificate.to_dict()))

    def past_runs(self) -> Sequence[PastRun]:
        return past_runs(self.context.instance, self.topic_key)

    def watch(self) -> None:
        RECORDERS.begin(self.reservation_id, self.flood.topic, self.cluster.desired, self.cluster.view)

    def unwatch(self) -> None:
        RECORDERS.end(self.reservation_id)

    def moved(self, rows: int) -> None:
        RECORDERS.moved(self.reservation_id, rows)

    def show_links(self, found: Mapping[str, str]) -> None:
        urls = {name: dg.MetadataValue.url(url) for name, url in found.items()}
        context: Any = self.context
        context.log_event(dg.AssetObservation(self.topic_key, metadata={**urls, **cluster_page(self.cluster)}))

    def others(self) -> str:
        run = self.context.run
        owner = Owner.of(self.flood.name, run.run_id, run.tags)
        needed = run.tags.get(HOLD_UNTIL_TAG) is None and owner.needs_it(
            self.context.instance, datetime.now(UTC), without=run.run_id
        )
        return f"the other runs of {owner.kind} {owner.id}" if needed else ""


def reservation_ttl_ms(flood: Flood, hold_until: str | None) -> int:
    """Time that the brokers outlive a run, in ms: longer when the run raises them ahead of an occurrence."""
    if hold_until is None:
        return flood.reservation_ttl_ms
    left = datetime.fromisoformat(hold_until) - datetime.now(UTC)
    return flood.reservation_ttl_ms + max(0, int(left.total_seconds() * 1000))


def past_runs(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[PastRun]:
    """The figures of earlier runs of this flood, the newest first: the sums over their partitions."""
    found: dict[str, list[PastRun]] = {}
    for record in instance.fetch_materializations(key, limit=PAST_EVENTS).records:
        materialization = record.asset_materialization
        values = {} if materialization is None else {name: entry.value for name, entry in materialization.metadata.items()}
        with suppress(KeyError, ValueError):  # an event of another version, or of a partition that was in the topic before
            past = PastRun(
                rows=int(str(values[ADDED])),
                size_bytes=int(str(values[SIZE])),
                seconds=float(str(values[SECONDS])),
                broker_seconds=float(str(values[BROKER_SECONDS])),
            )
            found.setdefault(record.run_id, []).append(past)
    return [
        PastRun(
            rows=sum(work.rows for work in each),
            size_bytes=sum(work.size_bytes for work in each),
            seconds=sum(work.seconds for work in each),
            broker_seconds=sum(work.broker_seconds for work in each),
        )
        for each in found.values()
    ]
