"""ApiVersions (18), versions 0-5: the APIs and versions that this broker serves.

- An unsupported version is answered in version 0 with UNSUPPORTED_VERSION and the list: the client can choose (KIP-511).
- From version 3 the client names its software; a name or version that Kafka would refuse is INVALID_REQUEST.
- From version 5 the client names the cluster and the broker that it expects here (KIP-1242). If it reached another one, such as
  through a proxy or an old DNS record, it gets REBOOTSTRAP_REQUIRED, and asks its bootstrap servers again. One that names a broker
  and no cluster gets INVALID_REQUEST. A broker that is still starting knows its own number and not yet its cluster.
- Features: `transaction.version` is 2: clients then use the second protocol of transactions (KIP-890). `group.version` is 1:
  consumer groups (KIP-848).

Deviation: no other features are advertised, such as those of KRaft. The levels are fixed by the release.
"""

from __future__ import annotations

import re

from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, free
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.served_versions import served
from headgate.broker.wire.kafka.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

ANY_NODE = -1
FEATURES = {"group.version": 1, "transaction.version": 2}

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def _is_here(cluster_id: str, node_id: int, context: Context) -> bool:
    """Whether a client that expects this cluster and broker has reached them."""
    starting = context.engine is None
    return node_id == context.settings.broker_id and (starting or cluster_id == context.engine.cluster_id)


async def handle(request: ApiVersionsRequest, context: Context) -> ApiVersionsResponse:
    if context.api_version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(text):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.cluster_id is None and request.node_id != ANY_NODE:
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.cluster_id is not None and not _is_here(request.cluster_id, request.node_id, context):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    return ApiVersionsResponse(
        api_keys=served(),
        supported_features=[SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in FEATURES.items()],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level) for name, level in FEATURES.items()
        ],
    )


API = Api(18, versions=(0, 5), flexible_from=3, request=ApiVersionsRequest, handle=handle, rule=free)
