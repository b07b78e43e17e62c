"""UpdateFeatures (57), versions 0-2: the levels of features are fixed.

A release serves its features at one level each (`api_versions.FEATURES`), and no records in the store depend on a level, so there
is nothing to upgrade or to downgrade. An update to the present level succeeds. Any other one, and one of an unknown feature, is
INVALID_UPDATE_VERSION, as in Kafka for a level out of range. One wrong update refuses all, as in Kafka: the error is that of the
whole request, in every version, and the rows of versions 0 and 1 say which updates are wrong.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headgate.broker.cluster.acl import Operation
from headgate.broker.server.kafka.api.api_versions import FEATURES
from headgate.broker.server.kafka.audited import rows
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.declared import Api, Asked, Message
from headgate.broker.server.kafka.errors import ErrorCode
from headgate.broker.server.kafka.rules import CLUSTER_REFUSED, made
from headgate.broker.wire.kafka.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


async def handle(request: UpdateFeaturesRequest, context: Context) -> UpdateFeaturesResponse:
    response = UpdateFeaturesResponse(error_message=None)
    refused: str | None = None
    async for update in context.turn.each(request.feature_updates):
        message = _refusal(update)
        refused = refused or message
        code = ErrorCode.NONE if message is None else ErrorCode.INVALID_UPDATE_VERSION
        response.results.append(UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=message))
    if not request.feature_updates:
        response.error_code, response.error_message = ErrorCode.INVALID_REQUEST, "no feature is named"
    elif refused is not None:
        response.error_code, response.error_message = ErrorCode.INVALID_UPDATE_VERSION, refused
    return response


def _refusal(row: FeatureUpdateKey) -> str | None:
    """The reason why a feature cannot have this level; None: it has it."""
    level = FEATURES.get(row.feature)
    name = row.feature[:100]
    if level is None:
        return f"this cluster has no such feature. feature=`{name}`"
    if row.max_version_level != level:
        return f"the level of a feature is fixed by the release. feature=`{name}` level=`{level}` asked=`{row.max_version_level}`"
    return None


async def rule(request: Message, asked: Asked) -> AsyncGenerator[Message | None, Message]:
    if asked.rights.on_cluster(Operation.ALTER):
        yield None
        return
    rows = [made(UpdatableFeatureResult, feature=update.feature, error_code=CLUSTER_REFUSED) for update in request.feature_updates]
    yield made(UpdateFeaturesResponse, error_code=CLUSTER_REFUSED, results=rows)


API = Api(
    57,
    versions=(0, 2),
    flexible_from=0,
    request=UpdateFeaturesRequest,
    handle=handle,
    rule=rule,
    act=rows("feature_updates", "feature"),
)
