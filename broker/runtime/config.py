"""Settings of one broker: data, documented and validated, apart from the components that obey them.

Each setting has one name, its field name (``wal_flush_interval_ms``), and four sources; the first that has it wins:

1. the command line: ``--wal-flush-interval-ms 100`` or ``--wal-flush-interval-ms=100``
2. the environment: ``HEADGATE_WAL_FLUSH_INTERVAL_MS=100``
3. a TOML file named by ``--config`` or ``HEADGATE_CONFIG``: ``wal_flush_interval_ms = 100``, or ``[wal]`` and ``flush_interval_ms``
4. the default

Names may be written with ``-``, ``_`` or ``.``. Sizes take a unit (``64MiB``, ``1GB``, bare bytes), durations too (``250ms``,
``30s``, ``7d``, bare milliseconds). Only the standard library is imported: this module lies on the path to a broker's first answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeAlias

from headgate.broker.runtime.errors import InvalidError, Reason

Value: TypeAlias = str | int | bool

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1000
DAY_MS = 86_400 * SECOND_MS

ENVIRONMENT_PREFIX = "HEADGATE_"
MISSPELT_RATIO = 0.92
"""How much alike (`difflib`) two names are of which one is a slip of the other: a letter or two."""
CONFIG_FILE_BYTES_MAX = MIB

_SIZE_UNITS = {
    "": 1, "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_DURATION_UNITS_MS = {"": 1, "ms": 1, "s": SECOND_MS, "m": 60 * SECOND_MS, "h": 3600 * SECOND_MS, "d": DAY_MS}
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def _text(default: str, documentation: str) -> Any:
    return field(default=default, metadata={"kind": "text", "documentation": documentation})


def _choice(default: str, choices: tuple[str, ...], documentation: str) -> Any:
    return field(default=default, metadata={"kind": "choice", "choices": choices, "documentation": documentation})


def _flag(default: bool, documentation: str) -> Any:
    return field(default=default, metadata={"kind": "flag", "documentation": documentation})


def _number(kind: str, default: int, low: int, high: int, documentation: str) -> Any:
    return field(default=default, metadata={"kind": kind, "low": low, "high": high, "documentation": documentation})


def _count(default: int, low: int, high: int, documentation: str) -> Any:
    return _number("count", default, low, high, documentation)


def _size(default: int, low: int, high: int, documentation: str) -> Any:
    return _number("size", default, low, high, documentation)


def _duration(default: int, low: int, high: int, documentation: str) -> Any:
    return _number("duration", default, low, high, documentation)


def _port(default: int, documentation: str) -> Any:
    return _count(default, 0, 65535, documentation)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one broker is told. Every value that an instance holds is valid; `load` and `from_values` see to it."""

    # -- who and where
    store: str = _text("./headgate-data", "where everything durable lives: a directory, or s3://bucket/prefix")
    cluster_name: str = _text("", "name given to a new store; a store of another name is refused; empty = any")
    cluster_id: str = _text("", "cluster that the store has already; any other, and an empty store, is refused; empty = any")
    store_create: bool = _flag(
        False, "make a new cluster where the store is empty; without it an empty store is refused; `headgate up` sets it"
    )
    broker_id: int = _count(1, 0, 2**31 - 1, "this broker's number, unique in the cluster")
    host: str = _text("127.0.0.1", "address to listen on; 0.0.0.0 = every interface")
    advertised_host: str = _text("", "host that clients are told to use; empty = `host`, or this machine's name if that is 0.0.0.0")
    advertised_kafka_port: int = _port(0, "Kafka port that clients are told to connect to; 0 = the one listened on")
    advertised_grpc_port: int = _port(
        0, "gRPC port that clients and the other brokers are told to connect to; 0 = the one listened on"
    )
    kafka_port: int = _port(9092, "Kafka protocol port; 0 = any free port")
    grpc_port: int = _port(9095, "gRPC port; 0 = any free port")
    http_port: int = _port(9090, "HTTP port of /healthz, /readyz and /metrics; 0 = any free port")

    rack: str = _text("", "where this broker stands, for clients that read from the nearest; empty = not said")

    # -- the cluster
    cluster_lease_ttl_ms: int = _duration(
        3 * SECOND_MS, 300, 600 * SECOND_MS, "another broker leads when the leader has not renewed its lease for this long"
    )
    cluster_member_timeout_ms: int = _duration(
        2 * SECOND_MS,
        200,
        600 * SECOND_MS,
        "a broker that the leader has not heard for this long is replaced; on a starved machine after up to five times this long",
    )
    cluster_broker_bytes_per_second: int = _size(
        100 * MIB, 64 * KIB, 1024 * GIB, "traffic that one broker is to serve, in and out; a segment with a quarter of it is split"
    )
    cluster_split_after_ms: int = _duration(
        3 * SECOND_MS, 1000, 3600 * SECOND_MS, "a segment is split when it had too much traffic for this long"
    )
    cluster_merge_after_ms: int = _duration(
        60 * SECOND_MS, 1000, DAY_MS, "neighbouring segments are merged when they had little traffic for this long"
    )
    cluster_cooldown_ms: int = _duration(
        10 * SECOND_MS,
        1000,
        600 * SECOND_MS,
        "a segment that was split, merged or moved is left alone for this long; doubled if soon again",
    )

    capacity_brokers_min: int = _count(1, 1, 64, "brokers that the cluster is always to have, as fleets are told")
    capacity_brokers_max: int = _count(64, 1, 64, "most brokers that a reservation or the load may ask for")

    # -- gates
    gate_allowed_prefixes: str = _text(
        "", "where files of history may lie besides the topic's own prefix: file:///path or s3://bucket/prefix, commas between them"
    )
    gate_file_grace_ms: int = _duration(
        DAY_MS // 4, 1000, 30 * DAY_MS, "how old a file under a topic's prefix gets that no gate names, before it is deleted"
    )

    # -- topics
    num_partitions: int = _count(8, 1, 10_000, "partitions of a topic that is created without a number")
    auto_create_topics: bool = _flag(True, "create a topic when a client first asks for it")
    partitions_per_topic_max: int = _count(10_000, 1, 100_000, "largest number of partitions of one topic")
    partitions_max: int = _count(
        100_000, 1, 1_000_000, "most partitions of all topics; each takes about 3 KB of its leader's memory"
    )
    message_bytes_max: int = _size(1_048_588, 1, 64 * MIB, "default of a topic's `max.message.bytes`: largest record batch")
    producer_id_expiration_ms: int = _duration(
        DAY_MS,
        1000,
        365 * DAY_MS,
        "an idempotent producer that is silent for this long is forgotten; sooner where more than 20,000 wrote to one partition",
    )
    retention_check_interval_ms: int = _duration(
        300 * SECOND_MS, 10, DAY_MS, "pause between two looks for records whose retention is over"
    )

    clock_difference_max_ms: int = _duration(
        60 * SECOND_MS,
        SECOND_MS,
        DAY_MS,
        "how far the broker's time may differ from the machine's clock, the leader's and the store's; beyond it the broker reports "
        "its clock as in doubt and deletes nothing by age",
    )
    clock_trusted: bool = _flag(
        False,
        "take the machine's clock as right at the start, whatever the store says of the time before; time in which no broker ran "
        "then counts for retention",
    )

    # -- the write-ahead log
    wal_fsync: str = _choice(
        "always",
        ("always", "interval", "never"),
        "local store: when an acked write reaches the disk. always = before the ack; interval = within `wal_fsync_interval_ms`; "
        "never = when the operating system likes (survives the broker's death, not the machine's)",
    )
    wal_fsync_interval_ms: int = _duration(100, 1, 60 * SECOND_MS, "local store: pause between two syncs with `wal_fsync=interval`")
    wal_flush_interval_ms: int = _duration(250, 1, 60 * SECOND_MS, "S3 store: longest wait before what came in is put")
    wal_flush_bytes: int = _size(8 * MIB, 64 * KIB, GIB, "S3 store: put at once when this much waits")
    wal_inflight_puts_max: int = _count(4, 1, 64, "S3 store: PUTs of the write-ahead log in flight")
    wal_chunk_bytes: int = _size(
        128 * MIB,
        MIB,
        4 * GIB,
        "local store: a chunk file of this size is closed and the next one begun; a broker's first ones are smaller",
    )
    wal_checkpoint_chunks: int = _count(64, 1, 10_000, "sealed chunks after which the manifest lists them; bounds recovery")
    wal_checkpoint_interval_ms: int = _duration(
        30 * SECOND_MS, 10, DAY_MS, "longest time that a sealed chunk waits before the manifest lists it; bounds recovery"
    )

    # -- memory
    tail_bytes: int = _size(256 * MIB, MIB, 1024 * GIB, "newest records kept in memory: consumers that keep up are served from it")
    read_cache_bytes: int = _size(64 * MIB, 0, 1024 * GIB, "cache of older records that were read from the store")
    history_cache_bytes: int = _size(
        128 * MIB, 0, 1024 * GIB, "cache of history as Kafka clients get it: rows of Parquet files, encoded to batches"
    )
    history_encoders: int = _count(
        1, 1, 64, "processes that encode history, begun when it is read; they give way to whoever else wants the processor"
    )
    history_compression: str = _choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "codec of history as Kafka clients get it; one that is not `none` saves network and costs several times the processor time",
    )
    inflight_bytes_max: int = _size(
        256 * MIB,
        MIB,
        1024 * GIB,
        "requests being received or answered, and answers not taken yet, all connections; beyond it sockets are not read",
    )
    connection_inflight_bytes_max: int = _size(
        64 * MIB, 64 * KIB, 1024 * GIB, "the same for one connection; one request is always admitted"
    )

    # -- clients
    frame_bytes_max: int = _size(
        100 * MIB,
        64 * KIB,
        GIB,
        "largest Produce request or gRPC message; more ends the connection "
        "(Fetch, JoinGroup, SyncGroup: 4 MiB, other Kafka requests 1 MiB)",
    )
    connections_max: int = _count(
        10_000, 1, 1_000_000, "open Kafka connections, fewer where `ulimit -Hn` has no room for so many; one more is closed at once"
    )
    connection_idle_ms: int = _duration(600 * SECOND_MS, 100, DAY_MS, "a connection without a request for this long is closed")
    frame_timeout_ms: int = _duration(
        30 * SECOND_MS, 100, DAY_MS, "a request must arrive, and an answer be taken, without a stall as long as this"
    )
    fetch_bytes_max: int = _size(55 * MIB, 64 * KIB, GIB, "largest answer to one fetch, whatever the client asks for")
    fetch_wait_max_ms: int = _duration(
        30 * SECOND_MS, 0, 600 * SECOND_MS, "longest wait of a fetch for new records, whatever it asks for"
    )

    # -- consumer groups
    group_initial_rebalance_delay_ms: int = _duration(
        500, 0, 600 * SECOND_MS, "an empty group waits this long for more members before its first rebalance"
    )
    group_min_session_timeout_ms: int = _duration(6 * SECOND_MS, 1, DAY_MS, "shortest session time-out that a member may ask for")
    group_max_session_timeout_ms: int = _duration(1800 * SECOND_MS, 1, DAY_MS, "longest session time-out that a member may ask for")
    group_max_size: int = _count(5_000, 1, 100_000, "members of one group")
    groups_max: int = _count(100_000, 1, 10_000_000, "groups of one broker")
    offsets_retention_minutes: int = _count(
        0, 0, 10**9, "positions of a group that is gone for so many minutes are forgotten; 0 = never"
    )
    offsets_retention_check_interval_ms: int = _duration(
        600 * SECOND_MS, 10, DAY_MS, "pause between two looks for positions that may be forgotten"
    )
    offsets_topic_num_partitions: int = _count(50, 1, 10_000, "partitions of `__consumer_offsets`, when it is first made")

    # -- the process
    shutdown_timeout_ms: int = _duration(
        10 * SECOND_MS, 0, 600 * SECOND_MS, "on SIGTERM: longest wait for requests under way before the log is flushed and sealed"
    )
    loop_timeout_ms: int = _duration(
        30 * SECOND_MS,
        SECOND_MS,
        3600 * SECOND_MS,
        "a broker whose event loop stands still for so long ends itself, or is ended by `headgate up`",
    )
    log_level: str = _choice("info", ("debug", "info", "warning", "error"), "least severe event that is logged to stderr")
    log_format: str = _choice("auto", ("auto", "json", "text"), "auto = text on a terminal, JSON lines otherwise")

    @classmethod
    def from_values(cls, values: Mapping[str, Value]) -> Settings:
        """Settings from typed values, the rest at their defaults; what the environment says is not asked.

        Raises InvalidError(INVALID_CONFIG) that names the field, its value and what was expected.
        """
        checked = {name: _checked(setting(name), value) for name, value in values.items()}
        settings = cls(**checked)  # type: ignore[arg-type]  # each was checked against its own field
        _check_together(settings)
        return settings

    @classmethod
    def load(
        cls, arguments: Sequence[str], environment: Mapping[str, str], defaults: Mapping[str, Value] | None = None
    ) -> Settings:
        """Settings of a process.

        Args:
            arguments: the command line after the command's name.
            environment: usually ``os.environ``.
            defaults: a command's own, in place of the fields'.

        Raises InvalidError(INVALID_CONFIG) with one line that names the setting, its value and what was expected.
        """
        given = _from_arguments(arguments)
        path = given.pop("config", None) or environment.get(ENVIRONMENT_PREFIX + "CONFIG")
        values: dict[str, Value] = dict(defaults or {})
        values.update(_from_file(path) if path else {})
        values.update(_from_environment(environment))
        values.update(given)
        return cls.from_values(values)

    def arguments(self) -> list[str]:
        """The command line that gives these settings again: what differs from the defaults."""
        return [
            f"{flag_name(item.name)}={str(value).lower() if isinstance(value, bool) else value}"
            for item in fields(self)
            if (value := getattr(self, item.name)) != item.default
        ]


