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
from dataclasses import Field, dataclass, fields
from typing import Any

from headgate.broker.runtime.errors import in_words
from headgate.broker.runtime.listeners import listeners
from headgate.broker.runtime.setting_kinds import (
    DAY_MS,
    FALSE,
    GIB,
    KIB,
    MIB,
    SECOND_MS,
    TRUE,
    Value,
    check_registry,
    checked,
    expected,
    invalid,
    parse_duration_ms,
    parse_size,
    shown,
)
from headgate.broker.runtime.setting_kinds import choice as _choice
from headgate.broker.runtime.setting_kinds import count as _count
from headgate.broker.runtime.setting_kinds import count_or_auto as _count_or_auto
from headgate.broker.runtime.setting_kinds import duration as _duration
from headgate.broker.runtime.setting_kinds import flag as _flag
from headgate.broker.runtime.setting_kinds import port as _port
from headgate.broker.runtime.setting_kinds import size as _size
from headgate.broker.runtime.setting_kinds import text as _text

__all__ = ["GIB", "KIB", "MIB", "SECOND_MS", "Settings", "Value", "expected", "parse_duration_ms", "parse_size", "shown"]

ENVIRONMENT_PREFIX = "HEADGATE_"
MISSPELT_RATIO = 0.92
"""Similarity (`difflib`) from which an unknown name counts as a misspelling of a known one: a letter or two differ."""
ADMIN_PASSWORD = ENVIRONMENT_PREFIX + "ADMIN_PASSWORD"
"""The password of the first administrator. It is no setting: settings are shown and passed on as arguments."""
CONFIG_FILE_BYTES_MAX = MIB
BROKER_IDS_WITH_LANES = 1_000_000
"""The numbers of brokers beside which lanes may run are below it (`cluster/lanes.py`)."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one broker. Every value that an instance holds is valid: `load` and `from_values` validate it."""

    # -- identity and addresses
    store: str = _text("./headgate-data", "place of all durable data: a directory, or s3://bucket/prefix")
    cluster_name: str = _text("", "cluster name, written into a new store; a store with another name is refused; empty = any")
    cluster_id: str = _text(
        "", "id of the cluster that the store must already hold; the broker refuses any other store, and an empty one; empty = any"
    )
    store_create: bool = _flag(
        False, "create a new cluster in an empty store; otherwise the broker refuses an empty store; `headgate up` sets it"
    )
    broker_id: int = _count(1, 0, 2**31 - 1, "this broker's number, unique in the cluster")
    role: str = _choice(
        "broker", ("broker", "lane"), "lane = it leads no partitions, and serves history to consumers that leads send to it"
    )
    host: str = _text("127.0.0.1", "address to listen on; 0.0.0.0 = every interface")
    advertised_host: str = _text(
        "", "host that the broker announces to clients; empty = `host`, or this machine's name if `host` is 0.0.0.0"
    )
    advertised_kafka_port: int = _port(0, "Kafka port that the broker announces to clients; 0 = the port that it listens on")
    advertised_grpc_port: int = _port(
        0, "gRPC port that the broker announces to clients and other brokers; 0 = the port that it listens on"
    )
    kafka_port: int = _port(9092, "Kafka protocol port; 0 = any free port")
    grpc_port: int = _port(9095, "gRPC port; 0 = any free port")
    http_port: int = _port(9090, "HTTP port of the page, /api, /healthz, /readyz and /metrics; 0 = any free port")
    http_allowed_hosts: str = _text(
        "",
        "further host names under which browsers may open the page, besides IP addresses, localhost and the brokers' own names, "
        "separated by commas; * = any name, for a proxy that checks them itself",
    )
    http_actions: bool = _flag(True, "the page shows messages, and changes what its user may change; false = it only looks")
    schema_registry: str = _text("", "URL of a schema registry, with which the page decodes messages; empty = it does not")

    # -- security
    kafka_protocol: str = _choice(
        "plaintext",
        ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        "security protocol of the Kafka port, as in Kafka: ssl = TLS, sasl = clients log in",
    )
    kafka_listeners: str = _text(
        "",
        "further Kafka ports, as in Kafka: `SASL_SSL://0.0.0.0:9093`, with a name of its own `OUTSIDE:SASL_SSL://0.0.0.0:9093`; "
        "separated by commas",
    )
    kafka_advertised_listeners: str = _text(
        "",
        "addresses that these ports announce: `SASL_SSL://broker-1.example.com:9093`; default: `advertised_host` and their port",
    )
    tls_certificate: str = _text(
        "",
        "PEM file with the broker's certificate and its chain; with it gRPC and HTTP speak TLS, and brokers prove to each other "
        "by certificate that they are brokers; empty = no TLS",
    )
    tls_key: str = _text("", "PEM file with its private key, without a passphrase; empty = it is in `tls_certificate`")
    tls_ca: str = _text("", "PEM file with the authorities whose client certificates are accepted; brokers check each other by it")
    tls_crl: str = _text("", "PEM file with revocation lists of these authorities; empty = no certificate is revoked")
    tls_client_auth: str = _choice(
        "none",
        ("none", "requested", "required"),
        "client certificates on Kafka ports with TLS; required also on the gRPC port; the HTTP port never requires one",
    )
    tls_reload_interval_ms: int = _duration(
        10 * SECOND_MS, 100, DAY_MS, "pause between two looks whether the files of TLS have changed; new connections use new files"
    )
    grpc_mtls_port: int = _port(
        9096,
        "gRPC port that requires a client certificate, for brokers and others; 0 = any free port; only with `tls_certificate`",
    )

    tls_principal_rules: str = _text(
        "DEFAULT",
        "rules, as in Kafka, that make a user's name of a certificate's distinguished name: `RULE:^CN=([^,]+).*$/$1/L,DEFAULT`",
    )
    broker_principals: str = _text(
        "", "principals of other brokers' certificates, separated by semicolons; a broker always accepts its own"
    )
    sasl_mechanisms: str = _text(
        "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
        "mechanisms of listeners with SASL; OAUTHBEARER needs `oauth_jwks`, and PLAIN and OAUTHBEARER need TLS",
    )
    sasl_plain_without_tls: bool = _flag(False, "offer PLAIN and OAUTHBEARER also without TLS; the network can read them")
    connection_reauthenticate_ms: int = _duration(
        0, 0, DAY_MS, "time after which a client must log in again within its connection (KIP-368); 0 = only when its token ends"
    )
    failed_logins_per_s: int = _count(
        0,
        0,
        10_000,
        "an address with more failed logins and TLS handshakes, or 20 times as many at once, cannot connect; 0 = any number",
    )
    oauth_jwks: str = _text("", "file or URL of the keys (JWK set) that sign tokens; empty = no tokens are accepted")
    oauth_jwks_refresh_ms: int = _duration(300 * SECOND_MS, SECOND_MS, DAY_MS, "age at which these keys are read again")
    oauth_issuer: str = _text("", "issuer (`iss`) that tokens must have; empty = any")
    oauth_audience: str = _text("", "audience (`aud`) that tokens must have; empty = any, also tokens for other services")
    oauth_clock_skew_ms: int = _duration(30 * SECOND_MS, 0, 3600 * SECOND_MS, "tolerance for the times in tokens")
    oauth_principal_claim: str = _text("sub", "claim with the name of a token's user")
    authorization: str = _choice(
        "none", ("none", "acl"), "none = every client may do everything; acl = only what a rule allows, and super users everything"
    )
    http_metrics_open: bool = _flag(False, "serve /metrics also to clients without a permission, for Prometheus without a login")
    super_users: str = _text(
        "", "principals that may do everything, separated by semicolons: `User:admin;User:CN=ops`; and users created as superusers"
    )
    admin_user: str = _text("admin", "name of the first administrator, who is created in a cluster without users")
    admin_password_file: str = _text(
        "", "file with the first administrator's password; empty = HEADGATE_ADMIN_PASSWORD, if that is set"
    )
    audit_file: str = _text("", "file for the audit log, one JSON line for each administrative act and refusal; empty = the log")
    rack: str = _text("", "location of this broker, for clients that read from the nearest broker; empty = unknown")

    # -- the cluster
    cluster_lease_ttl_ms: int = _duration(
        3 * SECOND_MS,
        300,
        600 * SECOND_MS,
        "another broker becomes the leader when the leader has not renewed its lease for this long",
    )
    cluster_member_timeout_ms: int = _duration(
        2 * SECOND_MS,
        200,
        600 * SECOND_MS,
        "the leader replaces a broker after this much silence; on a starved machine after up to five times as much",
    )
    cluster_broker_bytes_per_second: int = _size(
        100 * MIB,
        64 * KIB,
        1024 * GIB,
        "traffic per second, in and out, that one broker should serve; a segment with a quarter of it is split",
    )
    cluster_split_after_ms: int = _duration(
        3 * SECOND_MS, 1000, 3600 * SECOND_MS, "a segment is split after this much time with too much traffic"
    )
    cluster_merge_after_ms: int = _duration(
        60 * SECOND_MS, 1000, DAY_MS, "neighbouring segments are merged after this much time with little traffic"
    )
    cluster_cooldown_ms: int = _duration(
        10 * SECOND_MS,
        1000,
        600 * SECOND_MS,
        "pause before a segment that was split, merged or moved is changed again; doubled if changes follow each other soon",
    )

    capacity_brokers_min: int = _count(1, 1, 64, "fewest brokers that the cluster asks its fleet for")
    capacity_brokers_max: int = _count(64, 1, 64, "most brokers that reservations or load may ask the fleet for")

    # -- gates
    gate_allowed_prefixes: str = _text(
        "",
        "further places from which gates accept files: file:///path or s3://bucket/prefix, separated by commas",
    )
    gate_file_grace_ms: int = _duration(
        DAY_MS // 4, 1000, 30 * DAY_MS, "age at which a file under a topic's prefix is deleted if nothing names it"
    )

    # -- topics
    num_partitions: int = _count(1, 1, 10_000, "partitions of a topic that is created without a partition count")
    auto_create_topics: bool = _flag(True, "create a missing topic when a client first asks for it")
    partitions_per_topic_max: int = _count(10_000, 1, 100_000, "largest number of partitions of one topic")
    partitions_max: int = _count(
        100_000, 1, 1_000_000, "most partitions of all topics together; each takes about 3 KB of memory at the broker that leads it"
    )
    message_bytes_max: int = _size(1_048_588, 1, 64 * MIB, "default of a topic's `max.message.bytes`: largest record batch")
    producer_id_expiration_ms: int = _duration(
        DAY_MS,
        1000,
        365 * DAY_MS,
        "the broker forgets an idempotent producer after this much silence; sooner if more than 20,000 wrote to one partition",
    )
    retention_check_interval_ms: int = _duration(300 * SECOND_MS, 10, DAY_MS, "pause between two searches for expired records")
    offline_check_interval_ms: int = _duration(
        30 * SECOND_MS, 10, DAY_MS, "pause between two searches for records that become Parquet files (`offline.after.*`)"
    )
    offline_niceness: int = _count(10, 0, 19, "nice value of the process that makes these files; 19 is almost no processor time")

    clock_difference_max_ms: int = _duration(
        60 * SECOND_MS,
        SECOND_MS,
        DAY_MS,
        "largest allowed difference between the broker's time and the clocks of the machine, the leader and the "
        "store; above it the broker reports a doubtful clock and deletes nothing by age",
    )
    clock_trusted: bool = _flag(
        False,
        "trust the machine's clock at the start, even against the times in the store; time in which no broker ran"
        " then counts for retention",
    )

    # -- the write-ahead log
    wal_fsync: str = _choice(
        "always",
        ("always", "interval", "never"),
        "local store: time at which an acked write reaches the disk. always = before the ack; interval = within "
        "`wal_fsync_interval_ms`; never = chosen by the operating system (acked records survive a crash of the "
        "broker, but not of the machine)",
    )
    wal_fsync_interval_ms: int = _duration(100, 1, 60 * SECOND_MS, "local store: pause between two syncs with `wal_fsync=interval`")
    wal_flush_interval_ms: int = _duration(
        250, 1, 60 * SECOND_MS, "S3 store: longest time that records wait before the broker writes them in a PUT"
    )
    wal_flush_bytes: int = _size(8 * MIB, 64 * KIB, GIB, "S3 store: the broker starts a PUT at once when this many bytes wait")
    wal_inflight_puts_max: int = _count(4, 1, 64, "S3 store: most PUTs of the write-ahead log in flight")
    wal_chunk_bytes: int = _size(
        128 * MIB,
        MIB,
        4 * GIB,
        "local store: size at which a chunk file is closed and the next one begun; a broker's first chunk files are smaller",
    )
    wal_checkpoint_chunks: int = _count(64, 1, 10_000, "sealed chunks after which the manifest lists them; bounds recovery")
    wal_checkpoint_interval_ms: int = _duration(
        30 * SECOND_MS, 10, DAY_MS, "longest time that a sealed chunk waits before the manifest lists it; bounds recovery"
    )

    # -- memory
    tail_bytes: int = _size(256 * MIB, MIB, 1024 * GIB, "memory for the newest records; consumers that keep up are served from it")
    read_cache_bytes: int = _size(
        64 * MIB,
        0,
        1024 * GIB,
        "cache of older records, read from the store: index sections, and on S3 stretches of chunks that readers share",
    )
    history_cache_bytes: int = _size(128 * MIB, 0, 1024 * GIB, "cache of history as clients receive it: rows of files as batches")
    history_cache_dir: str = _text(
        "",
        "directory on this broker's own disk that keeps encoded history for late readers; empty = only memory does. Its files have "
        "no names and end with the broker; lanes beside it have theirs. A disk apart from the store's does not delay live records",
    )
    history_cache_dir_bytes: int = _size(10 * GIB, 64 * MIB, 1024 * 1024 * GIB, "bytes of encoded history in `history_cache_dir`")
    history_encoders: int = _count(1, 1, 64, "processes that encode history, started at its first read; they run at low priority")
    history_compression: str = _choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "codec of history that is sent to Kafka clients; another one than `none` costs several times the processor time",
    )
    history_floor_bytes_per_s: int = _size(
        16 * MIB,
        1 * MIB,
        1024 * GIB,
        "history a second that it serves in any case; it limits history while live records are acked more slowly than without; "
        "1TiB = it never does",
    )
    history_lanes: int = _count_or_auto(
        16,
        "lanes that this broker starts beside it when consumers read history; a lane is a process that serves history and nothing "
        "else, with free ports of its own. auto = 1 if the broker listens on loopback only, else 0. Reservations raise a number "
        "above 0, at most to the number of cores",
    )
    history_lane_bytes: int = _size(
        64 * MIB,
        1,
        1024 * GIB,
        "history that a consumer must have ahead of it to be sent to a lane; less is read sooner than it has changed the broker",
    )
    history_lane_idle_ms: int = _duration(
        300 * SECOND_MS, 100, DAY_MS, "a lane beside a broker ends after this time without a read"
    )
    inflight_bytes_max: int = _size(
        256 * MIB,
        MIB,
        1024 * GIB,
        "bytes of requests in progress, and of answers that clients have not read yet, for all connections; above"
        " it the broker stops reading from sockets",
    )
    connection_inflight_bytes_max: int = _size(
        64 * MIB,
        64 * KIB,
        1024 * GIB,
        "bytes of requests in progress for one connection; above it the broker stops reading from it; one "
        "request is always admitted",
    )

    # -- clients
    frame_bytes_max: int = _size(
        100 * MIB,
        64 * KIB,
        GIB,
        "largest Produce request or gRPC message; a larger one ends the connection (Fetch, JoinGroup, SyncGroup: "
        "4 MiB, other Kafka requests 1 MiB)",
    )
    connections_max: int = _count(
        10_000,
        1,
        1_000_000,
        "most open Kafka connections, fewer if `ulimit -Hn` is too low for them; the broker closes further ones at once",
    )
    connection_idle_ms: int = _duration(
        600 * SECOND_MS, 100, DAY_MS, "the broker closes a connection after this much time without a request"
    )
    frame_timeout_ms: int = _duration(
        30 * SECOND_MS,
        100,
        DAY_MS,
        "longest pause of a client within a request that it sends, or within an answer that it reads; then "
        "the broker closes the connection",
    )
    fetch_bytes_max: int = _size(55 * MIB, 64 * KIB, GIB, "largest answer to one fetch, even if the client allows more")
    fetch_wait_max_ms: int = _duration(
        30 * SECOND_MS, 0, 600 * SECOND_MS, "longest wait of a fetch for new records, even if the client allows more"
    )

    # -- consumer groups
    group_initial_rebalance_delay_ms: int = _duration(
        500, 0, 600 * SECOND_MS, "an empty group waits this long for more members before its first rebalance"
    )
    group_min_session_timeout_ms: int = _duration(6 * SECOND_MS, 1, DAY_MS, "shortest session time-out that a member may ask for")
    group_max_session_timeout_ms: int = _duration(1800 * SECOND_MS, 1, DAY_MS, "longest session time-out that a member may ask for")
    group_consumer_session_timeout_ms: int = _duration(
        45 * SECOND_MS, 1, DAY_MS, "time without a heartbeat after which a member of a consumer group (KIP-848) is removed"
    )
    group_consumer_heartbeat_interval_ms: int = _duration(
        5 * SECOND_MS, 1, DAY_MS, "pause between two heartbeats of a member of a consumer group; shorter while the group changes"
    )
    group_max_size: int = _count(5_000, 1, 100_000, "most members of one group")
    groups_max: int = _count(100_000, 1, 10_000_000, "most groups of one broker")
    offsets_retention_minutes: int = _count(
        0, 0, 10**9, "minutes after which the broker forgets the positions of a group without members; 0 = never"
    )
    offsets_retention_check_interval_ms: int = _duration(
        600 * SECOND_MS, 10, DAY_MS, "pause between two searches for expired positions"
    )
    offsets_topic_num_partitions: int = _count(50, 1, 10_000, "partitions of `__consumer_offsets` at its creation")

    # -- transactions
    transaction_max_timeout_ms: int = _duration(
        900 * SECOND_MS, 1, DAY_MS, "longest time-out that a producer may ask for; then the broker aborts its open transaction"
    )
    transactional_id_expiration_ms: int = _duration(
        7 * DAY_MS, SECOND_MS, 3650 * DAY_MS, "time without a transaction after which the broker forgets a transactional id"
    )
    transactional_ids_max: int = _count(100_000, 1, 10_000_000, "most transactional ids of one broker")
    transaction_topic_num_partitions: int = _count(50, 1, 10_000, "partitions of `__transaction_state` at its creation")

    # -- the process
    shutdown_timeout_ms: int = _duration(
        10 * SECOND_MS, 0, 600 * SECOND_MS, "on SIGTERM: time for hand-over and requests. The whole end: at most twice this + 5 s"
    )
    loop_timeout_ms: int = _duration(
        30 * SECOND_MS,
        SECOND_MS,
        3600 * SECOND_MS,
        "time without a turn of the event loop after which the broker ends itself, or `headgate up` ends it",
    )
    log_level: str = _choice("info", ("debug", "info", "warning", "error"), "least severe level that is logged to stderr")
    log_format: str = _choice("auto", ("auto", "json", "text"), "auto = text on a terminal, JSON lines otherwise")

    @classmethod
    def from_values(cls, values: Mapping[str, Value]) -> Settings:
        """Settings from typed values, the rest at their defaults. The environment is not read.

        Raises InvalidError(INVALID_CONFIG) that names the field, its value and the expected values.
        """
        valid = {name: checked(setting(name), value) for name, value in values.items()}
        settings = cls(**valid)  # type: ignore[arg-type]  # each was checked against its own field
        _check_together(settings)
        return settings

    @classmethod
    def load(
        cls, arguments: Sequence[str], environment: Mapping[str, str], defaults: Mapping[str, Value] | None = None
    ) -> Settings:
        """Settings of a process.

        Args:
            arguments: the command line behind the command's name.
            environment: usually ``os.environ``.
            defaults: the command's own defaults, in place of the fields' defaults.

        Raises InvalidError(INVALID_CONFIG) with one line that names the setting, its value and the expected values.
        """
        given = _from_arguments(arguments)
        path = given.pop("config", None) or environment.get(ENVIRONMENT_PREFIX + "CONFIG")
        values: dict[str, Value] = dict(defaults or {})
        values.update(_from_file(path) if path else {})
        values.update(_from_environment(environment))
        values.update(given)
        return cls.from_values(values)

    def arguments(self) -> list[str]:
        """The command line that gives these settings again: one option for each value that differs from its default."""
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
        raise invalid(f"unknown setting. {hint} setting=`{name}`")
    return found


