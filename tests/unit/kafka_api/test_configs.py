"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs over a real engine.

Compared: each answer with Kafka 4.2's, for good input and bad. A mismatch means that a tool shows a setting that is not in
force, or changes more than requested.
"""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from headgate.broker.engine.base.live_settings import BROKER_KEYS, broker_key
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.wire.kafka.messages import alter_configs, incremental_alter_configs
from headgate.broker.wire.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from tests.unit.kafka_api.conftest import Kafka

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, OWN, FOR_ALL, FROM_BROKER, DEFAULT = 1, 2, 3, 4, 5


@pytest.fixture
def settings() -> Settings:
    return Settings.from_values({"broker_id": 7, "message_bytes_max": 5000})


async def describe(
    kafka: Kafka,
    name: str,
    *,
    kind: int = TOPIC,
    keys: list[str] | None = None,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = (await kafka.call(request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert bool(result.error_message) == bool(result.error_code)
    return result  # type: ignore[no-any-return]


def by_name(result: DescribeConfigsResult) -> dict[str, DescribeConfigsResourceResult]:
    assert result.error_code == 0
    return {entry.name: entry for entry in result.configs}


# -- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_a_topic(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 1, {"retention.ms": "5", "cleanup.policy": "compact"})
    found = by_name(await describe(kafka, "a", version=version))
    assert [(found[name].value, found[name].config_source) for name in ("retention.ms", "cleanup.policy", "retention.bytes")] == [
        ("5", FROM_TOPIC),
        ("compact", FROM_TOPIC),
        ("-1", DEFAULT),
    ]
    assert (found["max.message.bytes"].value, found["max.message.bytes"].config_source) == ("5000", FROM_BROKER)
    assert not any(entry.read_only or entry.is_sensitive or entry.synonyms or entry.documentation for entry in found.values())
    if version >= 3:
        types = {name: found[name].config_type for name in ("retention.ms", "cleanup.policy", "preallocate", "segment.bytes")}
        assert types == {"retention.ms": 5, "cleanup.policy": 7, "preallocate": 1, "segment.bytes": 3}


async def test_synonyms_and_texts(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {"max.message.bytes": "9", "retention.ms": "5"})
    found = by_name(await describe(kafka, "a", synonyms=True, documentation=True))
    assert [(one.name, one.value, one.source) for one in found["max.message.bytes"].synonyms] == [
        ("max.message.bytes", "9", FROM_TOPIC),
        ("message.max.bytes", "5000", FROM_BROKER),
        ("message.max.bytes", "1048588", DEFAULT),
    ]
    assert [(one.name, one.value, one.source) for one in found["retention.ms"].synonyms] == [
        ("retention.ms", "5", FROM_TOPIC),
        ("log.retention.ms", "604800000", DEFAULT),
    ]
    assert all(entry.documentation and entry.synonyms for entry in found.values())


async def test_single_keys(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    assert set(by_name(await describe(kafka, "a", keys=["retention.ms", "no.such"]))) == {"retention.ms"}
    assert len(by_name(await describe(kafka, "a", keys=[]))) > 20  # as in Kafka: no names means all names


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_the_broker(kafka: Kafka, version: int) -> None:
    found = by_name(await describe(kafka, "7", kind=BROKER, version=version, synonyms=True))
    assert (found["message.max.bytes"].value, found["message.max.bytes"].config_source) == ("5000", FROM_BROKER)
    assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("1", DEFAULT)
    assert found["node.id"].value == found["broker.id"].value == "7"
    assert found["auto.create.topics.enable"].value == "true"
    advertised = found["advertised.listeners"]
    assert (advertised.value, advertised.config_source) == ("PLAINTEXT://broker.test:9092", DEFAULT)
    assert found["wal_fsync"].value == kafka.settings.wal_fsync
    assert {name for name, entry in found.items() if not entry.read_only} == set(BROKER_KEYS)
    assert list(found) == sorted(found)
    assert by_name(await describe(kafka, "", kind=BROKER, version=version)) == {}


async def test_addresses_tell_whether_they_were_set(kafka: Kafka) -> None:
    kafka.settings = dataclasses.replace(kafka.settings, advertised_host="broker.test", kafka_port=19092)
    found = by_name(await describe(kafka, "7", kind=BROKER, synonyms=True))
    for name, value in (("advertised.listeners", "PLAINTEXT://broker.test:9092"), ("listeners", "PLAINTEXT://127.0.0.1:19092")):
        assert (found[name].value, found[name].config_source) == (value, FROM_BROKER)
        assert [(one.name, one.value) for one in found[name].synonyms] == [(name, value)]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "8", ErrorCode.INVALID_REQUEST),
        (BROKER, "seven", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "7", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
        (99, "a", ErrorCode.INVALID_REQUEST),
        (-1, "a", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_resources_that_are_not_there(kafka: Kafka, kind: int, name: str, code: int) -> None:
    assert (await describe(kafka, name, kind=kind)).error_code == code
    assert await replace(kafka, name, kind=kind) == code
    assert await change(kafka, name, ("retention.ms", SET, "1"), kind=kind) == code


async def test_a_resource_twice_is_described_once(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="a", configuration_keys=None)
    assert len((await kafka.call(DescribeConfigsRequest(resources=[resource] * 100), 4)).results) == 1


# -- AlterConfigs


async def replace(
    kafka: Kafka,
    name: str,
    *rows: tuple[str, str | None],
    kind: int = TOPIC,
    version: int = 2,
    validate_only: bool = False,
    times: int = 1,
) -> int:
    entries = [alter_configs.AlterableConfig(name=key, value=value) for key, value in rows]
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=entries)
    request = alter_configs.AlterConfigsRequest(resources=[resource] * times, validate_only=validate_only)
    (result,) = (await kafka.call(request, version)).responses
    assert bool(result.error_message) == bool(result.error_code)
    return int(result.error_code)


@pytest.mark.parametrize("version", range(3))
async def test_replace_all(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 1, {"retention.ms": "5", "segment.ms": "6"})
    assert await replace(kafka, "a", ("retention.ms", "7"), version=version, validate_only=True) == 0
    assert kafka.engine.topic("a").config == {"retention.ms": "5", "segment.ms": "6"}
    assert await replace(kafka, "a", ("retention.ms", "7"), version=version) == 0
    assert kafka.engine.topic("a").config == {"retention.ms": "7"}
    assert await replace(kafka, "a", version=version) == 0
    assert kafka.engine.topic("a").config == {}


async def test_replacements_that_are_refused(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {"retention.ms": "5"})
    assert await replace(kafka, "a", ("no.such", "1")) == ErrorCode.INVALID_CONFIG
    assert await replace(kafka, "a", ("retention.ms", "soon")) == ErrorCode.INVALID_CONFIG
    assert await replace(kafka, "a", ("retention.ms", None)) == ErrorCode.INVALID_REQUEST
    assert await replace(kafka, "a", ("retention.ms", "1"), ("retention.ms", "2")) == ErrorCode.INVALID_REQUEST
    assert await replace(kafka, "a", times=2) == ErrorCode.INVALID_REQUEST
    assert await replace(kafka, "7", ("node.id", "1"), kind=BROKER) == ErrorCode.INVALID_REQUEST
    assert await replace(kafka, "7", ("root", "INFO"), kind=BROKER_LOGGER) == ErrorCode.INVALID_REQUEST
    assert await replace(kafka, "7", kind=BROKER) == 0
    assert kafka.engine.topic("a").config == {"retention.ms": "5"}


# -- IncrementalAlterConfigs


async def change(
    kafka: Kafka,
    name: str,
    *rows: tuple[str, int, str | None],
    kind: int = TOPIC,
    version: int = 1,
    validate_only: bool = False,
    times: int = 1,
) -> int:
    module = incremental_alter_configs
    entries = [module.AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in rows]
    resource = module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=entries)
    request = module.IncrementalAlterConfigsRequest(resources=[resource] * times, validate_only=validate_only)
    (result,) = (await kafka.call(request, version)).responses
    assert bool(result.error_message) == bool(result.error_code)
    return int(result.error_code)


@pytest.mark.parametrize("version", range(2))
async def test_set_and_delete(kafka: Kafka, version: int) -> None:
    await kafka.engine.create_topic("a", 1, {"retention.ms": "5", "segment.ms": "6"})
    assert await change(kafka, "a", ("retention.ms", SET, "7"), version=version, validate_only=True) == 0
    assert kafka.engine.topic("a").config == {"retention.ms": "5", "segment.ms": "6"}
    assert await change(kafka, "a", ("retention.ms", SET, "7"), ("segment.ms", DELETE, None), version=version) == 0
    assert kafka.engine.topic("a").config == {"retention.ms": "7"}
    assert await change(kafka, "a", ("retention.ms", DELETE, "7"), ("no.such", DELETE, None), version=version) == 0
    assert kafka.engine.topic("a").config == {}
    assert kafka.engine.partition(kafka.engine.topic("a"), 0).config.retention_ms == 604_800_000


async def test_append_and_subtract(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})

    async def policy(*rows: tuple[str, int, str | None]) -> str | None:
        assert await change(kafka, "a", *rows) == 0
        return kafka.engine.topic("a").config.get("cleanup.policy")

    assert await policy(("cleanup.policy", APPEND, "compact")) == "delete,compact"  # the default counts
    assert await policy(("cleanup.policy", APPEND, "compact,delete")) == "delete,compact"
    assert await policy(("cleanup.policy", SUBTRACT, "delete")) == "compact"
    assert await policy(("cleanup.policy", SUBTRACT, "delete")) == "compact"
    assert await policy(("cleanup.policy", SUBTRACT, "compact")) == ""
    assert await policy(("cleanup.policy", DELETE, None)) is None


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "burn")], ErrorCode.INVALID_CONFIG),
        ([("segment.ms", SET, "9"), ("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", -1, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_changes_that_are_refused(kafka: Kafka, rows: list[tuple[str, int, str | None]], code: int) -> None:
    await kafka.engine.create_topic("a", 1, {"retention.bytes": "5"})
    for validate_only in (True, False):
        assert await change(kafka, "a", *rows, validate_only=validate_only) == code
    assert kafka.engine.topic("a").config == {"retention.bytes": "5"}


async def test_other_refused_changes(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    assert await change(kafka, "a", ("retention.ms", SET, "1"), times=2) == ErrorCode.INVALID_REQUEST
    assert await change(kafka, "", kind=BROKER) == 0


async def test_changes_at_the_same_time_do_not_lose_each_other(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {})
    keys = ("retention.ms", "retention.bytes", "segment.ms", "segment.bytes", "flush.ms")
    assert await asyncio.gather(*(change(kafka, "a", (key, SET, "99")) for key in keys)) == [0] * len(keys)
    assert kafka.engine.topic("a").config == dict.fromkeys(keys, "99")


# -- brokers


async def test_settings_of_brokers_change_while_they_run(kafka: Kafka) -> None:
    async def shown(name: str, broker: str = "7") -> tuple[str | None, list[tuple[str | None, int]]]:
        entry = by_name(await describe(kafka, broker, kind=BROKER, synonyms=True))[name]
        return entry.value, [(one.value, one.source) for one in entry.synonyms]

    await kafka.engine.create_topic("a", 1, {})
    await kafka.engine.create_topic("b", 1, {"max.message.bytes": "9"})
    rows = (("num.partitions", SET, "3"), ("message.max.bytes", SET, "700"), ("auto.create.topics.enable", SET, "false"))
    assert await change(kafka, "", *rows, kind=BROKER, validate_only=True) == 0
    assert kafka.settings.num_partitions == 1 and by_name(await describe(kafka, "", kind=BROKER)) == {}
    assert await change(kafka, "", *rows, kind=BROKER) == 0
    assert (kafka.settings.num_partitions, kafka.settings.auto_create_topics) == (3, False)
    assert await shown("num.partitions") == ("3", [("3", FOR_ALL), ("1", DEFAULT)])
    assert await shown("message.max.bytes") == ("700", [("700", FOR_ALL), ("5000", FROM_BROKER), ("1048588", DEFAULT)])
    assert await shown("num.partitions", "") == ("3", [("3", FOR_ALL), ("1", DEFAULT)])
    assert kafka.engine.partition(kafka.engine.topic("a"), 0).config.max_message_bytes == 700
    assert kafka.engine.partition(kafka.engine.topic("b"), 0).config.max_message_bytes == 9
    entry = by_name(await describe(kafka, "a", synonyms=True))["max.message.bytes"]
    assert [(one.value, one.source) for one in entry.synonyms] == [("700", 3), ("5000", FROM_BROKER), ("1048588", DEFAULT)]
    # The broker's own settings come before those of all.
    assert await change(kafka, "7", ("num.partitions", SET, "5"), ("log.cleanup.policy", APPEND, "compact"), kind=BROKER) == 0
    assert await shown("num.partitions") == ("5", [("5", OWN), ("3", FOR_ALL), ("1", DEFAULT)])
    assert kafka.engine.partition(kafka.engine.topic("a"), 0).config.compact
    assert await replace(kafka, "", kind=BROKER) == 0
    assert await change(kafka, "7", ("num.partitions", DELETE, None), ("log.cleanup.policy", DELETE, ""), kind=BROKER) == 0
    assert (kafka.settings.num_partitions, kafka.settings.auto_create_topics) == (1, True)
    assert kafka.engine.manifest.broker_configs == {}
    kafka.engine.manifest.check_invariants()


async def test_a_setting_that_was_never_set_can_be_deleted(kafka: Kafka) -> None:
    for broker in ("", "7"):
        rows = (("leader.replication.throttled.rate", DELETE, None), ("no.such", DELETE, None), ("num.partitions", DELETE, None))
        assert await change(kafka, broker, *rows, kind=BROKER) == 0
    assert await change(kafka, "7", ("leader.replication.throttled.rate", SET, "1000"), kind=BROKER) == 0
    assert by_name(await describe(kafka, "7", kind=BROKER))["leader.replication.throttled.rate"].value == "1000"


async def test_topics_keep_their_settings_if_defaults_contradict_them(kafka: Kafka) -> None:
    await kafka.engine.create_topic("a", 1, {"min.compaction.lag.ms": "500"})
    assert await change(kafka, "", ("log.cleaner.max.compaction.lag.ms", SET, "9"), kind=BROKER) == 0
    assert kafka.engine.partition(kafka.engine.topic("a"), 0).config.min_compaction_lag_ms == 500
    await kafka.engine.create_topic("b", 1, {})
    assert kafka.engine.partition(kafka.engine.topic("b"), 0).config.max_compaction_lag_ms == 9


@pytest.mark.parametrize(
    "rows",
    [
        [("no.such", SET, "1")],
        [("node.id", SET, "8")],
        [("wal_fsync", SET, "never")],
        [("num.partitions", SET, "0")],
        [("num.partitions", SET, "many")],
        [("num.partitions", APPEND, "1")],
        [("auto.create.topics.enable", SET, "maybe")],
        [("log.retention.ms", SET, "soon")],
        [("num.partitions", SET, "2"), ("no.such", SET, "1")],
        [("log.cleaner.min.compaction.lag.ms", SET, "9"), ("log.cleaner.max.compaction.lag.ms", SET, "8")],
    ],
)
async def test_settings_of_brokers_that_are_refused(kafka: Kafka, rows: list[tuple[str, int, str | None]]) -> None:
    for broker in ("", "7"):
        assert await change(kafka, broker, *rows, kind=BROKER) == ErrorCode.INVALID_REQUEST
    assert kafka.engine.manifest.broker_configs == {} and kafka.settings.num_partitions == 1


# -- settings of other kinds


async def test_broker_settings_of_kafkas_machinery_are_kept_and_those_that_protect_are_named(kafka: Kafka) -> None:
    for name, value in (("num.io.threads", "16"), ("log.cleaner.threads", "2"), ("log.cleaner.io.buffer.load.factor", "0.5")):
        assert await change(kafka, "", (name, SET, value), kind=BROKER) == 0
        row = by_name(await describe(kafka, "7", kind=BROKER, documentation=True))[name]
        assert (row.value, row.config_source) == (value, FOR_ALL) and "without effect" in (row.documentation or "")
    assert await change(kafka, "", ("num.io.threads", SET, "many"), kind=BROKER) == ErrorCode.INVALID_REQUEST
    for name, words in (
        ("max.connections.per.ip", "Kafka has this setting, and this broker has none of that name"),
        ("listener.name.external.ssl.keystore.location", "Kafka has this setting"),
        ("no.such", "no such setting of a broker, or it cannot change while the broker runs"),
        ("node.id", "cannot change while the broker runs"),
    ):
        with pytest.raises(InvalidError, match=words):
            broker_key(name)
