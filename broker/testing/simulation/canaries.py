"""Bugs that can be planted on purpose: a checker must find each one, which proves that the checkers can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from msgspec.structs import replace

from headgate.broker.engine.read.lane import LaneLogs
from headgate.broker.engine.upkeep.file_fold import choose
from headgate.broker.groups.shard import Shard
from headgate.broker.log.adopted import UnitRows
from headgate.broker.log.recipe import UnitBytes
from headgate.broker.runtime.errors import Reason
from headgate.broker.transactions.records import Transaction


def _no_fence_check() -> Mapping[str, object]:
    """A broker on a directory does not check its fence between write and ack."""
    return {"headgate.broker.engine.write.wal_group.GroupWriter._check_fence": lambda self: None}


def _ack_before_durable() -> Mapping[str, object]:
    """The broker acks producers at once, before their records are durable."""
    return {"headgate.broker.engine.write.path.WritePath.on_acked": lambda self, callback: callback(None)}


def _no_sequences() -> Mapping[str, object]:
    """The broker appends a retried batch a second time."""
    return {"headgate.broker.log.producers.ProducerState.admit": lambda self, *batch: self.record(*batch)}


def _no_replay() -> Mapping[str, object]:
    """A failover loses the producer state since the last checkpoint."""
    return {"headgate.broker.engine.upkeep.recovery._replay_producers": lambda data, frames, producers: None}


def _seal_half() -> Mapping[str, object]:
    """A broker that ends seals itself, but not the segment that it received a moment before."""
    return {"headgate.broker.engine.base.catalog.check_together": lambda manifest, edits: None}


def _lead_after_seal() -> Mapping[str, object]:
    """The leader gives segments to a broker that has sealed itself and is still connected."""
    from headgate.broker.cluster.term_brokers import Brokers

    def loads(self: Brokers) -> object:
        return [*([self._own_load] if self._own_load else []), *(member.load for member in self.members.values())]

    return {"headgate.broker.cluster.term_brokers.Brokers.loads": loads}


def _half_resigned() -> Mapping[str, object]:
    """A broker that hands segments over stops half-way when the stream to the leader ends: no broker can write to them
    afterwards."""

    return {"headgate.broker.engine.upkeep.handover.Handover.resign": lambda self, segment_ids: self._resign(set(segment_ids))}


def _no_expiry() -> Mapping[str, object]:
    """A reservation that is not renewed never expires."""
    from headgate.broker.cluster.capacity import OpenReservation
    from headgate.broker.control.leader_capacity import LeaderCapacity

    def reservations(self: LeaderCapacity) -> list[OpenReservation]:
        return [
            OpenReservation(reservation=reservation, left_ms=reservation.ttl_ms)
            for reservation in self._journal.manifest.reservations.values()
        ]

    return {
        "headgate.broker.cluster.capacity.Deadlines.expired": lambda self, now_ms: [],
        "headgate.broker.control.leader_capacity.LeaderCapacity.reservations": reservations,
    }


def _half_a_gate() -> Mapping[str, object]:
    """The leader fills only the first partitions of a gate."""
    from headgate.broker.cluster.edits import gates

    apply = gates.FillGate.apply

    def half(self: gates.FillGate, state: Any) -> None:
        apply(replace(self, extents=self.extents[:1]), state)

    return {"headgate.broker.cluster.edits.gates.FillGate.apply": half}


def _readers_pass_gates() -> Mapping[str, object]:
    """Readers from the beginning do not wait for history."""
    return {"headgate.broker.engine.partition.windows.ReaderWindow.waits": property(lambda self: False)}


def _deaf_recovery() -> Mapping[str, object]:
    """A recovery does not ask the lost broker's follower for its copies."""

    async def nothing(self: object, lead: object) -> list[object]:
        return []

    return {"headgate.broker.control.failover.Failover._copies_of": nothing}


def _loyal_follower() -> Mapping[str, object]:
    """A follower still accepts copies after it has handed over those that it had."""
    from headgate.broker.engine.write.replicas import Replicas

    def surrender(self: Replicas, lead: str, stream: int) -> list[object]:
        held = self._held.get(lead)
        return [] if held is None else list(held.copies)

    return {"headgate.broker.engine.write.replicas.Replicas.surrender": surrender}


def _fixed_timeout() -> Mapping[str, object]:
    """The leader judges silence by a timeout that nothing extends, takes the end of a stream for a death, and ignores pauses."""
    from headgate.broker.cluster.liveness import Detector

    left = Detector.left

    def dies(self: Detector, incarnation_id: str, now_s: float) -> None:
        left(self, incarnation_id, now_s)
        self.note_gone(incarnation_id, "its stream ended")

    return {
        "headgate.broker.cluster.liveness.Detector.left": dies,
        "headgate.broker.cluster.liveness.Pace.allows": lambda self, now_s: True,
        "headgate.broker.cluster.liveness.Detector._allowed_s": lambda self, peer, now_s: self._timeout_s,
        "headgate.broker.cluster.liveness.stretched": lambda timeout_s, late_s: timeout_s,
        "headgate.broker.control.member.stretched": lambda timeout_s, late_s: timeout_s,
        "headgate.broker.cluster.lease.stretched": lambda timeout_s, late_s: timeout_s,
    }


