"""Settings of single consumer groups (KIP-848) and of client metrics (KIP-714), under Kafka's names: the tables, and what is in
force. No I/O.

They are in the manifest beside the settings of brokers, under names that no broker has. A group's settings replace the broker's own
from the next heartbeat of each member on. Those of client metrics are kept for Kafka's tools, without effect: brokers take no
metrics from clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headgate.broker.cluster.topic_config import INT_MAX, ConfigKey, Kind
from headgate.broker.runtime.config import Settings, setting
from headgate.broker.runtime.errors import InvalidError, Reason

GROUP, CLIENT_METRICS = "group:", "client-metrics:"
"""Prefixes of the names under which the manifest has them."""
RESOURCES_MAX = 1_000
"""Groups, and subscriptions of client metrics, with settings of their own: every broker holds them all in memory."""
NAME_CHARS_MAX = 1_000
_TIMEOUT, _INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
FIELDS = {_TIMEOUT: "group_consumer_session_timeout_ms", _INTERVAL: "group_consumer_heartbeat_interval_ms"}
"""Settings of a group, and the broker's settings that are their defaults."""
_MATCHED = "client_instance_id|client_id|client_software_name|client_software_version|client_source_address|client_source_port"
_NO_METRICS = "Accepted and kept, without effect: brokers take no metrics from clients."


def group_keys(settings: Settings) -> dict[str, ConfigKey]:
    """The settings that a group can have, with this broker's defaults."""
    return {
        name: ConfigKey(
            name=name,
            kind=Kind.INT,
            default=str(getattr(settings, field)),
            documentation=f"{setting(field).metadata['documentation']}.",
            broker_name=None,
            low=1,
            high=INT_MAX,
        )
        for name, field in FIELDS.items()
    }


METRICS_KEYS = {
    "interval.ms": ConfigKey(
        name="interval.ms", kind=Kind.INT, default="300000", documentation=_NO_METRICS, broker_name=None, low=100, high=3_600_000,
    ),
    "match": ConfigKey(
        name="match", kind=Kind.LIST, default="", documentation=_NO_METRICS, broker_name=None,
        element=re.compile(rf"(?:{_MATCHED})=.+"), form=f"a list of KEY=PATTERN with the keys {_MATCHED.replace('|', ', ')}",
    ),
    "metrics": ConfigKey(
        name="metrics", kind=Kind.LIST, default="", documentation=_NO_METRICS, broker_name=None,
        element=re.compile(r"\S+"), form="a list of names",
    ),
}  # fmt: skip
"""The settings that a subscription of client metrics can have."""


def keys_of(resource: str, settings: Settings) -> dict[str, ConfigKey]:
    """The settings that a resource, by its name in the manifest, can have."""
    return group_keys(settings) if resource.startswith(GROUP) else METRICS_KEYS


def find(resource: str, settings: Settings, name: str) -> ConfigKey:
    """A setting of a resource. Raises InvalidError(INVALID_CONFIG)."""
    keys = keys_of(resource, settings)
    if name not in keys:
        raise InvalidError(Reason.INVALID_CONFIG, f"there is no such setting here. key=`{name[:100]}` known=`{', '.join(keys)}`")
    return keys[name]


def check(resource: str, config: Mapping[str, str], settings: Settings) -> None:
    """Raise InvalidError(INVALID_CONFIG) if a value is invalid, or if a group's members could not keep their sessions."""
    for name, text in config.items():
        find(resource, settings, name).parse(text)
    if resource.startswith(GROUP):
        values = consumer_values(config)
        timeout, interval = (values.get(field, getattr(settings, field)) for field in FIELDS.values())
        if timeout <= interval:
            raise InvalidError(
                Reason.INVALID_CONFIG,
                f"a session must be longer than the pause between two heartbeats. {_TIMEOUT}=`{timeout}` {_INTERVAL}=`{interval}`",
            )


def consumer_values(config: Mapping[str, str]) -> dict[str, int]:
    """The values of a group's settings, by the broker's field that each one replaces."""
    return {FIELDS[name]: int(text) for name, text in config.items() if name in FIELDS}


def names_of(kind: str, configs: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The groups, or the subscriptions, that have settings. `kind`: `GROUP` or `CLIENT_METRICS`."""
    return sorted(name.removeprefix(kind) for name in configs if name.startswith(kind))
