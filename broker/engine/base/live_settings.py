"""Settings of brokers that change while they run, under Kafka's names: the table, and what is in force. No I/O.

A client sets them for one broker or for all (DescribeConfigs calls the second "default"). They are in the manifest, so every broker
knows them and a restart keeps them. The first of these sources that has a setting is in force::

    this broker's, set by a client  ->  all brokers', set by a client  ->  the settings that the broker was started with

Three kinds can be set: the defaults of topic settings (`log.retention.ms`), settings of the broker that are read at each use
(`FIELDS`), and settings of Kafka's own machinery that have no effect here (`_WITHOUT_EFFECT`): tools set them on any cluster.
Settings of Kafka that limit or protect something, and that this broker does not have, are refused: keeping them would promise it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headgate.broker.cluster.topic_config import INT_MAX, KEYS, LONG_MAX, ConfigKey, Kind, TopicConfig, broker_defaults
from headgate.broker.runtime.config import Settings, setting
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.setting_kinds import Value

if TYPE_CHECKING:
    from headgate.broker.cluster.manifest import Manifest

ALL = ""
"""The name that stands for all brokers."""

FIELDS = {
    "auto.create.topics.enable": "auto_create_topics",
    "connections.max.idle.ms": "connection_idle_ms",
    "max.connections": "connections_max",
    "num.partitions": "num_partitions",
    "offsets.retention.minutes": "offsets_retention_minutes",
    "transaction.max.timeout.ms": "transaction_max_timeout_ms",
    "transactional.id.expiration.ms": "transactional_id_expiration_ms",
}
"""Kafka's names of settings that the broker reads at each use, so that they can change."""


def _of_field(name: str, field: str) -> ConfigKey:
    about = setting(field).metadata
    kind = Kind.BOOLEAN if about["kind"] == "flag" else Kind.LONG if about["kind"] == "duration" else Kind.INT
    default = getattr(Settings, field)
    return ConfigKey(
        name=name,
        kind=kind,
        default=str(default).lower() if isinstance(default, bool) else str(default),
        documentation=f"{about['documentation']}.",
        broker_name=None,
        low=about.get("low", 0),
        high=min(about.get("high", 0), INT_MAX if kind is Kind.INT else LONG_MAX),
    )


_REPLICAS = "brokers do not copy records from one another"
_THREADS = "a broker has one event loop, and threads and processes by its work"
_CLEANER = "compaction has no threads and buffers of its own"
_WITHOUT_EFFECT = (
    ("background.threads", Kind.INT, "10", _THREADS),
    ("follower.replication.throttled.rate", Kind.LONG, str(LONG_MAX), _REPLICAS),
    ("leader.replication.throttled.rate", Kind.LONG, str(LONG_MAX), _REPLICAS),
    ("log.cleaner.backoff.ms", Kind.LONG, "15000", _CLEANER),
    ("log.cleaner.dedupe.buffer.size", Kind.LONG, str(128 << 20), _CLEANER),
    ("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, "0.9", _CLEANER),
    ("log.cleaner.io.buffer.size", Kind.INT, str(512 << 10), _CLEANER),
    ("log.cleaner.io.max.bytes.per.second", Kind.LONG, str(LONG_MAX), _CLEANER),
    ("log.cleaner.threads", Kind.INT, "1", _CLEANER),
    ("num.io.threads", Kind.INT, "8", _THREADS),
    ("num.network.threads", Kind.INT, "3", _THREADS),
    ("num.recovery.threads.per.data.dir", Kind.INT, "2", _THREADS),
    ("num.replica.fetchers", Kind.INT, "1", _REPLICAS),
    ("replica.alter.log.dirs.io.max.bytes.per.second", Kind.LONG, str(LONG_MAX), _REPLICAS),
)
"""Kafka's settings that are accepted and kept without effect: name, kind, default, and the reason."""
_REFUSED = re.compile(
    r"(max\.connections\.per\.ip(\.overrides)?|max\.connection\.creation\.rate|principal\.builder\.class|metric\.reporters"
    r"|(listener\.name\.\S+\.)?(ssl|sasl|connections)\.\S+|unclean\.leader\.election\.enable|min\.insync\.replicas"
    r"|remote\.\S+|log\.local\.\S+|producer\.id\.\S+|transaction\.partition\.verification\.enable|message\.\S+)"
)
"""Kafka's other settings that can change while its brokers run."""


def _without_effect(name: str, kind: Kind, default: str, why: str) -> ConfigKey:
    text = f"Accepted and kept, without effect: {why}."
    high = INT_MAX if kind is Kind.INT else LONG_MAX
    return ConfigKey(name=name, kind=kind, default=default, documentation=text, broker_name=None, low=0, high=high)


TOPIC_KEYS = {key.broker_name: key for key in KEYS.values() if key.broker_name is not None}
"""Topic settings by Kafka's name of their default."""
BROKER_KEYS: dict[str, ConfigKey] = {
    **TOPIC_KEYS,
    **{name: _of_field(name, field) for name, field in FIELDS.items()},
    **{row[0]: _without_effect(*row) for row in _WITHOUT_EFFECT},
}
"""All and only the settings that can change while a broker runs."""


def broker_key(name: str) -> ConfigKey:
    """The setting of that name. Raises InvalidError(INVALID_REQUEST), as Kafka does."""
    key = BROKER_KEYS.get(name)
    if key is None and _REFUSED.fullmatch(name):
        text = "Kafka has this setting, and this broker has none of that name: its own are in the table of settings"
        raise InvalidError(Reason.INVALID_REQUEST, f"{text}. key=`{name[:100]}`")
    if key is None:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"there is no such setting of a broker, or it cannot change while the broker runs. key=`{name[:100]}`",
        )
    return key


def check(config: Mapping[str, str]) -> None:
    """Raise InvalidError(INVALID_REQUEST) if a value is invalid, or if the defaults of topics contradict each other."""
    try:
        for name, text in config.items():
            broker_key(name).parse(text)
        TopicConfig.parse({TOPIC_KEYS[name].name: text for name, text in config.items() if name in TOPIC_KEYS})
    except InvalidError as error:
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error


def in_force(manifest: Manifest, started_with: Settings) -> dict[str, Value]:
    """The values of all settings in `FIELDS`, by field."""
    values: dict[str, Value] = {}
    for name, field in FIELDS.items():
        text = chosen(manifest, started_with.broker_id, name)
        values[field] = getattr(started_with, field) if text is None else _value(BROKER_KEYS[name].parse, text)
    return values


def _value(parse: Callable[[str], object], text: str) -> Value:
    value = parse(text)
    assert isinstance(value, int), "settings in FIELDS are numbers or flags"
    return value


def chosen(manifest: Manifest, broker_id: int, name: str) -> str | None:
    """The value that clients gave a broker; None: they did not."""
    configs = manifest.broker_configs
    return configs.get(str(broker_id), {}).get(name, configs.get(ALL, {}).get(name))


def topic_defaults(manifest: Manifest, settings: Settings) -> dict[str, str]:
    """The defaults of topic settings at a broker that differ from Kafka's, by key of the topic."""
    defaults = broker_defaults(settings)
    for broker in (ALL, str(settings.broker_id)):
        config = manifest.broker_configs.get(broker, {})
        defaults.update((TOPIC_KEYS[name].name, text) for name, text in config.items() if name in TOPIC_KEYS)
    return defaults
