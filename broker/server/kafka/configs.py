"""Settings of topics, in the form in which Kafka's config APIs show and change them; what these APIs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from headgate.broker.cluster.topic_config import KEYS, ConfigKey, Kind, broker_defaults, config_key, validate_topic_name
from headgate.broker.engine.base.live_settings import ALL
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.context import Context

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Topic

TOPIC, BROKER = 2, 4
"""Resource types."""


class ConfigSource(IntEnum):
    """Source of a value."""

    TOPIC = 1
    CHOSEN_FOR_BROKER = 2
    CHOSEN_FOR_ALL = 3
    BROKER = 4
    DEFAULT = 5


class Operation(IntEnum):
    """Operation of IncrementalAlterConfigs on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Synonym = tuple[str, str, ConfigSource]
"""Name, value and source."""
Changes = Mapping[str, tuple[Operation, str]]
"""The operations of IncrementalAlterConfigs on one resource, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key with its value. `synonyms` are its current value and its defaults; the first one is in effect."""

    name: str
    kind: Kind
    read_only: bool
    documentation: str
    synonyms: tuple[Synonym, ...]

    @property
    def value(self) -> str:
        return self.synonyms[0][1]

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0][2]


def chosen_synonyms(name: str, context: Context) -> list[Synonym]:
    """The values of a broker's setting that clients chose, for this broker and for all."""
    configs = context.engine.manifest.broker_configs
    layers = ((str(context.engine.broker_id), ConfigSource.CHOSEN_FOR_BROKER), (ALL, ConfigSource.CHOSEN_FOR_ALL))
    return [(name, configs[broker][name], source) for broker, source in layers if name in configs.get(broker, {})]


def altered(
    present: Mapping[str, str], changes: Changes, find: Callable[[str], ConfigKey], default: Callable[[ConfigKey], str]
) -> dict[str, str]:
    """Settings after IncrementalAlterConfigs. Deleting a key that is not set does nothing, whatever its name.

    Args:
        find: returns the key of a name, or raises InvalidError.
        default: returns the value of a list that is not set.

    Raises:
        InvalidError: as `find`; INVALID_CONFIG if a list operation changes a key that is not a list.
    """
    config = dict(present)
    for name, (operation, value) in changes.items():
        if operation is Operation.DELETE:
            config.pop(name, None)
            continue
        key = find(name)
        if operation is Operation.SET:
            config[name] = value
            continue
        if key.kind is not Kind.LIST:
            raise InvalidError(Reason.INVALID_CONFIG, f"key is not a list: it can only be set. key=`{name}`")
        items = [item.strip() for item in config.get(name, default(key)).split(",") if item.strip()]
        for item in (part.strip() for part in value.split(",")):
            if operation is Operation.APPEND and item not in items:
                items.append(item)
            elif operation is Operation.SUBTRACT and item in items:
                items.remove(item)
        config[name] = ",".join(items)
    return config


def unsupported_resource(resource_type: int) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"only topics (2) and brokers (4) have configs. resource_type=`{resource_type}`")


# -- topics


def default_synonyms(key: ConfigKey, context: Context) -> list[Synonym]:
    """The defaults of a topic's key, the one in effect first."""
    name = key.broker_name or key.name
    found = chosen_synonyms(name, context)
    started_with = broker_defaults(context.engine.configs.started_with).get(key.name, key.default)
    if started_with != key.default:
        found.append((name, started_with, ConfigSource.BROKER))
    return [*found, (name, key.default, ConfigSource.DEFAULT)]


def topic_entries(topic: Topic, context: Context) -> list[Entry]:
    """All keys of a topic, in the order of their names."""
    entries = []
    for key in KEYS.values():
        override = topic.config.get(key.name)
        own: list[Synonym] = [] if override is None else [(key.name, override, ConfigSource.TOPIC)]
        entries.append(
            Entry(
                name=key.name,
                kind=key.kind,
                read_only=False,
                documentation=key.documentation,
                synonyms=(*own, *default_synonyms(key, context)),
            )
        )
    return entries


def find_topic(name: str, context: Context) -> Topic:
    """The topic of a config resource. Raises InvalidError(INVALID_TOPIC, UNKNOWN_TOPIC)."""
    validate_topic_name(name)
    return context.engine.topic(name)


def altered_topic(present: Topic, changes: Changes, context: Context) -> dict[str, str]:
    """Settings of a topic after IncrementalAlterConfigs. Raises InvalidError."""
    return altered(present.config, changes, config_key, lambda key: default_synonyms(key, context)[0][1])
