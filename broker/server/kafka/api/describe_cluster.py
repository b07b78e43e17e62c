"""DescribeCluster (60), versions 0-2: the cluster's id and its brokers.

Deviations: the cluster has no separate controllers. A request for them (endpoint type 2, version 1) is answered like by a broker
of Kafka, with MISMATCHED_ENDPOINT_TYPE. No broker is ever listed as fenced.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from headgate.broker.server.kafka.constants import CLUSTER_OPERATIONS
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.leads import broker_address
from headgate.broker.server.kafka.rules import limit_cluster
from headgate.broker.wire.kafka.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from headgate.broker.cluster.objects import Incarnation

BROKERS = 1
CONTROLLERS = 2


def _broker(broker: Incarnation, context: Context) -> DescribeClusterBroker:
    host, port = broker_address(broker, context)
    return DescribeClusterBroker(broker_id=broker.broker_id, host=host, port=port, rack=broker.rack or None)


async def handle(request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"this endpoint describes brokers. endpoint_type=`{request.endpoint_type}`",
        )
    engine = context.engine
    response = DescribeClusterResponse(
        cluster_id=engine.cluster_id,
        controller_id=engine.controller_id,
        brokers=[_broker(broker, context) for broker in [*engine.brokers(), *engine.lanes()]],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    limit_cluster((yield None), asked)


API = Api(60, versions=(0, 2), flexible_from=0, request=DescribeClusterRequest, handle=handle, rule=rule)
