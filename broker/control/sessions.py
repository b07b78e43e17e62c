"""The streams of the members, on the leader's side: a broker asks to join, its stream begins, it reports, its stream ends.

The term (`cluster/term.py`) decides about members; the sessions tell it the events. A request to a broker goes to its stream, or
to this broker's own engine.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headgate.broker.cluster.capacity import Desired
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest_format import encode_edits
from headgate.broker.cluster.meters import Use
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.quotas import Key
from headgate.broker.cluster.term import Term
from headgate.broker.cluster.term_events import Admitted, Event, Joined, Left, Reported, Spoke
from headgate.broker.control.leader_journal import LeaderJournal, not_leader
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.topics import Held

logger = get_logger("leader")


class Session(Protocol):
    """A member's stream, on the leader's side."""

    incarnation: Incarnation

    def edits(self, version: int, data: bytes) -> None:
        """Send the edits of a commit to the member."""

    def alive(self, clock_ms: int, store_ms: int, desired: Desired | None, takers: int) -> None:
        """Send the member a sign of life of the leader, with wall-clock times in ms: the leader's, and the store's (0: unknown).
        `takers`: brokers that do not drain."""

    async def resign(self, segment_ids: list[int]) -> None:
        """Make the member seal segments. Raises RetryError if the stream ends first."""

    async def hold(self, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int], term: int) -> list[Held]:
        """Call `Engine.hold` on the member. Raises as it does, and RetryError if the stream ends first."""

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Call `Engine.drop_holds` on the member."""

    def drain(self) -> None:
        """Tell the member that it must give up all its segments, also under later leaders."""

    def quotas(self, shares: Mapping[Key, float]) -> None:
        """Tell the member its shares of quotas."""

    def end(self, error: HeadgateError) -> None:
        """End the stream."""


