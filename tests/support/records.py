"""Written and read records, in types that belong to no client."""

from __future__ import annotations

from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record to write. `timestamp_ms` None leaves the time to the client."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One record as a client showed it. `append_time` is None if the client does not show the kind of timestamp."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    append_time: bool | None = None


def header_groups(headers: Headers) -> dict[str, list[bytes | None]]:
    """Headers as kafkajs shows them: values grouped by key, the order of different keys lost."""
    groups: dict[str, list[bytes | None]] = {}
    for key, value in headers:
        groups.setdefault(key, []).append(value)
    return groups