def _jumping(age: str) -> Mapping[str, object]:
    """The broker measures ages of one kind by the system clock, including its jumps."""
    from headgate.broker.engine.base.lifecycle import Lifecycle
    from headgate.broker.testing.simulation import scenario

    right, wrong_ms = Lifecycle.cutoff_ms, getattr(scenario, age)

    def cutoff_ms(self: Lifecycle, age_ms: int) -> int | None:
        return self.clock.system_ms() - age_ms if wrong_ms <= age_ms < wrong_ms + 1_000_000 else right(self, age_ms)

    return {"headgate.broker.engine.base.lifecycle.Lifecycle.cutoff_ms": cutoff_ms}


def _jumping_appends() -> Mapping[str, object]:
    """The broker stamps and judges records by the system clock, including its jumps."""
    return {
        "headgate.broker.runtime.clock.SteadyClock.now_ms": lambda self: self.system_ms(),
        "headgate.broker.runtime.clock.SteadyClock.doubt": None,
    }


def _no_downtime() -> Mapping[str, object]:
    """A broker that starts trusts its clock and ignores the latest time in the store."""
    from headgate.broker.cluster.downtime import Beginning

    return {"headgate.broker.cluster.downtime.begin": lambda *times: Beginning(None, [])}


def _no_proof() -> Mapping[str, object]:
    """A broker answers from memory, even if it cannot prove that it still leads."""

    async def confirm(self: object) -> None: ...

    return {"headgate.broker.engine.base.proof.LeadProof.confirm": confirm}


def _forgotten_files() -> Mapping[str, object]:
    """A recovery does not see that the last records of a partition are in files."""
    from headgate.broker.cluster.objects import Chunk
    from headgate.broker.engine.upkeep import recovery

    ends = recovery._ends

    def of_chunks(manifest: object, segments: object, chunks: Iterable[Chunk]) -> dict[tuple[UUID, int], int]:
        return ends(cast("Any", manifest), [], chunks)

    return {"headgate.broker.engine.upkeep.recovery._ends": of_chunks}


def _late_folds() -> Mapping[str, object]:
    """The leader accepts a fold to files that has missed what happened to its chunks meanwhile."""
    return {"headgate.broker.cluster.edits.files.FoldToFiles.check": lambda self, state: None}


def _folded_aborts() -> Mapping[str, object]:
    """A fold to files keeps the records of aborted transactions."""
    always = {**ALWAYS_TRANSACTIONS, "headgate.broker.testing.simulation.scenario.FOLDING_RATE": 1.0}
    return {**always, "headgate.broker.engine.upkeep.file_fold_work.ranges_of": lambda aborted: {}}


def _unstable_folds() -> Mapping[str, object]:
    """A fold to files takes records of transactions that have not ended."""
    always = {**ALWAYS_TRANSACTIONS, "headgate.broker.testing.simulation.scenario.FOLDING_RATE": 1.0}

    def unbounded(*extents: Any, stable_end: int, **limits: Any) -> object:
        return choose(*extents, stable_end=1 << 62, **limits)

    return {**always, "headgate.broker.engine.upkeep.file_folder.choose": unbounded}


def _early_pins() -> Mapping[str, object]:
    """A fold lets go of each file that a recipe keeps when it has read one of its units."""
    from headgate.broker.engine.upkeep.adopted_work import _Fold

    read = _Fold._rows

    async def hasty(self: _Fold, unit: UnitBytes, paths: Sequence[str]) -> UnitRows:
        rows = await read(self, unit, paths)
        for path in paths:
            await self._store.delete(path)
        return rows

    return {**ALWAYS_ADOPTED, "headgate.broker.engine.upkeep.adopted_work._Fold._rows": hasty}


def _foreign_rows() -> Mapping[str, object]:
    """A reader of adopted files counts the rows of other partitions."""

    def from_the_end(self: UnitRows, partition: int) -> Any:
        begin, end = self._places[partition]
        return self._rows[::-1][begin:end].copy()

    # Without folds: these would write the wrong rows down.
    always = {**ALWAYS_ADOPTED, "headgate.broker.testing.simulation.scenario.FOLDING_RATE": 0.0}
    return {**always, "headgate.broker.log.adopted.UnitRows.rows": from_the_end}