def setting(name: str) -> Field[Any]:
    """The field of a setting. Raises InvalidError(INVALID_CONFIG) with the nearest known name."""
    found = Settings.__dataclass_fields__.get(name)
    if found is None:
        near = _nearest(name, Settings.__dataclass_fields__)
        hint = "`headgate broker --help` lists them all." if near is None else f"did you mean `{near}`?"
        raise _invalid(f"unknown setting. {hint} setting=`{name}`")
    return found


def flag_name(name: str) -> str:
    """The command line's name of a setting: ``wal_fsync`` is ``--wal-fsync``."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """The environment's name of a setting: ``wal_fsync`` is ``HEADGATE_WAL_FSYNC``."""
    return ENVIRONMENT_PREFIX + name.upper()


def shown(item: Field[Any], value: Value) -> str:
    """A value as a person writes it: ``8MiB``, ``30s``, ``true``."""
    kind = item.metadata["kind"]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) or kind == "count":
        return str(value)
    units = ("tib", "gib", "mib", "kib") if kind == "size" else ("d", "h", "m", "s")
    table = _SIZE_UNITS if kind == "size" else _DURATION_UNITS_MS
    for unit in units:
        if value and value % table[unit] == 0:
            return f"{value // table[unit]}{unit[:1].upper() + 'iB' if kind == 'size' else unit}"
    return str(value) if kind == "size" else f"{value}ms"