class Sessions:
    """The streams of one term.

    Args:
        engine: of this broker, which has no stream to itself.
        draining: set when this broker must lose its segments and get no new ones.
        was_fenced: True if an incarnation that the manifest does not know was replaced. Raises RetryError.
        take: passes an event to the term, and executes the effects.
    """

    def __init__(
        self,
        engine: Engine,
        term: Term,
        journal: LeaderJournal,
        *,
        draining: asyncio.Event,
        was_fenced: Callable[[str], Awaitable[bool]],
        take: Callable[[Event], None],
    ) -> None:
        self.by_id: dict[str, Session] = {}
        """The streams, by incarnation. For reading."""
        self.quota_uses: dict[str, list[Use]] = {}
        """What members' clients use of quotas, by incarnation, as last reported. Without members that have reported none."""
        self._engine = engine
        self._term = term
        self._journal = journal
        self._draining = draining
        self._was_fenced = was_fenced
        self._take = take

    # -- called by a member's stream

    async def admit(self, incarnation: Incarnation, version: int, round_trip_s: float = 0.0) -> None:
        """Admit a broker that asks to be a member. If its incarnation is new, the manifest gets it.

        Args:
            version: of the broker's copy of the manifest; 0: it has none yet.
            round_trip_s: seconds of a round trip to it at most.

        Raises:
            FencedError: the incarnation was replaced. InvalidError: another broker has its broker id.
        """
        self._term.check_id(incarnation)
        is_fenced = await self._was_fenced(incarnation.id)
        # A broker with a copy of the manifest was a member before.
        make = self._term.admit(incarnation, was_member=version > 0 or is_fenced, round_trip_s=round_trip_s)
        try:
            await self._journal.commit_made(make)
        finally:
            self._take(Admitted(incarnation.id))

    def joined(self, session: Session) -> None:
        """Called when a member's stream begins. The stream starts with the current manifest. An earlier stream of the same
        incarnation ends. Raises RetryError(NOT_LEADER) if the term is over."""
        if self._journal.is_over:
            raise not_leader()
        incarnation = session.incarnation
        before = self.by_id.get(incarnation.id)
        if before is not None:
            before.end(RetryError(Reason.NOT_LEADER, "the broker joined again"))
        self.by_id[incarnation.id] = session
        self._take(Joined(incarnation))
        logger.info("member_joined", broker=incarnation.broker_id, incarnation=incarnation.id)

    def left(self, session: Session) -> None:
        """Called when a member's stream has ended."""
        incarnation = session.incarnation
        if self.by_id.get(incarnation.id) is session:
            del self.by_id[incarnation.id]
            self.quota_uses.pop(incarnation.id, None)
            if not self._journal.is_over:
                logger.info("member_left", broker=incarnation.broker_id, incarnation=incarnation.id)
                self._take(Left(incarnation.id))

    def used_quotas(self, session: Session, uses: list[Use]) -> None:
        """Called with the use of quotas in each report of a member."""
        incarnation_id = session.incarnation.id
        if self.by_id.get(incarnation_id) is session and (uses or incarnation_id in self.quota_uses):
            self.quota_uses[incarnation_id] = uses

    def reported(self, session: Session, report: Reported) -> int:
        """Called when a member has sent a report. Promises the member not to fence it unless its process is gone.

        Returns:
            The length of the promise in ms from now; see `engine/base/proof.py`. 0: no promise, because this broker may have been
            replaced, or is about to replace the member.
        """
        incarnation_id = session.incarnation.id
        if self._journal.is_over or self.by_id.get(incarnation_id) is not session:
            return 0
        self._take(report)
        if not self._engine.proof.holds:
            return 0
        return int(self._term.promise_s(incarnation_id, self._engine.clock.monotonic()) * 1000)

    def spoke(self, session: Session) -> None:
        """Called when a member has sent a message that is not a report."""
        self._take(Spoke(session.incarnation.id))

    # -- to all members

    def alive(self, store_ms: int, desired: Desired | None) -> None:
        """Send all members a sign of life. `store_ms`: the store's wall-clock time in ms; 0: unknown."""
        clock_ms = self._engine.clock.now_ms()
        for session in list(self.by_id.values()):
            session.alive(clock_ms, store_ms, desired, self._term.takers())

    def send(self, version: int, edits: Sequence[Edit]) -> None:
        """Send the edits of a commit to all members. `version`: of the manifest that contains them."""
        if self.by_id:
            data = encode_edits(list(edits))
            for session in list(self.by_id.values()):
                session.edits(version, data)

    def end_all(self) -> None:
        """End all streams, because the term is over."""
        for session in list(self.by_id.values()):
            session.end(not_leader())

    # -- to one broker

    def end(self, incarnation_id: str, error: HeadgateError) -> None:
        """End the stream of a broker, if it has one."""
        session = self.by_id.get(incarnation_id)
        if session is not None:
            session.end(error)

    def drain(self, incarnation_id: str) -> None:
        """Tell a live broker that it must give up all its segments, also under later leaders."""
        if incarnation_id == self._engine.incarnation_id:
            self._draining.set()
        else:
            self._of(incarnation_id).drain()

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None:
        """Make their lead seal segments. Raises RetryError if the lead is gone."""
        if incarnation_id == self._engine.incarnation_id:
            await self._engine.resign(segment_ids)
        else:
            await self._of(incarnation_id).resign(segment_ids)

    async def hold(self, incarnation_id: str, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int]) -> list[Held]:
        """Make a lead reserve offsets for a gate; see `Engine.hold`. Raises RetryError if the lead is gone."""
        if incarnation_id == self._engine.incarnation_id:
            return self._engine.hold(topic_id, gate_id, rows, self._term.epoch)
        return await self._of(incarnation_id).hold(topic_id, gate_id, rows, self._term.epoch)

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Tell all leads that a gate will not be opened."""
        self._engine.drop_holds(topic_id, gate_id)
        for session in self.by_id.values():
            session.drop_holds(topic_id, gate_id)

    def _of(self, incarnation_id: str) -> Session:
        session = self.by_id.get(incarnation_id)
        if session is None:
            raise RetryError(Reason.NOT_LEADER, f"the broker is not connected. incarnation=`{incarnation_id}`")
        return session
