"""Settings of topics and of the broker, in the form in which Kafka's config APIs show and change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING

from headgate.broker.cluster.topic_config import KEYS, ConfigKey, Kind, broker_defaults, config_key, validate_topic_name
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.context import Context

if TYPE_CHECKING:
    from headgate.broker.cluster.manifest import Topic

TOPIC, BROKER = 2, 4
"""Resource types. Kafka also has broker loggers (8), client metrics (16) and groups (32)."""


class ConfigSource(IntEnum):
    """Source of a value."""

    TOPIC = 1
    BROKER = 4
    DEFAULT = 5


class Operation(IntEnum):
    """Operation of IncrementalAlterConfigs on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key with its value. `synonyms` are its current value and its defaults, as (name, value, source); the first one is in
    effect."""

    name: str
    value: str
    source: ConfigSource
    kind: Kind
    read_only: bool
    documentation: str
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- topics


def _topic_default(key: ConfigKey, settings: Settings) -> tuple[str, ConfigSource]:
    value = broker_defaults(settings).get(key.name, key.default)
    return value, ConfigSource.DEFAULT if value == key.default else ConfigSource.BROKER


def topic_entries(topic: Topic, settings: Settings) -> list[Entry]:
    """All keys of a topic, in the order of their names."""
    entries = []
    for key in KEYS.values():
        default, default_source = _topic_default(key, settings)
        override = topic.config.get(key.name)
        synonyms: list[tuple[str, str, ConfigSource]] = []
        if override is not None:
            synonyms.append((key.name, override, ConfigSource.TOPIC))
        broker_name = key.broker_name or key.name
        if default_source is ConfigSource.BROKER:
            synonyms.append((broker_name, default, ConfigSource.BROKER))
        synonyms.append((broker_name, key.default, ConfigSource.DEFAULT))
        entries.append(
            Entry(
                name=key.name,
                value=default if override is None else override,
                source=default_source if override is None else ConfigSource.TOPIC,
                kind=key.kind,
                read_only=False,
                documentation=key.documentation,
                synonyms=tuple(synonyms),
            )
        )
    return entries


def find_topic(name: str, context: Context) -> Topic:
    """The topic of a config resource. Raises InvalidError(INVALID_TOPIC, UNKNOWN_TOPIC)."""
    validate_topic_name(name)
    return context.engine.topic(name)


def altered(topic: Topic, changes: Mapping[str, tuple[Operation, str]], settings: Settings) -> dict[str, str]:
    """A topic's overrides after IncrementalAlterConfigs.

    Raises:
        InvalidError: INVALID_CONFIG if a key is unknown, or if a list operation changes a key that is not a list.
    """
    config = dict(topic.config)
    for name, (operation, value) in changes.items():
        if operation is Operation.DELETE:
            config.pop(name, None)
            continue
        key = config_key(name)
        if operation is Operation.SET:
            config[name] = value
            continue
        if key.kind is not Kind.LIST:
            raise InvalidError(Reason.INVALID_CONFIG, f"key is not a list: it can only be set. key=`{name}`")
        present = config.get(name, _topic_default(key, settings)[0])
        items = [item.strip() for item in present.split(",") if item.strip()]
        for item in (part.strip() for part in value.split(",")):
            if operation is Operation.APPEND and item not in items:
                items.append(item)
            elif operation is Operation.SUBTRACT and item in items:
                items.remove(item)
        config[name] = ",".join(items)
    return config


# -- the broker

_BROKER_TEXTS = {
    "advertised.listeners": "The address that the broker announces to clients.",
    "auto.create.topics.enable": "Whether a topic is created when a client first asks for it.",
    "broker.id": "This broker's number.",
    "connections.max.idle.ms": "Longest time that a connection may be without a request.",
    "default.replication.factor": "Always 1: the store makes the copies.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "fetch.max.bytes": "The largest answer to one fetch.",
    "listeners": "The address that the broker listens on.",
    "log.dirs": "The store.",
    "max.connections": "Most open connections.",
    "node.id": "This broker's number.",
    "num.partitions": "Partitions of a topic that is created without a partition count.",
    "socket.request.max.bytes": "The largest request.",
}
_KINDS = {"count": Kind.LONG, "size": Kind.LONG, "duration": Kind.LONG, "flag": Kind.BOOLEAN}


def broker_entries(context: Context) -> list[Entry]:
    """The broker's settings: under Kafka's names if Kafka has them, and all under Headgate's own names. None can be changed."""
    settings = context.settings
    known: dict[str, tuple[object, object, Kind, str]] = {}  # name: value, default, kind, documentation
    for field in fields(settings):
        kind = _KINDS.get(field.metadata["kind"], Kind.STRING)
        known[field.name] = getattr(settings, field.name), field.default, kind, field.metadata["documentation"]
    for key in KEYS.values():
        if key.broker_name is not None:
            known[key.broker_name] = _topic_default(key, settings)[0], key.default, key.kind, key.documentation
    own = Settings()

    def add(name: str, value: object, default: object, kind: Kind) -> None:
        known[name] = value, default, kind, _BROKER_TEXTS[name]

    def add_text(name: str, value: str, *made_of: str) -> None:
        """A text that follows from the settings `made_of`. It is the default while these have their defaults."""
        is_default = all(getattr(settings, one) == getattr(own, one) for one in made_of)
        add(name, value, value if is_default else "", Kind.STRING)

    listens = ("host", "kafka_port")
    advertised = f"PLAINTEXT://{context.host}:{context.port}"
    add_text("advertised.listeners", advertised, *listens, "advertised_host", "advertised_kafka_port")
    add_text("listeners", f"PLAINTEXT://{settings.host}:{settings.kafka_port or context.port}", *listens)
    add("broker.id", settings.broker_id, own.broker_id, Kind.INT)
    add("node.id", settings.broker_id, own.broker_id, Kind.INT)
    add("auto.create.topics.enable", settings.auto_create_topics, own.auto_create_topics, Kind.BOOLEAN)
    add("num.partitions", settings.num_partitions, own.num_partitions, Kind.INT)
    add("connections.max.idle.ms", settings.connection_idle_ms, own.connection_idle_ms, Kind.LONG)
    add("max.connections", settings.connections_max, own.connections_max, Kind.INT)
    add("socket.request.max.bytes", settings.frame_bytes_max, own.frame_bytes_max, Kind.INT)
    add("fetch.max.bytes", settings.fetch_bytes_max, own.fetch_bytes_max, Kind.INT)
    add("default.replication.factor", 1, 1, Kind.INT)
    add("delete.topic.enable", True, True, Kind.BOOLEAN)
    add_text("log.dirs", context.engine.store.url, "store")
    entries = []
    for name, (value, default, kind, documentation) in sorted(known.items()):
        source = ConfigSource.DEFAULT if value == default else ConfigSource.BROKER
        synonyms = ((name, _text(value), source),)
        entries.append(
            Entry(
                name=name,
                value=_text(value),
                source=source,
                kind=kind,
                read_only=True,
                documentation=documentation,
                synonyms=synonyms
                if source is ConfigSource.DEFAULT or default == ""
                else (*synonyms, (name, _text(default), ConfigSource.DEFAULT)),
            )
        )
    return entries


def check_broker(name: str, context: Context) -> None:
    """Raise InvalidError(INVALID_REQUEST) unless a broker resource's name is this broker's id, or empty for all brokers."""
    if name in ("", str(context.engine.broker_id)):
        return
    expected = f"this broker's id is {context.engine.broker_id}"
    raise InvalidError(Reason.INVALID_REQUEST, f"broker resource is not this broker: {expected}. name=`{name[:100]}`")


def unsupported_resource(resource_type: int) -> InvalidError:
    return InvalidError(
        Reason.INVALID_REQUEST, f"only topics (2) and brokers (4) have configs here. resource_type=`{resource_type}`"
    )
