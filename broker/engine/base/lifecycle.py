"""Lifecycle of one incarnation: what the parts of the engine share, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from headgate.broker.cluster import downtime
from headgate.broker.cluster.admission import taken_over
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.engine.base.catalog import Catalog
from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import ClosedError, FencedError, HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.store.interface import Store

logger = get_logger("engine")


class Lifecycle:
    """Whether this incarnation serves, the error that ended it, and its copy of the manifest.

    Args:
        on_failure: called once, on the loop, with the error that ends this broker. The broker may never ack again.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: SteadyClock,
        incarnation_id: str,
        catalog: Catalog,
        on_failure: Callable[[HeadgateError], None],
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.incarnation_id = incarnation_id
        self.catalog = catalog
        self.failed: HeadgateError | None = None
        self.ready = False
        """True from start until close."""
        self.started = False
        """True once the engine has been ready, also after close."""
        self._on_failure = on_failure

    @property
    def manifest(self) -> Manifest:
        return self.catalog.manifest

    @property
    def leads_cluster(self) -> bool:
        """True if this broker cleans up after sealed incarnations: it leads the cluster."""
        return self.manifest.leader == self.incarnation_id

    def begin(self) -> None:
        """Serve from now on."""
        self.ready = self.started = True

    def end(self) -> None:
        """Serve no more, because the engine closes."""
        self.ready = False

    def fail(self, error: HeadgateError) -> None:
        """End this broker with its first error. Does nothing if the error only says that the broker closes."""
        if isinstance(error, ClosedError) or self.failed is not None:
            return
        self.failed = error
        logger.error("engine_failed", reason=error.reason.value, error=error.message)
        self._on_failure(error)

    def check(self) -> None:
        """Raise RetryError(NOT_LEADER) if this broker does not serve."""
        if self.failed is not None or not self.ready:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead its partitions any more")

    def begin_time(self, noted_ms: int) -> list[Edit]:
        """Make the clock agree with the time before this start. For a broker that starts as the leader: it can ask no
        other.

        Args:
            noted_ms: the newest wall-clock time in ms at which a broker is known to have run; 0: unknown.

        Returns:
            The edit that notes the time in which no broker is known to have run; [] if there was no such time.
        """
        if self.settings.clock_trusted:
            return []
        adopted_ms, edits = downtime.begin(self.clock.started_ms, noted_ms, self.clock.difference_max_ms)
        if adopted_ms is not None:
            self.clock.adopt(adopted_ms)
        if edits:
            logger.warning(
                "downtime_noted", since_ms=noted_ms, until_ms=self.clock.started_ms, effect="this time does not count for retention"
            )
        return edits

    def cutoff_ms(self, age_ms: int) -> int | None:
        """The cutoff in wall-clock ms: records appended before it are older than `age_ms`. None while the clock is in doubt."""
        if self.clock.doubt is not None:
            return None
        return downtime.cutoff_ms(self.clock.now_ms(), age_ms, self.manifest.downtimes)

    def taken_over(self) -> FencedError:
        """The error of a broker whose incarnation another broker has sealed."""
        return taken_over(self.manifest, self.incarnation_id, self.settings.broker_id)