def expected(item: Field[Any]) -> str:
    """What a setting accepts, for error messages and documentation."""
    about = item.metadata
    match about["kind"]:
        case "choice":
            return "one of " + ", ".join(about["choices"])
        case "flag":
            return "true or false"
        case "text":
            return "text"
        case "count":
            return f"a whole number from {about['low']} to {about['high']}"
        case "size":
            return f"a size from {shown(item, about['low'])} to {shown(item, about['high'])}, such as 64MiB"
        case _:
            return f"a duration from {shown(item, about['low'])} to {shown(item, about['high'])}, such as 250ms or 30s"


def help_text() -> str:
    """Every setting with its meaning, default and range: what ``headgate broker --help`` prints below its first lines."""
    import textwrap

    lines: list[str] = []
    for item in fields(Settings):
        lines.append(f"  {flag_name(item.name)}  [{environment_name(item.name)}]  default: {_default(item) or '(empty)'}")
        text = f"{item.metadata['documentation']}."
        if item.metadata["kind"] != "text":
            text += f" {expected(item)}."
        lines += textwrap.wrap(text, width=110, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def markdown_table() -> str:
    """The same as a Markdown table: the README's, which a test compares with this."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for item in fields(Settings):
        default, text = _default(item), item.metadata["documentation"]
        if item.metadata["kind"] == "choice" and "=" not in text:
            text += f" ({', '.join(item.metadata['choices'])})"
        rows.append(f"| `{item.name}` | {f'`{default}`' if default else 'empty'} | {text} |")
    return "\n".join(rows)


def _default(item: Field[Any]) -> str:
    return shown(item, getattr(Settings, item.name))


def parse_size(text: str) -> int | None:
    """Bytes of ``64MiB``, ``1.5GB``, ``1024``; None if it is not a size."""
    return _quantity(text, _SIZE_UNITS)


def parse_duration_ms(text: str) -> int | None:
    """Milliseconds of ``250ms``, ``1.5s``, ``7d``, ``100``; None if it is not a duration."""
    return _quantity(text, _DURATION_UNITS_MS)


def _quantity(text: str, units: Mapping[str, int]) -> int | None:
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = units.get(text.strip()[len(digits) :].strip().lower())
    whole, dot, fraction = digits.partition(".")
    if unit is None or not (whole.isascii() and whole.isdigit()) or (dot and not (fraction.isascii() and fraction.isdigit())):
        return None
    # Whole numbers only from here: a float cannot carry 2**53 bytes and more exactly.
    scale: int = 10 ** len(fraction)
    value, rest = divmod(int(whole + fraction) * unit, scale)
    return value if rest == 0 else None


def _checked(item: Field[Any], value: object) -> Value:
    """`value` in the field's own type and range, or InvalidError."""
    about = item.metadata
    kind: str = about["kind"]
    wrong = _invalid(f"setting has a wrong value, expected {expected(item)}. setting=`{item.name}` value=`{value}`")
    if kind == "flag":
        if isinstance(value, str):
            value = True if value.lower() in _TRUE else False if value.lower() in _FALSE else value
        if not isinstance(value, bool):
            raise wrong
        return value
    if kind in ("text", "choice"):
        if not isinstance(value, str) or not value.isprintable() or (kind == "choice" and value not in about["choices"]):
            raise wrong
        return value
    if isinstance(value, str):
        units = {"count": {"": 1}, "size": _SIZE_UNITS, "duration": _DURATION_UNITS_MS}[kind]
        value = _quantity(value, units) if len(value) <= 40 else None
    if not isinstance(value, int) or isinstance(value, bool) or not about["low"] <= value <= about["high"]:
        raise wrong
    return value


def _check_together(settings: Settings) -> None:
    """Limits that only make sense side by side: what one lets in, another must be able to hold."""
    for name in ("store", "host"):
        if not getattr(settings, name):
            raise _invalid(f"setting must not be empty. setting=`{name}` value=``")
    pairs = (
        ("message_bytes_max", "frame_bytes_max"),
        ("frame_bytes_max", "inflight_bytes_max"),
        ("num_partitions", "partitions_per_topic_max"),
        ("capacity_brokers_min", "capacity_brokers_max"),
        ("offsets_topic_num_partitions", "partitions_per_topic_max"),
        ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
    )
    for pair in pairs:
        if getattr(settings, pair[0]) > getattr(settings, pair[1]):
            low, high = (setting(name) for name in pair)
            raise _invalid(
                f"setting must be at most `{high.name}`, which is {shown(high, getattr(settings, high.name))}. "
                f"setting=`{low.name}` value=`{shown(low, getattr(settings, low.name))}`"
            )
    ports = [port for name in ("kafka_port", "grpc_port", "http_port") if (port := getattr(settings, name))]
    if len(set(ports)) != len(ports):
        raise _invalid(
            "the three ports must differ. "
            f"kafka_port=`{settings.kafka_port}` grpc_port=`{settings.grpc_port}` http_port=`{settings.http_port}`"
        )


def _from_arguments(arguments: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    rest = list(reversed(arguments))
    while rest:
        argument = rest.pop()
        if not argument.startswith("--") or argument == "--":
            raise _invalid(f"expected --setting value; `headgate broker --help` lists the settings. argument=`{argument}`")
        written, equals, value = argument[2:].partition("=")
        name = _normal(written)
        if not equals and name.startswith("no_") and _is_flag(name[3:]):
            name, value = name[3:], "false"
        elif not equals and name != "config" and _is_flag(setting(name).name):
            # `--auto-create-topics` alone means true; a value may follow, but only one that reads as a flag.
            value = rest.pop() if rest and rest[-1].lower() in _TRUE + _FALSE else "true"
        elif not equals:
            if not rest:
                raise _invalid(f"expected a value after the setting's name. argument=`{argument}`")
            value = rest.pop()
        if name in values:
            raise _invalid(f"setting is given twice. setting=`{name}` value=`{value}`")
        values[name] = value
    return values


def _is_flag(name: str) -> bool:
    item = Settings.__dataclass_fields__.get(name)
    return item is not None and item.metadata["kind"] == "flag"


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in fields(Settings):
        value = environment.get(environment_name(item.name))
        # Kubernetes gives every pod HEADGATE_KAFKA_PORT=tcp://10.0.0.1:9092 when a Service is named `headgate-kafka`: not for us.
        if value and not (item.name.endswith("_port") and value.startswith("tcp://")):
            values[item.name] = value
    known = [environment_name(item.name) for item in fields(Settings)]
    for name in environment:
        # What is not like any of ours is somebody else's.
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and (meant := _nearest(name, known, MISSPELT_RATIO)):
            raise _invalid(f"unknown setting in the environment. did you mean `{meant}`? name=`{name}`")
    return values


def _nearest(name: str, known: Iterable[str], ratio: float = 0.6) -> str | None:
    """The known name that is most like another one, by `difflib`; None where none is so much like it."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=ratio)), None)


def _from_file(path: str) -> dict[str, Value]:
    import tomllib

    try:
        with open(path, "rb") as file:
            text = file.read(CONFIG_FILE_BYTES_MAX + 1)
        if len(text) > CONFIG_FILE_BYTES_MAX:
            raise _invalid(f"settings file is too large. path=`{path}` size_bytes_max=`{CONFIG_FILE_BYTES_MAX}`")
        tree = tomllib.loads(text.decode())
    except OSError as error:
        raise _invalid(f"settings file cannot be read: {(error.strerror or str(error)).lower()}. path=`{path}`") from error
    except ValueError as error:
        raise _invalid(f"settings file is not TOML: {str(error).lower()}. path=`{path}`") from error
    values: dict[str, Value] = {}
    _flatten("", tree, values)
    return values


def _flatten(prefix: str, tree: Mapping[str, object], values: dict[str, Value]) -> None:
    """``[wal]`` and ``flush_bytes`` is `wal_flush_bytes`."""
    for key, value in tree.items():
        name = prefix + _normal(key)
        if isinstance(value, dict):
            _flatten(name + "_", value, values)
        else:
            if name in values:
                raise _invalid(f"setting is given twice in the settings file. setting=`{name}` value=`{value}`")
            values[name] = _checked(setting(name), value)


def _normal(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def _invalid(message: str) -> InvalidError:
    return InvalidError(Reason.INVALID_CONFIG, message)