ALWAYS_ADOPTED = {
    "headgate.broker.testing.simulation.scenario.HISTORY_RATE": 1.0,
    "headgate.broker.testing.simulation.scenario.ADOPTING_RATE": 1.0,
    "headgate.broker.testing.simulation.scenario.FOLDING_RATE": 1.0,
}
ALWAYS_TRANSACTIONS = {"headgate.broker.testing.simulation.scenario.TRANSACTIONS_RATE": 1.0}


def _forgiving_coordinator() -> Mapping[str, object]:
    """The coordinator of a transactional id does not look at the epochs of producers."""

    def check(known: Transaction | None, producer_id: int, epoch: int) -> Reason | None:
        return None if known is not None and producer_id == known.producer_id else Reason.INVALID_PRODUCER_ID_MAPPING

    return {**ALWAYS_TRANSACTIONS, "headgate.broker.transactions.rules._check": check}


def _forgetful_coordinator() -> Mapping[str, object]:
    """A new coordinator does not write the markers that its predecessor may have missed."""
    return {**ALWAYS_TRANSACTIONS, "headgate.broker.transactions.shard.Shard.loaded": lambda self, now: []}


def _forgetful_recovery() -> Mapping[str, object]:
    """A failover loses the transactions since the last checkpoint."""
    return {**ALWAYS_TRANSACTIONS, "headgate.broker.engine.upkeep.recovery.TRANSACTIONAL": 0}


def _unstable_readers() -> Mapping[str, object]:
    """Readers of committed records read up to the high watermark."""
    stable_end = property(lambda self: self.high_watermark)
    return {**ALWAYS_TRANSACTIONS, "headgate.broker.engine.partition.log.PartitionLog.stable_end": stable_end}


def _unnamed_aborts() -> Mapping[str, object]:
    """Fetch does not name the aborted transactions."""
    return {**ALWAYS_TRANSACTIONS, "headgate.broker.server.kafka.fetch.aborted_in": lambda log, offset, slices: []}


def _early_positions() -> Mapping[str, object]:
    """A position in a transaction counts, whatever the outcome."""
    end = Shard.end_transaction

    def always(self: Shard, producer_id: int, epoch: int, token: object, *, commit: bool) -> object:
        return end(self, producer_id, epoch, token, commit=True)

    return {**ALWAYS_TRANSACTIONS, "headgate.broker.groups.shard.Shard.end_transaction": always}


def _no_consent() -> Mapping[str, object]:
    """Leads take the first batch of a transaction without asking its coordinator, as before KIP-890."""
    allowed = {"headgate.broker.log.transactions.Transactions.is_allowed": lambda self, producer_id, epoch: True}
    return {**ALWAYS_TRANSACTIONS, **allowed, "headgate.broker.testing.simulation.transactors.VERSIONS": (1,)}


def _hasty_lanes() -> Mapping[str, object]:
    """A lane begins behind the record that a reader asks for."""
    place = LaneLogs.place
    return {"headgate.broker.engine.read.lane.LaneLogs.place": lambda self, log, offset: place(self, log, offset + 1)}


BUGS: dict[str, Callable[[], Mapping[str, object]]] = {
    "no-fence-check": _no_fence_check,
    "ack-before-durable": _ack_before_durable,
    "no-sequences": _no_sequences,
    "no-replay": _no_replay,
    "seal-half": _seal_half,
    "lead-after-seal": _lead_after_seal,
    "half-resigned": _half_resigned,
    "no-expiry": _no_expiry,
    "half-a-gate": _half_a_gate,
    "readers-pass-gates": _readers_pass_gates,
    "deaf-recovery": _deaf_recovery,
    "loyal-follower": _loyal_follower,
    "fixed-timeout": _fixed_timeout,
    "jumping-retention": lambda: _jumping("RETENTION_MS"),
    "jumping-producers": lambda: _jumping("EXPIRATION_MS"),
    "jumping-appends": _jumping_appends,
    "no-downtime": _no_downtime,
    "no-proof": _no_proof,
    "forgotten-files": _forgotten_files,
    "late-folds": _late_folds,
    "early-pins": _early_pins,
    "foreign-rows": _foreign_rows,
    "folded-aborts": _folded_aborts,
    "unstable-folds": _unstable_folds,
    "forgiving-coordinator": _forgiving_coordinator,
    "forgetful-coordinator": _forgetful_coordinator,
    "forgetful-recovery": _forgetful_recovery,
    "unstable-readers": _unstable_readers,
    "unnamed-aborts": _unnamed_aborts,
    "early-positions": _early_positions,
    "no-consent": _no_consent,
    "hasty-lanes": _hasty_lanes,
    # A lead sends a reader to the lane whenever it asks.
    "forgetful-leads": lambda: {"headgate.broker.cluster.lanes.Guide.may_send": lambda self, partition, offset, now_s: True},
}
