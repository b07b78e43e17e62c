"""Uses and shares of quotas between the control plane's types and messages of the Control service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.broker.cluster.meters import Use
from headgate.broker.cluster.quotas import KINDS, Entity, Key, Kind
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.optional import given


def _names(entity: Entity) -> dict[str, str]:
    return {word.replace("-", "_"): name for word, name in entity.parts.items()}


def _entity(message: control_pb2.QuotaUse | control_pb2.QuotaShare) -> Entity:
    return Entity(**given(message, "user", "client_id"))


def use_message(use: Use, broker_id: int = 0) -> control_pb2.QuotaUse:
    return control_pb2.QuotaUse(
        **_names(use.entity),
        kind=use.kind.value,
        limit=use.limit,
        share=use.share,
        rate=use.rate,
        throttled=use.is_throttled,
        waited_s=use.waited_s,
        broker_id=broker_id,
    )


def uses_of(messages: Iterable[control_pb2.QuotaUse]) -> list[Use]:
    """Uses of quotas that this release knows."""
    return [
        Use(_entity(message), KINDS[message.kind], message.limit, message.share, message.rate, message.throttled, message.waited_s)
        for message in messages
        if message.kind in KINDS
    ]


def shares_message(shares: Mapping[Key, float]) -> control_pb2.QuotaShares:
    rows = [control_pb2.QuotaShare(**_names(entity), kind=kind.value, share=share) for (entity, kind), share in shares.items()]
    return control_pb2.QuotaShares(shares=rows)


def shares_of(message: control_pb2.QuotaShares) -> list[tuple[Entity, Kind, float]]:
    """Shares of quotas that this release knows."""
    return [(_entity(share), KINDS[share.kind], share.share) for share in message.shares if share.kind in KINDS]
