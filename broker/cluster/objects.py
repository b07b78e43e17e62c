"""What the manifest lists: topics, incarnations, followers, chunks and their extents. No I/O."""

from __future__ import annotations

import uuid

import msgspec

LANE = "lane"
"""The role of an incarnation that serves history and leads nothing."""
ROOM = "history.room"
"""The topic setting with the number of offsets that are reserved for history in front."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `config` holds the overrides only; `cluster/topic_config.py` has the defaults. `replication_factor` is what Kafka
    clients are shown; the store makes the copies."""

    id: uuid.UUID
    name: str
    partitions: int
    config: dict[str, str] = {}
    created_ms: int = 0
    replication_factor: int = 1

    @property
    def room(self) -> int:
        """The offset of the first live record. The offsets below it are reserved for history."""
        return int(self.config.get(ROOM, "0"))


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A run of consecutive offsets [base_offset, end_offset) of one partition in one chunk.

    `position` and `length_bytes`: place of its rows in the chunk's index, in bytes. `timestamp_max_ms`: the greatest record
    timestamp in it. `data_bytes`: size of its batches.
    """

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    timestamp_max_ms: int
    data_bytes: int
    position: int
    length_bytes: int

    @property
    def rows(self) -> int:
        return self.end_offset - self.base_offset


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed WAL object. `number` counts from 0 within the incarnation. `appended_ms`: the wall-clock time of its last
    group.

    `index_inline`: the index is in the chunk's own object, else in a separate one. A folded chunk (`generation` > 0) replaces
    the chunks from `number` to `last_number`. `made_by` is part of the name of an object that the incarnation's WAL did not
    write: a folded chunk or a recovered index. No two attempts, by any broker, ever write the same object.
    """

    number: int
    last_number: int
    generation: int = 0
    made_by: str = ""
    size_bytes: int
    appended_ms: int
    index_inline: bool
    extents: list[Extent]


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one broker process. Epochs of incarnations and segments come from one counter; no two are equal.

    `next_chunk`: every chunk below this number was listed, also if it was removed since. The unsealed tail begins here. Other
    brokers and clients connect to `host` and the ports; "" and 0 if unknown. `listeners`: name and ``host:port`` of each
    further Kafka port. `role` "lane": it serves history and leads nothing (`cluster/lanes.py`); "": a broker.
    """

    id: str
    broker_id: int
    leader_epoch: int
    opened_ms: int
    next_chunk: int = 0
    sealed: bool = False
    host: str = ""
    kafka_port: int = 0
    grpc_port: int = 0
    http_port: int = 0
    rack: str = ""
    grpc_mtls_port: int = 0
    listeners: tuple[tuple[str, str], ...] = ()
    role: str = ""

    @property
    def is_lane(self) -> bool:
        """True if it serves history and leads nothing."""
        return self.role == LANE

    @property
    def peer_port(self) -> int:
        """The gRPC port for other brokers."""
        return self.grpc_mtls_port or self.grpc_port

    def kafka_address(self, listener: str) -> tuple[str, int]:
        """(host, port) of the Kafka listener with this name, or of the first one if the broker has no such listener."""
        for name, address in self.listeners:
            if name == listener:
                host, _, port = address.rpartition(":")
                return host, int(port)
        return self.host, self.kafka_port


class Follower(msgspec.Struct, frozen=True, kw_only=True):
    """The broker with copies of an incarnation's acked records that may not be in the store yet. `stream`: see
    `engine/write/replicas.py`."""

    incarnation_id: str
    host: str
    grpc_port: int
    stream: int
