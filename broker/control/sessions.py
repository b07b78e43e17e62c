"""The streams of the members, on the leader's side. A request to a broker goes to its stream, or to this broker's own engine."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headgate.broker.cluster.manifest import Edit, Incarnation, encode_edits
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.topics import Held


class Session(Protocol):
    """A member's stream, on the leader's side."""

    incarnation: Incarnation

    def edits(self, version: int, data: bytes) -> None:
        """Send the edits of a commit to the member."""

    def alive(self) -> None:
        """Send the member a sign of life of the leader."""

    async def resign(self, segment_ids: list[int]) -> None:
        """Make the member seal segments. Raises RetryError if the stream ends first."""

    async def hold(self, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int], term: int) -> list[Held]:
        """Call `Engine.hold` on the member. Raises as it does, and RetryError if the stream ends first."""

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Call `Engine.drop_holds` on the member."""

    def drain(self) -> None:
        """Tell the member that it must give up all its segments, also under later leaders."""

    def end(self, error: HeadgateError) -> None:
        """End the stream."""


class Sessions(dict[str, Session]):
    """The streams of one term, by incarnation.

    Args:
        engine: of this broker, which has no stream to itself.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def replace(self, session: Session) -> None:
        """Add a member's stream, and end the earlier one of the same incarnation."""
        before = self.get(session.incarnation.id)
        if before is not None:
            before.end(RetryError(Reason.NOT_LEADER, "the broker joined again"))
        self[session.incarnation.id] = session

    def send(self, version: int, edits: Sequence[Edit]) -> None:
        """Send the edits of a commit to all members. `version`: of the manifest that contains them."""
        if self:
            data = encode_edits(list(edits))
            for session in list(self.values()):
                session.edits(version, data)

    def end_all(self, error: HeadgateError) -> None:
        for session in list(self.values()):
            session.end(error)

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None:
        """Make their lead seal segments. Raises RetryError if the lead is gone."""
        if incarnation_id == self._engine.incarnation_id:
            await self._engine.resign(segment_ids)
        else:
            await self._of(incarnation_id).resign(segment_ids)

    async def hold(self, incarnation_id: str, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int], term: int) -> list[Held]:
        """Make a lead reserve offsets for a gate; see `Engine.hold`. Raises RetryError if the lead is gone."""
        if incarnation_id == self._engine.incarnation_id:
            return self._engine.hold(topic_id, gate_id, rows, term)
        return await self._of(incarnation_id).hold(topic_id, gate_id, rows, term)

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Tell all leads that a gate will not be opened."""
        self._engine.drop_holds(topic_id, gate_id)
        for session in self.values():
            session.drop_holds(topic_id, gate_id)

    def _of(self, incarnation_id: str) -> Session:
        session = self.get(incarnation_id)
        if session is None:
            raise RetryError(Reason.NOT_LEADER, f"the broker is not connected. incarnation=`{incarnation_id}`")
        return session
