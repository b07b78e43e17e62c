"""The Kafka APIs that this broker serves: all and only the APIs that ApiVersions advertises.

Light on purpose: the index has what ApiVersions says, and the first request for an API imports its file.

A new API is one file in `api/`, with its declaration at the end. Then write its messages (`broker/wire/kafka/generate.py`) and
the index (`index.py`), and add Kafka's versions to `tests/unit/wire/test_generated.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from headgate.broker.server.kafka.api_index import ROWS

if TYPE_CHECKING:
    from headgate.broker.server.kafka.declared import Api

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
JOIN_GROUP = 11
SYNC_GROUP = 14
API_VERSIONS = 18

REQUEST_BYTES_MAX = 1 << 20
"""Largest request of the other APIs. Two bytes can become an object of 60 bytes: this bounds the memory of one request. A real
request of this size would commit some 25,000 offsets."""
LARGE_REQUEST_BYTES_MAX = 4 << 20
"""Largest request of Fetch, JoinGroup and SyncGroup: a real Fetch of this size is for some 100,000 partitions; the others carry
large pieces that the broker does not parse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is known of an API without its file.

    `min_version` to `max_version` are served. `advertised_min_version` is the lowest version in ApiVersions; it is lower only
    for Produce. `flexible_from` is the first version with KIP-482's encoding, or None. `module` is the name of the file in
    `api/`; None if the connection handles the API itself.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int | None
    module: str | None
    advertised_min_version: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from

    def load(self) -> Api:
        """Its declaration; the first call imports its file."""
        assert self.module is not None
        declared: Api = import_module(f"headgate.broker.server.kafka.api.{self.module}").API
        return declared


def _served(
    key: int, name: str, low: int, high: int, flexible_from: int | None, module: str | None, advertised: int | None = None
) -> Served:
    return Served(
        key=key,
        name=name,
        min_version=low,
        max_version=high,
        flexible_from=flexible_from,
        module=module,
        advertised_min_version=low if advertised is None else advertised,
    )


_OF_CONNECTIONS = (
    # Advertised from 0: librdkafka turns features off otherwise (KAFKA-18659).
    _served(PRODUCE, "Produce", 3, 13, 9, None, advertised=0),
    _served(FETCH, "Fetch", 4, 17, 12, None),
)
APIS: dict[int, Served] = {api.key: api for api in (*_OF_CONNECTIONS, *(_served(*row) for row in ROWS))}
"""By API key, in its order."""


def request_bytes_max(key: int) -> int:
    """The largest request of an API, in bytes; a Produce request is bounded by `frame_bytes_max` alone."""
    return LARGE_REQUEST_BYTES_MAX if key in (FETCH, JOIN_GROUP, SYNC_GROUP) else REQUEST_BYTES_MAX
