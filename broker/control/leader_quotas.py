"""The leader divides quotas: it hears what brokers use, and tells each broker its shares (`cluster/quota_shares.py` decides)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headgate.broker.cluster.meters import Use
from headgate.broker.cluster.quota_shares import QuotaBook
from headgate.broker.control.sessions import Sessions

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine


class LeaderQuotas:
    """The quotas of one term."""

    def __init__(self, engine: Engine, sessions: Sessions) -> None:
        self._engine = engine
        self._sessions = sessions
        self._book = QuotaBook()
        self._is_used = False

    def tick(self) -> None:
        """Divide anew, with this broker's own use. Costs nothing while no quota is used."""
        engine, uses = self._engine, self._engine.meters.report()
        self._is_used = self._is_used or bool(uses) or bool(self._sessions.quota_uses)
        if not self._is_used:
            return
        self._book.note(engine.incarnation_id, uses)
        for incarnation_id, reported in self._sessions.quota_uses.items():
            self._book.note(incarnation_id, reported)
        for incarnation_id, shares in self._book.divide([engine.incarnation_id, *self._sessions.by_id]).items():
            if incarnation_id == engine.incarnation_id:
                engine.meters.divided((entity, kind, share) for (entity, kind), share in shares.items())
            else:
                self._sessions.by_id[incarnation_id].quotas(shares)

    def uses(self, broker_ids: Mapping[str, int]) -> list[tuple[int, Use]]:
        """The quotas in use: (broker id, use)."""
        return [(broker_ids[incarnation_id], use) for incarnation_id, use in self._book.all() if incarnation_id in broker_ids]
