"""Requests of Kafka clients in the audit log: a line for each administrative act, and for each request that was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.broker.cluster.acl import ANONYMOUS
from headgate.broker.server.audit.audit import Audit, Caller
from headgate.broker.server.audit.kafka_acts import ACTS, REFUSALS, errors, targets
from headgate.broker.server.kafka.api_names import API_NAMES
from headgate.broker.server.kafka.context import Context

if TYPE_CHECKING:
    from headgate.broker.server.access.rights import Identity
    from headgate.broker.server.kafka.apis import Message


def begin(audit: Audit | None, key: int, request: Message) -> list[str] | None:
    """The names in an administrative request, before it is handled; None for other requests, and for those that only try."""
    if audit is None or key not in ACTS or getattr(request, "validate_only", False):
        return None
    return targets(key, request)


def caller(identity: Identity | None, context: Context) -> Caller:
    who = ANONYMOUS if identity is None else identity.principal
    return Caller(who=who, host=context.client_host, door="kafka", client_id=context.client_id or "")


def end(audit: Audit, key: int, names: list[str] | None, caller: Caller, answer: Message) -> None:
    """Note how a request ended."""
    failed, codes = errors(answer)
    is_refused = bool(codes & REFUSALS)
    if names is None:
        if is_refused:
            audit.refused(API_NAMES[key], caller, failed, ", ".join(sorted(code.name.lower() for code in codes)))
        return
    reason = ", ".join(sorted(code.name.lower() for code in codes))
    audit.did(API_NAMES[key], caller, names, error=reason, refused=is_refused)
