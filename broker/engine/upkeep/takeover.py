"""The start of a broker alone on its store: it fences all earlier brokers and recovers their acked records."""

from __future__ import annotations

from headgate.broker.cluster import downtime
from headgate.broker.cluster.manifest import Incarnation, OpenIncarnation
from headgate.broker.engine import keys
from headgate.broker.engine.catalog import DeposedError, LocalCatalog
from headgate.broker.engine.life import Life
from headgate.broker.engine.upkeep.recovery import recover
from headgate.broker.runtime.errors import CorruptError, FencedError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("engine")

TAKE_OVER_TRIES = 20
"""Attempts of a starting broker to take over the store. A broker that is being replaced may still edit the manifest between its
fence and its next write; each such edit costs one attempt."""


async def take_over(life: Life, catalog: LocalCatalog) -> int:
    """Open this incarnation and seal all others. Returns the number of recovered records.

    The earlier broker may still edit the manifest meanwhile, so this may take several attempts.
    """
    await catalog.load()
    for attempt in range(TAKE_OVER_TRIES):
        version, known = catalog.version, set(life.manifest.incarnations)
        try:
            return await _open_incarnation(life, catalog, attempt)
        except (DeposedError, InvalidError, CorruptError) as error:
            await catalog.load()
            if catalog.version == version:
                raise  # the manifest has not changed: a second attempt would fail in the same way
            logger.warning("recovery_overtaken", error=error.message)
            if not life.manifest.incarnations.keys() <= known:
                raise FencedError(Reason.FENCED, "another broker took over this store while this one started") from error
    raise RetryError(Reason.STORE_UNAVAILABLE, "the manifest changes faster than it can be taken over")


async def _open_incarnation(life: Life, catalog: LocalCatalog, attempt: int) -> int:
    lost = [incarnation for incarnation in life.manifest.incarnations.values() if not incarnation.sealed]
    epoch = life.manifest.leader_epoch + 1
    recovered = (await recover(life.store, life.manifest, lost, keys.maker(epoch, life.incarnation_id, attempt))).whole()
    noted = life.begin_time(downtime.newest_ms(life.manifest, recovered.edits))
    mine = Incarnation(
        id=life.incarnation_id,
        broker_id=life.settings.broker_id,
        leader_epoch=epoch,
        opened_ms=life.clock.now_ms(),
    )
    await catalog.commit(*recovered.edits, *noted, OpenIncarnation(mine))
    return recovered.records
