"""Quotas of clients as a part of the manifest: the state, what may become of it, and which quota a client has. No I/O.

The rules are Kafka's (KIP-13, KIP-546). A client is a user and a client id. For each kind of quota the first of
these entities that has one decides::

    user and client id, user and default client id, user,
    default user and client id, default user and default client id, default user,
    client id, default client id

Clients share a quota by the names that decided: one of a user is shared by all of the user's clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

import msgspec

from headgate.broker.runtime.errors import InvalidError, Reason

ENTITIES_MAX = 10_000
"""Entities with quotas; each takes about 1 KB of memory at every broker."""
NAME_CHARS_MAX = 250
VALUE_MAX = float(1 << 62)
DEFAULT = ""
"""In place of a name: all names without a quota of their own."""


class Kind(Enum):
    """A kind of quota, by Kafka's name: bytes per second."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"


KINDS = {kind.value: kind for kind in Kind}


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a quota is for. None: not limited to such a name; `DEFAULT`: names without a quota of their own."""

    user: str | None = None
    client_id: str | None = None

    @property
    def parts(self) -> dict[str, str]:
        """Names by Kafka's word for their type."""
        return {word: name for word, name in zip(PARTS, (self.user, self.client_id), strict=True) if name is not None}

    def __str__(self) -> str:
        return ", ".join(f"{word} {name or '(default)'}" for word, name in self.parts.items())


PARTS = ("user", "client-id")
Key = tuple[Entity, Kind]


def user_of(principal: str) -> str:
    """The name under which a principal has quotas."""
    return principal.partition(":")[2]


class QuotaRow(msgspec.Struct, frozen=True, kw_only=True):
    """All quotas of one entity, in a snapshot."""

    entity: Entity
    values: dict[str, float]


class Quotas:
    """All quotas."""

    def __init__(self, rows: Iterable[QuotaRow] = ()) -> None:
        self.by_entity: dict[Entity, dict[Kind, float]] = {}
        """Each entity has at least one quota."""
        for row in rows:
            self.alter(row.entity, row.values)

    def rows(self) -> list[QuotaRow]:
        return [
            QuotaRow(entity=entity, values={kind.value: value for kind, value in values.items()})
            for entity, values in self.by_entity.items()
        ]

    def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Change quotas of an entity, by Kafka's names. None removes one."""
        values = dict(self.by_entity.pop(entity, {}))
        for key, value in changes.items():
            kind = KINDS.get(key)
            if kind is None:  # of another release: share of processor time, connections of an address
                continue
            values.pop(kind, None)
            if value is not None:
                values[kind] = value
        if values:
            self.by_entity[entity] = values

    def check(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Check that these quotas may be changed (`alter`). Raises InvalidError."""
        check_entity(entity)
        for key, value in changes.items():
            kind = KINDS.get(key)
            if kind is None:
                text = f"Invalid configuration key {key[:NAME_CHARS_MAX]}: known are {', '.join(KINDS)}"
                raise InvalidError(Reason.INVALID_REQUEST, text)
            if value is not None:
                _check_value(kind, value)
        if entity not in self.by_entity and len(self.by_entity) >= ENTITIES_MAX:
            raise InvalidError(Reason.POLICY_VIOLATION, f"too many entities have quotas. max=`{ENTITIES_MAX}`")

    def of(self, kind: Kind, user: str, client_id: str) -> tuple[Entity, float] | None:
        """The quota of a client: (the names that share it, its value); None without one."""
        if not self.by_entity:
            return None
        for entity in _candidates(user, client_id):
            value = self.by_entity.get(entity, _NO_QUOTAS).get(kind)
            if value is not None:
                shared = Entity(
                    user=None if entity.user is None else user, client_id=None if entity.client_id is None else client_id
                )
                return shared, value
        return None


_NO_QUOTAS: dict[Kind, float] = {}


def _candidates(user: str, client_id: str) -> Iterator[Entity]:
    for name in (user, DEFAULT):
        for other in (client_id, DEFAULT, None):
            yield Entity(user=name, client_id=other)
    for other in (client_id, DEFAULT):
        yield Entity(client_id=other)


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """An entity from Kafka's words for types, and names; None is the default. Raises InvalidError in Kafka's words."""
    names: dict[str, str] = {}
    for word, name in parts:
        if word in names:
            raise InvalidError(Reason.INVALID_REQUEST, f"Invalid empty client quota entity, duplicate entity entry {word}")
        if word not in PARTS:
            text = f"Unhandled client quota entity type: {word[:NAME_CHARS_MAX]}: known are {', '.join(PARTS)}"
            raise InvalidError(Reason.INVALID_REQUEST, text)
        if name == "":
            raise InvalidError(Reason.INVALID_REQUEST, f"Empty {word} not supported")
        names[word] = DEFAULT if name is None else name
    entity = Entity(user=names.get("user"), client_id=names.get("client-id"))
    check_entity(entity)
    return entity


def check_entity(entity: Entity) -> None:
    """Check the names of an entity. Raises InvalidError."""
    parts = entity.parts
    if not parts:
        raise InvalidError(Reason.INVALID_REQUEST, "Invalid empty client quota entity")
    for word, name in parts.items():
        if len(name) > NAME_CHARS_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"a name is too long. type=`{word}` max=`{NAME_CHARS_MAX}`")


def _check_value(kind: Kind, value: float) -> None:
    if not 0 < value <= VALUE_MAX:  # also refuses NaN
        raise InvalidError(Reason.INVALID_REQUEST, f"Quota {kind.value} must be greater than 0")
    if value != int(value):
        raise InvalidError(Reason.INVALID_REQUEST, f"{kind.value} cannot be a fractional value.")