def flag_name(name: str) -> str:
    """The command line's name of a setting: ``wal_fsync`` is ``--wal-fsync``."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """The environment's name of a setting: ``wal_fsync`` is ``HEADGATE_WAL_FSYNC``."""
    return ENVIRONMENT_PREFIX + name.upper()


def _check_together(settings: Settings) -> None:
    """Check limits that depend on each other: one limit must be able to hold whatever another one admits."""
    for name in ("store", "host"):
        if not getattr(settings, name):
            raise invalid(f"setting must not be empty. setting=`{name}` value=``")
    pairs = (
        ("message_bytes_max", "frame_bytes_max"),
        ("frame_bytes_max", "inflight_bytes_max"),
        ("num_partitions", "partitions_per_topic_max"),
        ("capacity_brokers_min", "capacity_brokers_max"),
        ("offsets_topic_num_partitions", "partitions_per_topic_max"),
        ("transaction_topic_num_partitions", "partitions_per_topic_max"),
        ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
        ("group_consumer_heartbeat_interval_ms", "group_consumer_session_timeout_ms"),
    )
    for pair in pairs:
        if getattr(settings, pair[0]) > getattr(settings, pair[1]):
            low, high = (setting(name) for name in pair)
            raise invalid(
                f"setting must be at most `{high.name}`, which is {shown(high, getattr(settings, high.name))}. "
                f"setting=`{low.name}` value=`{shown(low, getattr(settings, low.name))}`"
            )
    if settings.history_lanes > 0 and settings.role == "broker" and settings.broker_id >= BROKER_IDS_WITH_LANES:
        raise invalid(f"with lanes it must be below {BROKER_IDS_WITH_LANES}. setting=`broker_id` value=`{settings.broker_id}`")
    names = ["kafka_port", "grpc_port", "http_port"] + (["grpc_mtls_port"] if settings.tls_certificate else [])
    ports = [port for name in names if (port := getattr(settings, name))]
    if len(set(ports)) != len(ports):
        raise invalid(
            f"the {'four' if settings.tls_certificate else 'three'} ports must differ. "
            + " ".join(f"{name}=`{getattr(settings, name)}`" for name in names)
        )
    check_registry(settings.schema_registry)
    _check_security(settings)


