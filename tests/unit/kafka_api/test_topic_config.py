"""Topic names and settings: accepted values, refused ones with their reasons, and the typed form.

Compared with Kafka's own rules (Topic.validate, LogConfig). A mismatch means that the broker refuses a tool written for Kafka,
or accepts a value that Kafka refuses.
"""

from __future__ import annotations

import pytest

from headgate.broker.cluster.topic_config import KEYS, TopicConfig, config_key, is_internal, validate_topic_name
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 249, "...", "__consumer_offsets"])
def test_good_names(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "ä", "a/b", "a\n", "a:b", "\ud800", "٣"])
def test_bad_names(name: str) -> None:
    with raises(InvalidError, Reason.INVALID_TOPIC):
        validate_topic_name(name)


def test_internal_topics() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("__mine")


def test_defaults() -> None:
    assert TopicConfig.parse({}) == TopicConfig(
        replicated=False,
        checks_samples=True,
        checks_all=False,
        delete=True,
        compact=False,
        retention_ms=7 * 86_400_000,
        retention_bytes=-1,
        max_message_bytes=1_048_588,
        log_append_time=False,
        timestamp_before_max_ms=2**63 - 1,
        timestamp_after_max_ms=3_600_000,
        delete_retention_ms=86_400_000,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=2**63 - 1,
        min_dirty_ratio=0.5,
        offline_after_ms=3_600_000,
        offline_after_bytes=1 << 30,
        folds_history=True,
    )


def test_overrides() -> None:
    config = TopicConfig.parse(
        {
            "cleanup.policy": " compact , delete",
            "retention.ms": "-1",
            "retention.bytes": " 1000 ",
            "max.message.bytes": "2147483647",
            "message.timestamp.type": "LogAppendTime",
            "preallocate": "TRUE",
        }
    )
    assert (config.delete, config.compact, config.retention_ms, config.retention_bytes) == (True, True, -1, 1000)
    assert (config.max_message_bytes, config.log_append_time) == (2**31 - 1, True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no.such.key", "1"),
        ("message.format.version", "3.0"),  # removed in Kafka 4
        ("retention.ms", "-2"),
        ("retention.ms", "7d"),
        ("retention.ms", ""),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "9" * 5000),
        ("max.message.bytes", str(2**31)),
        ("max.message.bytes", "-1"),
        ("min.insync.replicas", "0"),
        ("cleanup.policy", "none"),
        ("cleanup.policy", "delete,"),
        ("message.timestamp.type", "createtime"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("compression.type", "brotli"),
        ("compression.type", ""),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "0"),
        ("compression.zstd.level", "23"),
        ("leader.replication.throttled.replicas", "0"),
        ("follower.replication.throttled.replicas", "0:1,"),
        ("local.retention.ms", "-3"),
        ("remote.storage.enable", "maybe"),
        ("ack", "none"),
    ],
)
def test_wrong_settings(key: str, value: str) -> None:
    with pytest.raises(InvalidError) as caught:
        TopicConfig.parse({key: value})
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert key in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("compression.type", codec) for codec in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        ("compression.gzip.level", "-1"),
        ("compression.lz4.level", "17"),
        ("compression.zstd.level", "-131072"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", ""),
        ("follower.replication.throttled.replicas", "0:1, 12:3"),
        ("local.retention.bytes", "-2"),
        ("local.retention.ms", "86400000"),
        ("remote.storage.enable", "true"),
        ("remote.log.copy.disable", "false"),
        ("remote.log.delete.on.disable", "true"),
    ],
)
def test_settings_without_effect_are_accepted_and_say_so(key: str, value: str) -> None:
    """Tools that were written for Kafka send them; a refusal would stop the whole tool."""
    assert TopicConfig.parse({key: value}) == TopicConfig.parse({})
    documentation = KEYS[key].documentation
    assert "without effect" in documentation or "whatever the value" in documentation


def test_an_empty_policy_keeps_every_record() -> None:
    config = TopicConfig.parse({"cleanup.policy": ""})
    assert (config.delete, config.compact) == (False, False)


def test_compaction_lags_must_not_cross() -> None:
    with raises(InvalidError, Reason.INVALID_CONFIG):
        TopicConfig.parse({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


def test_every_key_is_described_and_has_a_valid_default() -> None:
    assert list(KEYS) == sorted(KEYS)
    for key in KEYS.values():
        config_key(key.name).parse(key.default)
        assert key.documentation.endswith(".")
