"""Who a client is, and what it may do: the answers for one connection, from the rules in the manifest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headgate.broker.cluster.access import Access
from headgate.broker.cluster.acl import CLUSTER_NAME, VALID, Operation, Resource
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason

REMEMBERED_MAX = 10_000
"""Answers that a connection remembers. Above it forgets all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A client. `host` is its address. `is_broker`: it proved to be a broker of this cluster. `expires_s`: time on the monotonic
    clock until which the proof holds."""

    principal: str
    host: str
    is_broker: bool = False
    expires_s: float = math.inf
    mechanism: str = ""


class Authority:
    """Decides what clients may do.

    Args:
        access: returns the users and rules of the manifest, or None before it is known.
        refused: notes that a client may not write to, or read, a topic or a transactional id.
    """

    def __init__(
        self,
        settings: Settings,
        access: Callable[[], Access | None],
        refused: Callable[[Identity, Operation, str], None] = lambda *_: None,
    ) -> None:
        self.is_on = settings.authorization == "acl"
        self.access = access
        self.refused = refused
        self._super_users = {principal.strip() for principal in settings.super_users.split(";") if principal.strip()}

    def rights(self, identity: Identity) -> Rights | None:
        """The rights of a client; None: it may do everything, because there is no authorization."""
        return Rights(self, identity) if self.is_on else None

    def decide(self, identity: Identity, operation: Operation, resource: Resource, name: str | None) -> bool:
        """Whether a client may do an operation; without a name: on any resource of the type."""
        if identity.is_broker or identity.principal in self._super_users:
            return True
        access = self.access()
        if access is None:
            return False
        kind, _, user_name = identity.principal.partition(":")
        user = access.users.get(user_name) if kind == "User" else None
        if user is not None and user.superuser:
            return True
        if name is None:
            return access.acls.allows_some((identity.principal,), identity.host, operation, resource)
        return access.acls.allows((identity.principal,), identity.host, operation, resource, name)


class Rights:
    """What one client may do. Remembers answers until a rule or a user changes."""

    __slots__ = ("_access", "_authority", "_known", "_version", "identity")

    def __init__(self, authority: Authority, identity: Identity) -> None:
        self._authority = authority
        self.identity = identity
        self._known: dict[tuple[Operation, Resource, str | None], bool] = {}
        self._access: Access | None = None
        self._version = -1

    def may(self, operation: Operation, resource: Resource, name: str | None) -> bool:
        """Whether the client may do an operation; without a name: on any resource of the type."""
        access = self._authority.access()
        if access is not self._access or (access is not None and access.version != self._version):
            self._access, self._version = access, -1 if access is None else access.version
            self._known.clear()
        key = (operation, resource, name)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            found = self._known[key] = self._authority.decide(self.identity, operation, resource, name)
        return found

    def lasting(self, operation: Operation, resource: Resource) -> Callable[[str], bool]:
        """Whether the client may do an operation, by name: an answer that follows the rules and may outlast the connection."""
        return partial(self._authority.decide, self.identity, operation, resource)

    def on_cluster(self, operation: Operation) -> bool:
        return self.may(operation, Resource.CLUSTER, CLUSTER_NAME)

    def on_topic(self, operation: Operation, name: str) -> bool:
        return self.may(operation, Resource.TOPIC, name)

    def may_write_somewhere(self) -> bool:
        """Whether there is a topic that the client may write to, or would be if it existed."""
        return self.may(Operation.WRITE, Resource.TOPIC, None)

    def may_write(self, topic: str) -> bool:
        return self._noted(Operation.WRITE, Resource.TOPIC, topic)

    def may_read(self, topic: str) -> bool:
        return self._noted(Operation.READ, Resource.TOPIC, topic)

    def may_transact(self, transactional_id: str) -> bool:
        return self._noted(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)

    def _noted(self, operation: Operation, resource: Resource, name: str) -> bool:
        """As `may`, for records: a refusal is noted."""
        allowed = self.may(operation, resource, name)
        if not allowed:
            self._authority.refused(self.identity, operation, name)
        return allowed

    def on_group(self, operation: Operation, name: str) -> bool:
        return self.may(operation, Resource.GROUP, name)

    def operations(self, resource: Resource, name: str) -> int:
        """The allowed operations as bits, as Kafka sends them."""
        return sum(1 << operation for operation in VALID[resource] if self.may(operation, resource, name))


def refusal(error: HeadgateError) -> str:
    """The text for a client that is not let in. It does not tell whether the user exists."""
    return "authentication failed" if error.reason is Reason.NOT_AUTHENTICATED else error.message
