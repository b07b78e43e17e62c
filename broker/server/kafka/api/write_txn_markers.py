"""WriteTxnMarkers (27), versions 1-2: end a transaction in some partitions.

Kafka's admin sends it to a lead (AbortTransaction, for a transaction whose producer and coordinator are gone). Brokers of Headgate
use their own call (`transactions/broker_calls.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from headgate.broker.cluster.acl import Operation
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode, error_code
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[await _topic(marker, topic, context) async for topic in context.turn.each(marker.topics)],
            )
            async for marker in context.turn.each(request.markers)
        ]
    )


async def _topic(marker: WritableTxnMarker, topic: WritableTxnMarkerTopic, context: Context) -> WritableTxnMarkerTopicResult:
    engine = context.engine
    rows: list[WritableTxnMarkerPartitionResult] = []
    async for number in context.turn.each(topic.partition_indexes):
        row = WritableTxnMarkerPartitionResult(partition_index=number)
        rows.append(row)
        try:
            log = engine.partition(engine.topic(topic.name), number)
            if log.internal:
                row.error_code = ErrorCode.INVALID_REQUEST
                continue
            engine.append_marker(
                log,
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                commit=marker.transaction_result,
            )
        except HeadgateError as error:
            row.error_code = error_code(error)
    try:
        await engine.durable()
    except HeadgateError as error:
        for row in rows:
            row.error_code = row.error_code or error_code(error)
    return WritableTxnMarkerTopicResult(name=topic.name, partitions=rows)


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    rights = asked.rights
    if rights.on_cluster(Operation.CLUSTER_ACTION) or rights.on_cluster(Operation.ALTER):
        yield None
        return
    markers = [
        made(
            WritableTxnMarkerResult,
            producer_id=marker.producer_id,
            topics=[
                made(
                    WritableTxnMarkerTopicResult,
                    name=topic.name,
                    partitions=[
                        made(WritableTxnMarkerPartitionResult, partition_index=number, error_code=CLUSTER_REFUSED)
                        for number in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ],
        )
        for marker in request.markers
    ]
    yield made(WriteTxnMarkersResponse, markers=markers)


def act(request: Message) -> Iterator[str]:
    for marker in request.markers:
        yield from (f"producer {marker.producer_id} in {topic.name}" for topic in marker.topics)


API = Api(27, versions=(1, 2), flexible_from=1, request=WriteTxnMarkersRequest, handle=handle, rule=rule, act=act)
