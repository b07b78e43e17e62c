"""Edits of quotas. No I/O."""

from __future__ import annotations

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.quotas import Entity


class AlterQuotas(Edit, frozen=True, tag="alter_quotas"):
    """Quotas of one entity, by Kafka's names. None removes one."""

    entity: Entity
    values: dict[str, float | None]

    def check(self, state: Manifest) -> None:
        state.quotas.check(self.entity, self.values)

    def apply(self, state: Manifest) -> None:
        state.quotas.alter(self.entity, self.values)
