"""Settings of brokers, in the form in which Kafka's config APIs show and change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from headgate.broker.cluster.topic_config import Kind
from headgate.broker.engine.base.live_settings import ALL, BROKER_KEYS, FIELDS, TOPIC_KEYS, broker_key
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.configs import (
    Changes,
    ConfigSource,
    Entry,
    Synonym,
    altered,
    chosen_synonyms,
    default_synonyms,
)
from headgate.broker.server.kafka.context import Context

_TEXTS = {
    "advertised.listeners": "The address that the broker announces to clients.",
    "broker.id": "This broker's number.",
    "default.replication.factor": "Always 1: the store makes the copies.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "fetch.max.bytes": "The largest answer to one fetch.",
    "listeners": "The address that the broker listens on.",
    "log.dirs": "The store.",
    "node.id": "This broker's number.",
    "socket.request.max.bytes": "The largest request.",
}
_KINDS = {"count": Kind.LONG, "auto": Kind.LONG, "size": Kind.LONG, "duration": Kind.LONG, "flag": Kind.BOOLEAN}


def check_broker(name: str, context: Context) -> None:
    """Raise InvalidError(INVALID_REQUEST) unless a broker resource's name is this broker's id, or empty for all brokers."""
    if name in (ALL, str(context.engine.broker_id)):
        return
    expected = f"this broker's id is {context.engine.broker_id}"
    raise InvalidError(Reason.INVALID_REQUEST, f"broker resource is not this broker: {expected}. name=`{name[:100]}`")


def broker_entries(name: str, context: Context) -> list[Entry]:
    """The settings of this broker, in the order of their names: under Kafka's names if Kafka has them, and all that it was started
    with under Headgate's own names. "": those that clients gave all brokers."""
    if name == ALL:
        configs = context.engine.manifest.broker_configs.get(ALL, {})
        return [_chosen(config, configs[config]) for config in sorted(configs)]
    known = {setting.name: setting for setting in (*_own(context.engine.configs.started_with), *_named(context), *_live(context))}
    return [known[name] for name in sorted(known)]


def _chosen(name: str, value: str) -> Entry:
    key = BROKER_KEYS[name]
    synonyms: tuple[Synonym, ...] = ((name, value, ConfigSource.CHOSEN_FOR_ALL), (name, key.default, ConfigSource.DEFAULT))
    return Entry(name=name, kind=key.kind, read_only=False, documentation=key.documentation, synonyms=synonyms)


def _static(name: str, value: object, default: object, kind: Kind, documentation: str) -> Entry:
    """A setting that cannot change. `default` "": it has none of its own."""
    synonyms: list[Synonym] = [(name, _text(default), ConfigSource.DEFAULT)] if default != "" or value == "" else []
    if value != default:
        synonyms.insert(0, (name, _text(value), ConfigSource.BROKER))
    return Entry(name=name, kind=kind, read_only=True, documentation=documentation, synonyms=tuple(synonyms))


def _own(settings: Settings) -> list[Entry]:
    found = []
    for field in fields(settings):
        kind = _KINDS.get(field.metadata["kind"], Kind.STRING)
        found.append(_static(field.name, getattr(settings, field.name), field.default, kind, field.metadata["documentation"]))
    return found


def _named(context: Context) -> list[Entry]:
    """Settings under Kafka's names that cannot change."""
    settings, default = context.settings, Settings()

    def made_of(name: str, value: str, *made_of: str) -> Entry:
        """A text that follows from the settings `made_of`. It is the default while these have their defaults."""
        is_default = all(getattr(settings, one) == getattr(default, one) for one in made_of)
        return _static(name, value, value if is_default else "", Kind.STRING, _TEXTS[name])

    listens = ("host", "kafka_port")
    advertised = f"PLAINTEXT://{context.host}:{context.port}"
    listening = f"PLAINTEXT://{settings.host}:{settings.kafka_port or context.port}"
    numbers = (
        ("broker.id", settings.broker_id, default.broker_id, Kind.INT),
        ("node.id", settings.broker_id, default.broker_id, Kind.INT),
        ("socket.request.max.bytes", settings.frame_bytes_max, default.frame_bytes_max, Kind.INT),
        ("fetch.max.bytes", settings.fetch_bytes_max, default.fetch_bytes_max, Kind.INT),
        ("default.replication.factor", 1, 1, Kind.INT),
        ("delete.topic.enable", True, True, Kind.BOOLEAN),
    )
    return [
        made_of("advertised.listeners", advertised, *listens, "advertised_host", "advertised_kafka_port"),
        made_of("listeners", listening, *listens),
        made_of("log.dirs", context.engine.store.url, "store"),
        *(_static(name, value, standard, kind, _TEXTS[name]) for name, value, standard, kind in numbers),
    ]


def _live(context: Context) -> list[Entry]:
    """Settings that can change."""
    settings = context.engine.configs.started_with
    found = []
    for name, key in BROKER_KEYS.items():
        if name in TOPIC_KEYS:
            synonyms = default_synonyms(key, context)
        else:
            started_with = _text(getattr(settings, FIELDS[name])) if name in FIELDS else key.default
            static: list[Synonym] = [(name, started_with, ConfigSource.BROKER)] if started_with != key.default else []
            synonyms = [*chosen_synonyms(name, context), *static, (name, key.default, ConfigSource.DEFAULT)]
        found.append(Entry(name=name, kind=key.kind, read_only=False, documentation=key.documentation, synonyms=tuple(synonyms)))
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def altered_broker(present: Mapping[str, str], changes: Changes, context: Context) -> dict[str, str]:
    """Settings of a broker after IncrementalAlterConfigs. Raises InvalidError(INVALID_REQUEST)."""
    try:
        return altered(present, changes, broker_key, lambda key: default_synonyms(key, context)[0][1])
    except InvalidError as error:
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error
