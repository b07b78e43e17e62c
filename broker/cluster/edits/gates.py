"""Edits of gates. No I/O."""

from __future__ import annotations

import uuid

import msgspec

from headgate.broker.cluster.edits.edit import Edit, live_topic
from headgate.broker.cluster.edits.files import check_paths
from headgate.broker.cluster.gates import OPEN_GATES_MAX, Gate, ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError


class OpenGate(Edit, frozen=True, tag="open_gate"):
    """Reserved offsets for history. `segments`: for each partition in order, the segment of the lead that reserved the window;
    [] for a gate at the front, which needs no lead. A gate that is filled in the same step has its extents, and the state
    `filled`."""

    gate: Gate
    segments: list[int] = msgspec.field(default_factory=list)

    def check(self, state: Manifest) -> None:
        gate = self.gate
        topic = live_topic(state, gate.topic_id)
        gates = state.gates.of(gate.topic_id)
        before = gates.get(gate.id)
        if before is not None and before.state != "released":
            raise InvalidError(Reason.GATE_CONFLICT, f"the gate is there already. gate=`{gate.id}` state=`{before.state}`")
        if sum(gate.state == "open" for gate in gates.values()) >= OPEN_GATES_MAX:
            raise InvalidError(
                Reason.POLICY_VIOLATION,
                "too many gates are open: wait until some are filled or released. "
                f"topic=`{topic.name}` open=`{OPEN_GATES_MAX}` max=`{OPEN_GATES_MAX}`",
            )
        check_paths(state, gate.extents)
        if len(gate.windows) != topic.partitions:
            raise RetryError(Reason.NOT_READY, f"the topic got more partitions meanwhile. topic=`{topic.name}`")
        if gate.place == "front":
            self._check_front(state)
        else:
            self._check_leads(state)

    def _check_front(self, state: Manifest) -> None:
        gate = self.gate
        for window in gate.windows:
            if window.rows and window.end_offset > state.front(gate.topic_id, window.partition):
                raise RetryError(Reason.NOT_READY, f"another gate was opened in front meanwhile. gate=`{gate.id}`")

    def _check_leads(self, state: Manifest) -> None:
        gate, leads = self.gate, state.segments.leads[self.gate.topic_id]
        for window in gate.windows:
            lead = leads[window.partition]
            if lead is None or lead.id != self.segments[window.partition]:
                raise RetryError(
                    Reason.NOT_LEADER, f"the partition got another lead meanwhile. gate=`{gate.id}` partition=`{window.partition}`"
                )
            assert window.base_offset >= state.gates.window_end(gate.topic_id, window.partition), "leads begin behind all windows"

    def apply(self, state: Manifest) -> None:
        gate = self.gate
        if gate.topic_id not in state.topics_by_id:
            return
        state.gates.add(gate, lambda gate: bool(state.files_of(gate)))
        if gate.place == "front":
            for window in gate.windows:
                if window.rows:
                    state.readable.open_front(gate.topic_id, window.partition, window.base_offset, window.end_offset)
            state.readable.prune(gate.topic_id)


class FillGate(Edit, frozen=True, tag="fill_gate"):
    """The files of all partitions of a gate, at once."""

    topic_id: uuid.UUID
    gate_id: str
    extents: list[ParquetExtent]
    digest: str
    filled_ms: int

    def check(self, state: Manifest) -> None:
        _check_open(state, self.topic_id, self.gate_id)
        check_paths(state, self.extents)

    def apply(self, state: Manifest) -> None:
        state.gates.change(
            self.topic_id,
            self.gate_id,
            state="filled",
            extents=self.extents,
            digest=self.digest,
            filled_ms=self.filled_ms,
            rows=sum(extent.rows for extent in self.extents),
            size_bytes=sum(extent.data_bytes for extent in self.extents),
            files=len(self.extents),
        )


class RenewGate(Edit, frozen=True, tag="renew_gate"):
    """The time-to-live of an open gate starts again."""

    topic_id: uuid.UUID
    gate_id: str
    ttl_ms: int

    def check(self, state: Manifest) -> None:
        _check_open(state, self.topic_id, self.gate_id)

    def apply(self, state: Manifest) -> None:
        known = state.gates.of(self.topic_id).get(self.gate_id)
        if known is not None:
            state.gates.change(self.topic_id, self.gate_id, ttl_ms=self.ttl_ms, renewals=known.renewals + 1)


class ReleaseGate(Edit, frozen=True, tag="release_gate"):
    """An open gate was released. `why`: `asked` or `expired`."""

    topic_id: uuid.UUID
    gate_id: str
    why: str

    def check(self, state: Manifest) -> None:
        _check_open(state, self.topic_id, self.gate_id)

    def apply(self, state: Manifest) -> None:
        state.gates.change(self.topic_id, self.gate_id, state="released", released_by=self.why)


class TrimGates(Edit, frozen=True, tag="trim_gates"):
    """Forget files that are no longer readable, of gates and of folds. They are then no longer named."""

    topic_id: uuid.UUID

    def apply(self, state: Manifest) -> None:
        state.gates.forget_files(self.topic_id, lambda files: state.readable.without(self.topic_id, files))
        state.files.trim(self.topic_id, state.unreadable_folds(self.topic_id))


def _check_open(state: Manifest, topic_id: uuid.UUID, gate_id: str) -> None:
    topic = live_topic(state, topic_id)
    gate = state.gates.of(topic_id).get(gate_id)
    if gate is None:
        raise InvalidError(Reason.UNKNOWN_GATE, f"the topic has no such gate. topic=`{topic.name}` gate=`{gate_id}`")
    if gate.state != "open":
        raise InvalidError(Reason.GATE_CONFLICT, f"the gate is not open any more. gate=`{gate_id}` state=`{gate.state}`")