def _check_security(settings: Settings) -> None:
    """Check the settings of TLS and of the listeners against each other."""
    with_tls = [listener for listener in listeners(settings) if listener.is_tls]
    if with_tls and not settings.tls_certificate:
        raise invalid(f"a listener with TLS needs `tls_certificate`. listener=`{with_tls[0].name}`")
    if settings.tls_certificate and not settings.tls_ca:
        raise invalid("setting is missing: brokers check each other by it. setting=`tls_ca`")
    for name in ("tls_key", "tls_ca", "tls_crl"):
        if getattr(settings, name) and not settings.tls_certificate:
            raise invalid(f"setting needs `tls_certificate`. setting=`{name}` value=`{getattr(settings, name)}`")


def _from_arguments(arguments: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    rest = list(reversed(arguments))
    while rest:
        argument = rest.pop()
        if not argument.startswith("--") or argument == "--":
            raise invalid(f"expected --setting value; `headgate broker --help` lists the settings. argument=`{argument}`")
        written, equals, value = argument[2:].partition("=")
        name = _normal(written)
        if not equals and name.startswith("no_") and _is_flag(name[3:]):
            name, value = name[3:], "false"
        elif not equals and name != "config" and _is_flag(setting(name).name):
            # `--auto-create-topics` alone means true. The next argument is its value only if it reads as a flag.
            value = rest.pop() if rest and rest[-1].lower() in TRUE + FALSE else "true"
        elif not equals:
            if not rest:
                raise invalid(f"expected a value after the setting's name. argument=`{argument}`")
            value = rest.pop()
        if name in values:
            raise invalid(f"setting is given twice. setting=`{name}` value=`{value}`")
        values[name] = value
    return values


def _is_flag(name: str) -> bool:
    item = Settings.__dataclass_fields__.get(name)
    return item is not None and item.metadata["kind"] == "flag"


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in fields(Settings):
        value = environment.get(environment_name(item.name))
        # For a Service named `headgate-kafka`, Kubernetes gives every pod HEADGATE_KAFKA_PORT=tcp://10.0.0.1:9092: not ours.
        if value and not (item.name.endswith("_port") and value.startswith("tcp://")):
            values[item.name] = value
    known = [environment_name(item.name) for item in fields(Settings)] + [ADMIN_PASSWORD]
    for name in environment:
        # A name that resembles no setting belongs to other software.
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and (meant := _nearest(name, known, MISSPELT_RATIO)):
            raise invalid(f"unknown setting in the environment. did you mean `{meant}`? name=`{name}`")
    return values


def _nearest(name: str, known: Iterable[str], ratio: float = 0.6) -> str | None:
    """The known name most similar to `name`, by `difflib`; None if none is similar enough."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=ratio)), None)


def _from_file(path: str) -> dict[str, Value]:
    import tomllib

    try:
        with open(path, "rb") as file:
            text = file.read(CONFIG_FILE_BYTES_MAX + 1)
        if len(text) > CONFIG_FILE_BYTES_MAX:
            raise invalid(f"settings file is too large. path=`{path}` size_bytes_max=`{CONFIG_FILE_BYTES_MAX}`")
        tree = tomllib.loads(text.decode())
    except OSError as error:
        raise invalid(f"settings file cannot be read: {in_words(error)}. path=`{path}`") from error
    except ValueError as error:
        raise invalid(f"settings file is not TOML: {str(error).lower()}. path=`{path}`") from error
    values: dict[str, Value] = {}
    _flatten("", tree, values)
    return values


def _flatten(prefix: str, tree: Mapping[str, object], values: dict[str, Value]) -> None:
    """Names without their tables: ``[wal]`` and ``flush_bytes`` give `wal_flush_bytes`."""
    for key, value in tree.items():
        name = prefix + _normal(key)
        if isinstance(value, dict):
            _flatten(name + "_", value, values)
        else:
            if name in values:
                raise invalid(f"setting is given twice in the settings file. setting=`{name}` value=`{value}`")
            values[name] = checked(setting(name), value)


def _normal(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()
