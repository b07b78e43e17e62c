"""The current lead of a partition, added to NOT_LEADER_OR_FOLLOWER in Produce (10+) and Fetch (12+; addresses 16+): KIP-951.

Fetch adds it to FENCED_LEADER_EPOCH too, as Kafka does: the client has the right lead, but an old epoch.

A client that supports it continues without a metadata request. Off the hot path: an answer with the error is decoded, completed
and encoded again.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from headgate.broker.log.batch import Buffer
from headgate.broker.runtime.steps import Steps
from headgate.broker.server.kafka.fetch import FENCED_LEADER_EPOCH, HINTED, NOT_LEADER_OR_FOLLOWER
from headgate.broker.server.kafka.produce import FLEXIBLE
from headgate.broker.wire.kafka.messages import fetch, produce
from headgate.broker.wire.kafka.primitives import portions

if TYPE_CHECKING:
    from headgate.broker.cluster.manifest import Incarnation
    from headgate.broker.engine.engine import Engine

ADDRESSES_VERSION_MIN = 16
HEAD_BYTES = 9
"""Length, correlation id, no tagged fields: the bytes in front of the body of a flexible response."""
PRODUCE_IDS_VERSION_MIN = FETCH_IDS_VERSION_MIN = 13


def hint_produce(engine: Engine, response: bytes, version: int) -> Steps[bytes]:
    """A Produce response with its length prefix, and with the current leads of partitions that this broker does not lead."""
    message, _ = yield from produce.ProduceResponse.decoding(response, HEAD_BYTES, version)
    leads: dict[int, Incarnation] = {}
    for topic in message.responses:
        topic_id = topic.topic_id if version >= PRODUCE_IDS_VERSION_MIN else _id(engine, topic.name)
        for portion in portions(topic.partition_responses):
            yield len(portion)
            for one in portion:
                lead = engine.lead(topic_id, one.index) if one.error_code == NOT_LEADER_OR_FOLLOWER else None
                if lead is not None and lead[0].id != engine.incarnation_id:
                    one.current_leader = produce.LeaderIdAndEpoch(leader_id=lead[0].broker_id, leader_epoch=lead[1])
                    leads[lead[0].broker_id] = lead[0]
    message.node_endpoints = [
        produce.NodeEndpoint(node_id=key, host=lead.host, port=lead.kafka_port, rack=lead.rack or None)
        for key, lead in leads.items()
    ]
    out = bytearray(response[:HEAD_BYTES])
    yield from message.encoding(out, version)
    return _framed(out)


def is_on_its_way(engine: Engine, response: bytes, version: int) -> Steps[bool]:
    """Whether all errors of a Produce response (with its length prefix) are NOT_LEADER_OR_FOLLOWER, for partitions that this
    broker may lead in a moment, or for which it may soon know the lead."""
    message, _ = yield from produce.ProduceResponse.decoding(
        response, HEAD_BYTES if version >= FLEXIBLE else HEAD_BYTES - 1, version
    )
    waits = False
    for topic in message.responses:
        topic_id = topic.topic_id if version >= PRODUCE_IDS_VERSION_MIN else _id(engine, topic.name)
        for portion in portions(topic.partition_responses):
            yield len(portion)
            for one in portion:
                if one.error_code != NOT_LEADER_OR_FOLLOWER:
                    return False
                waits = waits or engine.is_on_its_way(topic_id, one.index)
    return waits


def hint_fetch(engine: Engine, buffers: list[Buffer], version: int) -> Steps[list[Buffer]]:
    """A Fetch response, as buffers with the length prefix in front, and with the current leads of partitions that this broker
    does not lead."""
    response = b"".join(buffers)
    message, _ = yield from fetch.FetchResponse.decoding(response, HEAD_BYTES, version)
    leads: dict[int, Incarnation] = {}
    for topic in message.responses:
        topic_id = topic.topic_id if version >= FETCH_IDS_VERSION_MIN else _id(engine, topic.topic)
        for portion in portions(topic.partitions):
            yield len(portion)
            for one in portion:
                lead = engine.lead(topic_id, one.partition_index) if one.error_code in HINTED else None
                if lead is not None and (lead[0].id != engine.incarnation_id or one.error_code == FENCED_LEADER_EPOCH):
                    one.current_leader = fetch.LeaderIdAndEpoch(leader_id=lead[0].broker_id, leader_epoch=lead[1])
                    leads[lead[0].broker_id] = lead[0]
    if version >= ADDRESSES_VERSION_MIN:
        message.node_endpoints = [
            fetch.NodeEndpoint(node_id=key, host=lead.host, port=lead.kafka_port, rack=lead.rack or None)
            for key, lead in leads.items()
        ]
    out = bytearray(response[:HEAD_BYTES])
    yield from message.encoding(out, version)
    return [_framed(out)]


def _id(engine: Engine, name: str) -> uuid.UUID:
    topic = engine.manifest.topics.get(name)
    return uuid.UUID(int=0) if topic is None else topic.id


def _framed(response: bytearray) -> bytes:
    """A response with its own length prefix; it still carries the prefix of the response that it was made from."""
    response[:4] = (len(response) - 4).to_bytes(4, "big")
    return bytes(response)
