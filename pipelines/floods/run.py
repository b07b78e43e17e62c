"""One run of one flood for some partitions: what it asks the cluster, and what it keeps. `steps.py` has the work.

Dagster's asset and the command line run a flood by the same steps. What differs between them stands here, as methods that
Dagster's run overrides: who says a line, where plan and certificates are kept, and whether other runs need the same brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.cluster import ClusterCalls
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.otherwise import declared_otherwise, short_keys
from headgate.pipelines.floods.plan import PartitionSize, PastRun, Plan
from headgate.pipelines.floods.spans import TimeSpan, gate_id, gates_of, source_path, spans_of
from headgate.pipelines.floods.standing import Topic, loaded_rows, topic_of
from headgate.pipelines.reservations import RESERVATIONS

if TYPE_CHECKING:
    from headgate.broker.client import Gate
    from headgate.pipelines.certificate import Certificate

MAX_RUN_S = 24 * 3600.0
"""Longest time for which a run renews brokers and gates, in seconds: a run that hangs does not keep them for ever."""


@dataclass(kw_only=True)
class Run:
    """One run.

    Args:
        keys: its partitions.
        reservation_id: of its brokers.
        owner: of the reservation, as the cluster shows it.
        say, warn: receive a line about the work, and one that a person should act on.
        began: when it began; a deadline counts from then.
        ttl_ms: time that brokers outlive this run, in ms.
        most_s: no renewal later than this, in seconds after a step began.
        asked: brokers may be reserved for it, by this step or by an earlier one.
    """

    flood: Flood
    cluster: ClusterCalls
    keys: Sequence[str]
    reservation_id: str
    owner: str
    say: Callable[[str], None]
    warn: Callable[[str], None]
    began: datetime
    ttl_ms: int
    most_s: float = MAX_RUN_S
    asked: bool = False
    rows_before: Mapping[str, int] | None = field(default=None, init=False)
    """The rows of each partition that were in the topic when the run looked first; None before that."""
    _plan: Plan | None = field(default=None, init=False)
    certificates: dict[str, Certificate] = field(default_factory=dict, init=False)
    """Those of the partitions that this run loaded, by key."""

    # -- what another kind of run does in its own way

    def keep_plan(self, plan: Plan) -> None:
        """Keep the plan for later steps."""
        self._plan = plan

    def kept_plan(self) -> Plan | None:
        """The kept plan; None without one."""
        return self._plan

    def keep_loaded(self, key: str, seconds: float, certificate: Certificate) -> None:
        """Keep the outcome of one partition. `seconds` of all partitions add up to those of the load."""
        self.certificates[key] = certificate

    def past_runs(self) -> Sequence[PastRun]:
        """The figures of earlier runs of this flood, the newest first, as far as they are remembered."""
        return ()

    def watch(self) -> None:
        """Look at the cluster from now on: brokers are reserved, or a load begins. May be called again."""

    def unwatch(self) -> None:
        """The run does not renew its brokers any more."""

    def moved(self, rows: int) -> None:
        """So many rows are in files."""

    def show_links(self, found: Mapping[str, str]) -> None:
        """Addresses of pages about the load, by name."""

    def others(self) -> str:
        """What else needs the same reservation, for a person; empty if nothing does."""
        return ""

    # -- what it asks

    def topic(self) -> Topic | None:
        """The topic as the flood finds it; None if it does not exist."""
        found = self.cluster.topic(self.flood.topic)
        return None if found is None else topic_of(found, self.cluster.gates(self.flood.topic).values())

    def readers(self) -> int:
        """Consumer groups that read the flood: the declared ones, else those of the topic that have members."""
        if self.flood.groups:
            return len(self.flood.groups)
        try:
            return sum(group.members > 0 for group in self.cluster.lags(self.flood.topic).values())
        except HeadgateError as error:
            self.warn(f"the topic's consumer groups are not known, the plan assumes one: {error.message}")
            return 1

    def pending(self) -> list[TimeSpan]:
        """The partitions of which rows are missing in the topic, oldest first. Raises HeadgateError."""
        from headgate.pipelines.floods.planning import pending

        topic = self.topic()
        if self.rows_before is None:
            self.rows_before = self._rows(topic)
        return pending(self.flood, self.keys, topic, datetime.now(UTC))

    def rows(self) -> dict[str, int]:
        """The rows of each partition that are in the topic, with the late ones, by key."""
        return self._rows(self.topic())

    def _rows(self, topic: Topic | None) -> dict[str, int]:
        return {} if topic is None else {key: loaded_rows(self.flood, key, topic) for key in self.keys}

    def newly_filled(self) -> dict[str, int]:
        """The partitions that got rows since this step looked first, each with all its rows in the topic. Raises HeadgateError."""
        before = self.rows_before
        return {} if before is None else {key: rows for key, rows in self.rows().items() if rows > before.get(key, 0)}

    def loaded(self) -> list[tuple[TimeSpan, Gate]]:
        """The partitions that are in the topic already, oldest first, with their gates."""
        gates = self.cluster.gates(self.flood.topic)
        spans = spans_of(self.flood.partitions, sorted(filled_keys(self.flood, self.keys, gates)))
        return [(span, gates[gate_id(self.flood, span.key)]) for span in spans]

    def loaded_otherwise(self, loaded: Sequence[tuple[TimeSpan, Gate]]) -> list[str]:
        """Messages about partitions that were loaded under another definition of the flood."""
        from headgate.pipelines.floods.job import job_of

        found: dict[str, list[str]] = {}
        for span, gate in loaded:
            if parts := job_of(self.flood, span, cluster="", partitions=1).differs_from(gate):
                found.setdefault(", ".join(parts), []).append(span.key)
        return declared_otherwise(found)

    def partition_sizes(self, loaded: Sequence[tuple[TimeSpan, Gate]]) -> tuple[dict[str, PartitionSize], list[str]]:
        """The current content of the source for loaded partitions, by key; and messages about partitions whose metadata do not
        tell."""
        from headgate.pipelines.floods.measure import can_count, measure

        found: dict[str, PartitionSize] = {}
        unknown: dict[str, list[str]] = {}
        for _, group in groupby((span for span, _ in loaded), partial(source_path, self.flood)):
            spans = list(group)
            why = "only Spark could count its rows"
            try:
                sizes = measure(self.flood, spans, datetime.now(UTC)) if can_count(self.flood) else []
            except HeadgateError as error:
                # The source may be gone by now.
                sizes, why = [], f"it cannot be read ({error.reason})"
            found.update((size.key, size) for size in sizes if size.exact)
            if missing := [span.key for span in spans if span.key not in found]:
                unknown.setdefault(why, []).extend(missing)
        return found, [
            f"not compared with the source: {why}. partitions=`{', '.join(short_keys(keys))}`" for why, keys in unknown.items()
        ]

    def check_keys(self) -> None:
        """Raise InvalidError for a run without partitions."""
        if not self.keys:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"a flood comes in by partitions: launch it for some. flood=`{self.flood.name}` by=`{self.flood.partitions.by}`",
            )

    # -- the reservation

    def let_go(self) -> bool:
        """Stop renewals and release the reservation, unless other runs need it. Returns True if none is left.

        Never raises: a reservation that is not released ends by itself.
        """
        self.unwatch()
        RESERVATIONS.drop(self.reservation_id)
        return self.release()

    def release(self) -> bool:
        """Release the reservation unless another run needs it. Returns True if none is left. Never raises."""
        if not self.asked:
            return True
        if others := self.others():
            self.say(f"reservation {self.reservation_id} is left to {others}")
            return False
        try:
            self.cluster.release(self.reservation_id)
        except HeadgateError as error:
            self.warn(f"reservation could not be released, it ends by itself: {error.message}")
            return False
        return True


def filled_keys(flood: Flood, keys: Sequence[str], gates: Mapping[str, Any]) -> set[str]:
    """The partitions whose gate is filled."""
    return set(gates_of(flood, keys, (name for name, gate in gates.items() if str(gate.state) == "filled")).values())
