"""Rows without a key and compacted topics, which keep the newest record of each key: Kafka refuses records without one there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headgate.broker.runtime.errors import InvalidError, Reason

if TYPE_CHECKING:
    from headgate.broker.client.types import ConfigEntry


def is_compacted(config: Iterable[ConfigEntry]) -> bool:
    """True for a topic with these settings whose `cleanup.policy` has `compact`."""
    policy = next((one.value for one in config if one.name == "cleanup.policy"), "")
    return "compact" in [part.strip() for part in policy.split(",")]


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
