"""Topic names and topic settings: valid names and values, their meaning, and their typed form for the data plane. No I/O.

The keys, types and defaults are Kafka's (org.apache.kafka.storage.internals.log.LogConfig of 4.2), so that tools which create
and describe topics work unchanged: no key and no value that Kafka takes is refused. Some keys concern things that do not exist
here (files per partition, replicas, a second tier of storage). They are accepted, kept and described, and their text says that
they have no effect, and why.

A new key is a row in `_KEYS`. A key that the data plane reads is also a field of `TopicConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from headgate.broker.log.check import ALL_DECOMPRESSED_BYTES_MAX, ALL_RECORDS_MAX, Depth
from headgate.broker.runtime.errors import InvalidError, Reason

NAME_LENGTH_MAX = 249
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state"))

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?", re.ASCII)


class Kind(IntEnum):
    """The type of a key, with the numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key that a topic may override.

    `low` and `high` bound INT and LONG (inclusive). `choices` are the known values, or the known elements of a LIST. `element`
    is the form of the elements of a LIST without choices. `broker_name`: Kafka's name of the broker setting that is the key's
    default.
    """

    name: str
    kind: Kind
    default: str
    documentation: str
    broker_name: str | None
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    element: re.Pattern[str] | None = None
    form: str = "a list of partition:broker, or *"
    """The form of such a list in words."""

    def parse(self, text: str) -> bool | int | float | str | tuple[str, ...]:
        """The value of `text`. Raises InvalidError(INVALID_CONFIG)."""
        text = text.strip()
        match self.kind:
            case Kind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise self._invalid(text, "true or false")
                return text.lower() == "true"
            case Kind.INT | Kind.LONG:
                if not _INTEGER.fullmatch(text) or not self.low <= int(text) <= self.high:
                    raise self._invalid(text, f"a number from {self.low} to {self.high}")
                return int(text)
            case Kind.DOUBLE:
                if not _DECIMAL.fullmatch(text) or not self.low <= float(text) <= self.high:
                    raise self._invalid(text, f"a number from {self.low} to {self.high}")
                return float(text)
            case Kind.LIST:
                items = tuple(item.strip() for item in text.split(",")) if text else ()
                if self.element is not None:
                    if not all(self.element.fullmatch(item) for item in items):
                        raise self._invalid(text, self.form)
                elif not set(items) <= set(self.choices):
                    raise self._invalid(text, f"a list of {', '.join(self.choices)}")
                return items
            case Kind.STRING:
                if text not in self.choices:
                    raise self._invalid(text, f"one of {', '.join(self.choices)}")
                return text

    def _invalid(self, text: str, expected: str) -> InvalidError:
        return InvalidError(Reason.INVALID_CONFIG, f"value is not {expected}. key=`{self.name}` value=`{text[:100]}`")


_FILES = "Accepted and kept, without effect: Headgate has no log files per partition."
_COMPRESSED = "Accepted and kept, without effect: a broker never compresses a batch again."
_ONE_TIER = "Accepted and kept, without effect: all records of all topics are in the store, which is the only tier."
_NO_REPLICAS = "Accepted and kept, without effect: brokers do not copy records from one another."


def _key(
    name: str, kind: Kind, default: object, documentation: str, broker_name: str | None, low: int = 0, high: int = 0
) -> ConfigKey:
    return ConfigKey(
        name=name, kind=kind, default=str(default), documentation=documentation, broker_name=broker_name, low=low, high=high
    )


_THROTTLED = re.compile(r"\*|[0-9]{1,10}:[0-9]{1,10}", re.ASCII)


def _throttled(name: str) -> ConfigKey:
    return ConfigKey(name=name, kind=Kind.LIST, default="", documentation=_NO_REPLICAS, broker_name=None, element=_THROTTLED)


_KEYS = (
    ConfigKey(
        name="ack",
        kind=Kind.STRING,
        default="durable",
        choices=("durable", "replicated"),
        documentation="Condition for an ack: `durable` = the record is in the store; `replicated` = two brokers hold the "
        "record in memory and the store follows, which is faster with a slow store. Without a second broker "
        "`replicated` means `durable`.",
        broker_name=None,
    ),
    ConfigKey(
        name="cleanup.policy",
        kind=Kind.LIST,
        default="delete",
        choices=("compact", "delete"),
        documentation="Treatment of old records: `delete` = removed by age or size; `compact` = at least the newest record "
        "of each key is kept for ever; both may be given; empty = every record is kept for ever. A compacted topic refuses records "
        "without a key.",
        broker_name="log.cleanup.policy",
    ),
    _key("compression.gzip.level", Kind.INT, -1, _COMPRESSED, "compression.gzip.level", -1, 9),
    _key("compression.lz4.level", Kind.INT, 9, _COMPRESSED, "compression.lz4.level", 1, 17),
    ConfigKey(
        name="compression.type",
        kind=Kind.STRING,
        default="producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        documentation="Batches keep the compression that their producer chose, whatever the value. A named codec is accepted and "
        "kept for the tools that set it.",
        broker_name="compression.type",
    ),
    _key("compression.zstd.level", Kind.INT, 3, _COMPRESSED, "compression.zstd.level", -131_072, 22),
    _key(
        "delete.retention.ms",
        Kind.LONG,
        86_400_000,
        "Time that the marker of a deleted key, a record without a value, stays readable in a compacted topic, counted from the "
        "compaction that found it; up to a sixteenth longer.",
        "log.cleaner.delete.retention.ms",
        0,
        LONG_MAX,
    ),
    _key("file.delete.delay.ms", Kind.LONG, 60_000, _FILES, "log.segment.delete.delay.ms", 0, LONG_MAX),
    _key(
        "flush.messages",
        Kind.LONG,
        LONG_MAX,
        "Accepted and kept, without effect: a record is in the store before it is acked, as configured by "
        "`wal_fsync` of the broker.",
        "log.flush.interval.messages",
        1,
        LONG_MAX,
    ),
    _key(
        "flush.ms",
        Kind.LONG,
        LONG_MAX,
        "Accepted and kept, without effect: a record is in the store before it is acked, as configured by "
        "`wal_fsync` of the broker.",
        "log.flush.interval.ms",
        0,
        LONG_MAX,
    ),
    _throttled("follower.replication.throttled.replicas"),
    ConfigKey(
        name="headgate.check.records",
        kind=Kind.STRING,
        default=Depth.SAMPLE.value,
        choices=tuple(Depth),
        documentation="The broker reads the records of these batches on arrival and refuses batches that consumers cannot read: "
        "`sample` = the first batch of each connection, and samples later; `all` = every batch, at the cost of CPU time per "
        f"record; `header` = no batch. With `all`, a batch has at most {ALL_RECORDS_MAX} records, and at most "
        f"{ALL_DECOMPRESSED_BYTES_MAX >> 20} MiB after decompression.",
        broker_name=None,
    ),
    ConfigKey(
        name="history.fold",
        kind=Kind.STRING,
        default="offline",
        choices=("offline", "never"),
        documentation="The files with which gates were filled: `offline` = they become folded files as `offline.after.ms` and "
        "`offline.after.bytes` say; `never` = they stay as they are. Then the topic stays a view of the files that a flood "
        "adopted, and these records are not in its Iceberg table.",
        broker_name=None,
    ),
    _key(
        "history.room",
        Kind.LONG,
        0,
        "Number of offsets kept free in front of the first live record, for history that is added later (gates "
        "with `front`). Can only be set when the topic is created.",
        None,
        0,
        1 << 60,
    ),
    _key("index.interval.bytes", Kind.INT, 4096, _FILES, "log.index.interval.bytes", 0, INT_MAX),
    _throttled("leader.replication.throttled.replicas"),
    _key("local.retention.bytes", Kind.LONG, -2, _ONE_TIER, "log.local.retention.bytes", -2, LONG_MAX),
    _key("local.retention.ms", Kind.LONG, -2, _ONE_TIER, "log.local.retention.ms", -2, LONG_MAX),
    _key(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "The longest time that a record of a compacted topic may stay uncompacted: then its partition is compacted, whatever "
        "`min.cleanable.dirty.ratio` and `offline.after.*` say. A broker sees a new value within 5 s.",
        "log.cleaner.max.compaction.lag.ms",
        1,
        LONG_MAX,
    ),
    _key(
        "max.message.bytes",
        Kind.INT,
        1_048_588,
        "The largest record batch, as compressed by its producer, that the topic accepts.",
        "message.max.bytes",
        0,
        INT_MAX,
    ),
    _key(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        3_600_000,
        "Largest distance of a record's own timestamp into the future. Only for `message.timestamp.type=CreateTime`.",
        "log.message.timestamp.after.max.ms",
        0,
        LONG_MAX,
    ),
    _key(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "Largest distance of a record's own timestamp into the past. Only for `message.timestamp.type=CreateTime`.",
        "log.message.timestamp.before.max.ms",
        0,
        LONG_MAX,
    ),
    ConfigKey(
        name="message.timestamp.type",
        kind=Kind.STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        documentation="`CreateTime` = records keep their producer's time; `LogAppendTime` = records get the broker's time.",
        broker_name="log.message.timestamp.type",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "Share of a partition's bytes that came since its last compaction, from which it is compacted again: when its records "
        "become Parquet files (`offline.after.*`).",
        "log.cleaner.min.cleanable.ratio",
        0,
        1,
    ),
    _key(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "The shortest time that a record of a compacted topic stays readable, even if a newer record has the same key.",
        "log.cleaner.min.compaction.lag.ms",
        0,
        LONG_MAX,
    ),
    _key(
        "min.insync.replicas",
        Kind.INT,
        1,
        "Accepted and kept, without effect: the store makes copies, and every acked record is in the store.",
        "min.insync.replicas",
        1,
        INT_MAX,
    ),
    _key(
        "offline.after.bytes",
        Kind.LONG,
        1 << 30,
        "Size of a partition's records in the write-ahead log above which its oldest ones become Parquet files, whatever "
        "their age; -1 = only their age counts.",
        None,
        -1,
        LONG_MAX,
    ),
    _key(
        "offline.after.ms",
        Kind.LONG,
        3_600_000,
        "Age, counted from a record's arrival in the topic, at which records become Parquet files; -1 = only their size counts. "
        "Where only a few records arrive now and then, up to half as much later. With -1 for both, records stay in the write-ahead "
        "log.",
        None,
        -1,
        LONG_MAX,
    ),
    _key("preallocate", Kind.BOOLEAN, "false", _FILES, "log.preallocate"),
    _key("remote.log.copy.disable", Kind.BOOLEAN, "false", _ONE_TIER, None),
    _key("remote.log.delete.on.disable", Kind.BOOLEAN, "false", _ONE_TIER, None),
    _key("remote.storage.enable", Kind.BOOLEAN, "false", _ONE_TIER, None),
    _key(
        "retention.bytes",
        Kind.LONG,
        -1,
        "The size up to which a partition keeps its records; the oldest are removed first; -1 = no limit.",
        "log.retention.bytes",
        -1,
        LONG_MAX,
    ),
    _key(
        "retention.ms",
        Kind.LONG,
        604_800_000,
        "Time that records are kept, counted from their arrival in the topic; -1 = for ever. Where only a few records arrive now "
        "and then, the oldest are kept for up to half as much longer.",
        "log.retention.ms",
        -1,
        LONG_MAX,
    ),
    _key("segment.bytes", Kind.INT, 1_073_741_824, _FILES, "log.segment.bytes", 14, INT_MAX),
    _key("segment.index.bytes", Kind.INT, 10_485_760, _FILES, "log.index.size.max.bytes", 4, INT_MAX),
    _key("segment.jitter.ms", Kind.LONG, 0, _FILES, "log.roll.jitter.ms", 0, LONG_MAX),
    _key("segment.ms", Kind.LONG, 604_800_000, _FILES, "log.roll.ms", 1, LONG_MAX),
    _key(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        "false",
        "Accepted and kept, without effect: a partition's records are in the store, so every new lead has all of them.",
        "unclean.leader.election.enable",
    ),
)

KEYS: dict[str, ConfigKey] = {key.name: key for key in _KEYS}
"""All and only the keys that a topic may override, in the order of their names."""


class BrokerSettings(Protocol):
    """The settings of a broker that are defaults of topics."""

    @property
    def message_bytes_max(self) -> int: ...


def broker_defaults(settings: BrokerSettings) -> dict[str, str]:
    """The defaults that the settings of a broker give, by key."""
    return {"max.message.bytes": str(settings.message_bytes_max)}


def config_key(name: str) -> ConfigKey:
    """The key of that name. Raises InvalidError(INVALID_CONFIG)."""
    key = KEYS.get(name)
    if key is None:
        raise InvalidError(Reason.INVALID_CONFIG, f"unknown topic config. key=`{name[:100]}`")
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings in the types that the data plane uses. -1 is "no limit" for both retentions, and
    "never" for `offline_after_*`."""

    replicated: bool
    checks_samples: bool
    checks_all: bool
    delete: bool
    compact: bool
    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_dirty_ratio: float
    offline_after_ms: int
    offline_after_bytes: int
    folds_history: bool

    @classmethod
    def parse(cls, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings of a topic with these overrides. Raises InvalidError(INVALID_CONFIG) for the first invalid one."""
        values = {name: config_key(name).parse(text) for name, text in overrides.items()}
        merged = {**_DEFAULTS, **values} if values else _DEFAULTS
        policy = merged["cleanup.policy"]
        assert isinstance(policy, tuple)

        def number(name: str) -> int:
            value = merged[name]
            assert isinstance(value, int)
            return value

        ratio = merged["min.cleanable.dirty.ratio"]
        assert isinstance(ratio, float)
        if number("min.compaction.lag.ms") > number("max.compaction.lag.ms"):
            raise InvalidError(
                Reason.INVALID_CONFIG,
                "min.compaction.lag.ms is greater than max.compaction.lag.ms. "
                f"min=`{number('min.compaction.lag.ms')}` max=`{number('max.compaction.lag.ms')}`",
            )
        return cls(
            replicated=merged["ack"] == "replicated",
            checks_samples=merged["headgate.check.records"] == Depth.SAMPLE,
            checks_all=merged["headgate.check.records"] == Depth.ALL,
            delete="delete" in policy,
            compact="compact" in policy,
            retention_ms=number("retention.ms"),
            retention_bytes=number("retention.bytes"),
            max_message_bytes=number("max.message.bytes"),
            log_append_time=merged["message.timestamp.type"] == "LogAppendTime",
            timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
            delete_retention_ms=number("delete.retention.ms"),
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
            max_compaction_lag_ms=number("max.compaction.lag.ms"),
            min_dirty_ratio=ratio,
            offline_after_ms=number("offline.after.ms"),
            offline_after_bytes=number("offline.after.bytes"),
            folds_history=merged["history.fold"] != "never",
        )


_DEFAULTS = {key.name: key.parse(key.default) for key in _KEYS}


def is_internal(name: str) -> bool:
    """True if the topic is the cluster's own. Clients leave such topics out of patterns."""
    return name in INTERNAL_TOPICS


def validate_topic_name(name: str) -> None:
    """Raise InvalidError(INVALID_TOPIC) if no topic may have this name."""
    if not name:
        raise InvalidError(Reason.INVALID_TOPIC, "topic name is empty")
    if name in (".", ".."):
        raise InvalidError(Reason.INVALID_TOPIC, f"topic name cannot be . or .. topic=`{name}`")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidError(
            Reason.INVALID_TOPIC, f"topic name is too long. length=`{len(name)}` max=`{NAME_LENGTH_MAX}` topic=`{name[:50]}...`"
        )
    if not _NAME.fullmatch(name):
        raise InvalidError(
            Reason.INVALID_TOPIC, f"topic name has characters other than letters, digits, ., _ and -. topic=`{name[:250]}`"
        )
