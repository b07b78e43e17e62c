"""``headgate init``: a new cluster in an empty store."""

from __future__ import annotations

import os

from headgate.broker.engine.identity import identify
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.store.open import PRIVATE_URLS, open_store


async def init(settings: Settings) -> str:
    """Make a new cluster in the store, or find the existing one. Returns its id.

    Raises:
        InvalidError: the settings name no store, or one that ends with its process.
        FatalError: the place cannot hold a store, or the store has another cluster than the settings name.
        RetryError: the store does not answer.
    """
    if settings.store in PRIVATE_URLS:
        raise InvalidError(Reason.INVALID_REQUEST, f"a store in memory is made by its broker. store=`{settings.store}`")
    store = open_store(settings.store)
    try:
        return await identify(
            store,
            name=settings.cluster_name,
            expected_id=settings.cluster_id,
            create=True,
            fresh_id=os.urandom(11).hex(),
            now_ms=Clock().now_ms(),
        )
    finally:
        await store.close()
