"""Recovers brokers for the leader: fences their WALs, asks their followers, and commits what the recovery found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from headgate.broker.cluster.objects import Follower, Incarnation
from headgate.broker.cluster.term import Term
from headgate.broker.cluster.term_events import Recovered
from headgate.broker.control.leader_journal import LeaderJournal
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.catalog import DeposedError
from headgate.broker.engine.upkeep import recovery
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.write.replicas import Copy

logger = get_logger("leader")

RETRY_S = 0.2
"""Pause, in seconds, before a failover that could not be committed is tried again."""


class Failover:
    """The recoveries of one term.

    Args:
        mine: this broker's incarnation id.
        surrender: asks the follower of a lost lead for its copies (`Surrenders.ask`).
    """

    def __init__(
        self,
        engine: Engine,
        mine: str,
        term: Term,
        journal: LeaderJournal,
        surrender: Callable[[Incarnation, Follower], Awaitable[list[Copy]]],
    ) -> None:
        self._engine = engine
        self._mine = mine
        self._term = term
        self._journal = journal
        self._surrender = surrender
        self._attempts = 0

    async def recover(self, lost: Iterable[Incarnation]) -> recovery.Recovered:
        """Fence and recover these brokers; see `recovery.recover`. The result is not committed yet."""
        self._attempts += 1
        made_by = keys.maker(self._term.epoch, self._mine, self._attempts)
        return await recovery.recover(self._engine.store, self._journal.manifest, lost, made_by, self._copies_of)

    async def run(self, why: Mapping[str, str]) -> Recovered:
        """Recover the condemned brokers, and commit their successors. Tries until a commit succeeds.

        Args:
            why: by incarnation, the reason why the broker was lost.

        Raises:
            DeposedError: another broker leads.
        """
        began_s = self._engine.clock.monotonic()
        while True:
            try:
                # Commit before the first fence. A leader that was replaced while it slept finds that out here, and fences no
                # broker.
                await self._journal.confirm()
                lost = self._term.to_recover()
                recovered = await self.recover(lost)
                damaged = {
                    incarnation: recovered.unreadable[incarnation.id]
                    for incarnation in lost
                    if incarnation.id in recovered.unreadable
                }
                lost = [incarnation for incarnation in lost if incarnation not in damaged]
                if lost:
                    await self._journal.commit(recovered.edits)
                break
            except DeposedError:
                raise
            except (RetryError, InvalidError, FencedError) as error:
                # The store does not answer, a topic was deleted, or a member sealed itself at the last moment. The next
                # recovery may be committed.
                logger.warning("failover_waits", error=error.message)
                await asyncio.sleep(RETRY_S)
        if lost:
            logger.info(
                "failed_over",
                brokers=[incarnation.broker_id for incarnation in lost],
                records=recovered.records,
                seconds=round(self._engine.clock.monotonic() - began_s, 3),
            )
        return Recovered(lost, damaged, recovered.edits, why, began_s)

    async def was_fenced(self, incarnation_id: str) -> bool:
        """True if the manifest does not know an incarnation, because it was replaced and forgotten. The incarnation may not know
        of this.

        Fences are kept for ever. Raises RetryError.
        """
        if incarnation_id in self._journal.manifest.incarnations:
            return False
        try:
            await self._engine.store.get_range(keys.fence(incarnation_id), 0, 1)
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return False
        return True

    async def _copies_of(self, lead: Incarnation) -> list[Copy]:
        """The copies that a lost lead's follower has. The lead may have acked them, and its WAL may lack them. Raises
        RetryError."""
        follower = self._journal.manifest.followers.get(lead.id)
        return [] if follower is None else await self._surrender(lead, follower)
