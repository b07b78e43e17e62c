"""Floods that the settings of a topic refuse, as Kafka refuses such records of producers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.broker.runtime.errors import InvalidError, Reason

if TYPE_CHECKING:
    from headgate.broker.client.types import ConfigEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """What a topic asks of its records. `compacted`: it keeps the newest record of each key, so each record has one.
    `append_time`: the time of its records is that of their append."""

    compacted: bool = False
    append_time: bool = False


def rules_of(config: Iterable[ConfigEntry]) -> TopicRules:
    """The rules of a topic with these settings."""
    values = {entry.name: entry.value for entry in config}
    policies = [part.strip() for part in values.get("cleanup.policy", "").split(",")]
    return TopicRules(compacted="compact" in policies, append_time=values.get("message.timestamp.type") == "LogAppendTime")


def check_rules(topic: str, rules: TopicRules, key: str | None, event_time: str | None, keyless: int = 0) -> None:
    """Raise InvalidError when a flood with this key and this event time breaks the rules of its topic.

    Args:
        keyless: rows without a key, as far as they are counted.
    """
    if rules.compacted:
        check_keys(topic, key, keyless)
    if rules.append_time and event_time is not None:
        raise InvalidError(
            Reason.INVALID_CONFIG,
            "a topic with message.timestamp.type=LogAppendTime takes no records with times of their own: give it CreateTime "
            f"(headgate topic alter). topic=`{topic}` event_time=`{event_time}`",
        )


def check_keys(topic: str, key: str | None, keyless: int = 0) -> None:
    """Raise InvalidError when a flood would bring rows without a key into a compacted topic.

    Args:
        key: the flood's key; None: no row has one.
        keyless: rows without a key, as far as they are counted.
    """
    if key is None:
        raise InvalidError(
            Reason.INVALID_CONFIG,
            f"a compacted topic takes no records without a key: name one. topic=`{topic}`",
        )
    if keyless:
        raise InvalidError(
            Reason.INVALID_RECORD,
            "a compacted topic takes no records without a key: leave these rows out with where, or give them a key with "
            f"coalesce(...). topic=`{topic}` key=`{key}` rows=`{keyless}`",
        )
