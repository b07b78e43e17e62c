"""The data plane of one broker behind one interface. The Kafka handlers, gRPC and the group coordinator call it.

The engine assembles its parts, and starts and closes them in the right order. The parts own the state: `Leads` the partitions
(`partition/`), `WritePath` the way of a batch to its ack (`write/`), `ReadPath` the reads (`read/`), `Topics` the changes of
topics, `Deletion`, `Handover` and `Sweeper` the upkeep (`upkeep/`). Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

from headgate.broker.cluster.edits.access import AccessEdit
from headgate.broker.cluster.edits.brokers import SetBrokerConfig
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import AddChunks, SealIncarnation, SetFollower
from headgate.broker.cluster.edits.quotas import AlterQuotas
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.meters import Meters
from headgate.broker.cluster.objects import LANE, Follower
from headgate.broker.engine.base.catalog import Catalog
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.base.proof import LeadProof
from headgate.broker.engine.base.topic_tables import Tables
from headgate.broker.engine.broker_configs import BrokerConfigs
from headgate.broker.engine.identity import identify
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.read.disk_cache import DiskCache
from headgate.broker.engine.read.encoding import Encoders
from headgate.broker.engine.read.history import HistoryReader
from headgate.broker.engine.read.lane import LaneLogs
from headgate.broker.engine.read.live_first import LiveFirst
from headgate.broker.engine.read.path import ReadPath
from headgate.broker.engine.read.reader import StoreReader
from headgate.broker.engine.read.references import References
from headgate.broker.engine.read.units import with_recipe
from headgate.broker.engine.running import Running
from headgate.broker.engine.topics import Topics
from headgate.broker.engine.upkeep.deletion import Deletion
from headgate.broker.engine.upkeep.file_fold_process import LoopWorker, Worker
from headgate.broker.engine.write.path import WritePath
from headgate.broker.engine.write.replicas import Replicas, Replicator
from headgate.broker.log.buffers import BufferPool
from headgate.broker.log.claims import ProducerClaims
from headgate.broker.log.compression import Codec
from headgate.broker.log.tail import TailMemory
from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.threads import Pool, Pools
from headgate.broker.runtime.turns import Turns
from headgate.broker.store.interface import Store

logger = get_logger("engine")


class Engine:
    """One broker's topics and logs.

    Args:
        catalog: reports every change of the manifest to `applied`, once the engine has started.
        incarnation_id: 32 hex digits, never used before.
        fail: called once, on the loop, with the error that ends this broker. The broker may never ack again.
        encoders: encode history; closed with the engine. None: threads of this process encode it.
        folds: folds records to files; closed with the engine. None: the loop does it.
        create: makes a new cluster in an empty store.
    """

    def __init__(
        self,
        *,
        store: Store,
        catalog: Catalog,
        settings: Settings,
        clock: SteadyClock,
        incarnation_id: str,
        fail: Callable[[HeadgateError], None],
        encoders: Encoders | None = None,
        folds: Worker | None = None,
        create: bool = True,
        pools: Pools = Pool,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.turns = Turns(clock.monotonic)
        """Turns of the loop, shared by long requests."""
        self.incarnation_id = incarnation_id
        self.broker_id = settings.broker_id
        self._create = create
        self._folds = LoopWorker(store) if folds is None else folds
        self.cluster_id = ""
        self.leader_epoch = -1
        self._fail_process = fail
        self._lifecycle = Lifecycle(store, settings, clock, incarnation_id, catalog, self._failed)
        self.proof = LeadProof(
            store,
            clock,
            incarnation_id,
            fenced=lambda: self._lifecycle.fail(self._lifecycle.taken_over()),
            fail=self._lifecycle.fail,
        )
        """Proves that no other broker leads this broker's partitions."""
        self.claims, self.pool = ProducerClaims(), BufferPool(settings.tail_bytes // 4)
        """`pool`: large buffers, for tails and for frames that may become part of a tail."""
        self.tail_memory = TailMemory(self.pool, settings.tail_bytes)
        self.replicator = Replicator(lambda: self.running.wal)
        """Sends copies to this broker's follower."""
        self.replicas = Replicas()
        """Copies that this broker keeps for the leads that it follows."""
        self.writes = WritePath(self._lifecycle, self.replicator)
        # The records of a topic before it gets `ack=replicated` have no copies, so a new replication stream begins.
        self.leads = Leads(
            self._lifecycle, self.tail_memory, copies_wanted=self.replicator.end, windows_opened=self._windows_opened
        )
        self.logs = self.leads.logs
        """A slot for each partition of each topic, by topic name. The slot of a partition that this broker does not lead is
        None."""
        self.logs_by_id = self.leads.by_id
        """The same slots, by topic id."""
        self.heard_s = float("-inf")
        """The monotonic time, in seconds, of the last word of the cluster's leader, if this broker follows it."""
        self.lane: LaneLogs | None = None
        """What a lane reads; None on a broker."""
        if settings.role == LANE:
            self.lane = LaneLogs(self._lifecycle, self.tail_memory, lambda: clock.monotonic() - self.heard_s)
        self.fetched: Leads = self.leads if self.lane is None else self.lane
        """The partitions that fetches find here."""
        self.sent_to_lanes = self.history_out_bytes = 0
        """Readers that this broker has sent to lanes, and bytes of history that it has sent to clients, so far."""
        self.live_first = LiveFirst(clock.monotonic, settings.history_floor_bytes_per_s)
        """What history may take of this broker while live records are acked."""
        self.starts_lanes = False
        """True if this broker may start lanes beside it."""
        self.lane_wanted: Callable[[], None] = lambda: None
        """Called when a reader of history should go to a lane: starts those that may run beside this broker and do not."""
        self.references = References(store, settings.gate_allowed_prefixes, self.turns, pools)
        self.history = HistoryReader(
            self.references.locate,
            cache_bytes_max=settings.history_cache_bytes,
            parallel=settings.history_encoders,
            codec=Codec.named(settings.history_compression),
            encoders=encoders,
            pools=pools,
            led=lambda extent: with_recipe(extent, self.manifest, self.fetched.by_id),
            disk=DiskCache(settings.history_cache_dir, settings.history_cache_dir_bytes) if settings.history_cache_dir else None,
        )
        self.tables = Tables(store)
        self._reader = StoreReader(store, incarnation_id, settings.read_cache_bytes, self.history)
        self.running: Running
        """The WAL and the upkeep. `start` makes them."""
        self._producer_ids: Iterator[int] = iter(())
        # The parts' methods under the names that callers use. An attribute costs the hot path no second call.
        self.fail, self.cutoff_ms, self.begin_time = self._lifecycle.fail, self._lifecycle.cutoff_ms, self._lifecycle.begin_time
        writes = self.writes
        self.append, self.append_parsed, self.append_marker = writes.append, writes.append_parsed, writes.append_marker
        self.on_acked, self.on_durable, self.durable = writes.on_acked, writes.on_durable, writes.durable
        reads = ReadPath(self._lifecycle, self._reader, self.proof)
        self.read, self.read_tail, self.check_range, self.confirm = reads.read, reads.read_tail, reads.check_range, reads.confirm
        self.offset_for_timestamp, self.max_timestamp = reads.offset_for_timestamp, reads.max_timestamp
        self.epoch_end, self.find_unreadable = reads.epoch_end, reads.find_unreadable
        topics = Topics(self._lifecycle, self.leads, self.turns, lambda: self.running.sweeper.wake())
        self.topics, self.topic, self.topic_by_id = topics.topics, topics.topic, topics.topic_by_id
        self.partition, self.lead, self.is_on_its_way = topics.partition, topics.lead, topics.is_on_its_way
        self.brokers, self.lanes = topics.brokers, topics.lanes
        self.hold, self.drop_holds = topics.hold, topics.drop_holds
        self.create_topic, self.create_topics = topics.create_topic, topics.create_topics
        self.delete_topic, self.delete_topics = topics.delete_topic, topics.delete_topics
        self.create_partitions, self.alter_topic_config = topics.create_partitions, topics.alter_topic_config
        self.configs = BrokerConfigs(self._lifecycle, self.leads)
        deletion = self._deletion = Deletion(self._lifecycle, self._reader, lambda: self.running.sweeper.wake())
        self.delete_records, self.delete_below = deletion.delete_records, deletion.delete_below
        self.cut_offset, self.skip_records = deletion.cut_offset, deletion.skip_records
        self.meters = Meters(lambda: self.manifest.quotas, clock.monotonic, lambda: len(self.brokers()))
        """What this broker's clients use of their quotas."""
        self.set_log_starts, self.parse_config, self.all_logs = deletion.set_log_starts, self.leads.parse_config, self.leads.all

    @property
    def manifest(self) -> Manifest:
        return self._lifecycle.catalog.manifest

    @property
    def failed(self) -> HeadgateError | None:
        """The error that ended this broker, or None."""
        return self._lifecycle.failed

    @property
    def ready(self) -> bool:
        """True from start until close."""
        return self._lifecycle.ready

    @property
    def started(self) -> bool:
        """True once the engine has been ready, also after close."""
        return self._lifecycle.started

    @property
    def stalled(self) -> HeadgateError | None:
        """The reason why the WAL makes no progress at the moment; None if it does."""
        return self.running.wal.stalled if self._lifecycle.ready else None

    @property
    def wal_batches(self) -> tuple[int, int]:
        """(number of batches handed to the WAL, number of durable batches), since the start."""
        return self.running.wal.appended_batches, self.running.wal.durable_batches

    @property
    def batches_refused(self) -> int:
        """Number of batches that were refused because of their records. Batches with a wrong header are not counted."""
        return self.writes.batches_refused

    @property
    def batches_unreadable(self) -> int:
        """Number of stored batches that consumers cannot read. The broker finds them when it folds chunks."""
        return self.running.sweeper.batches_unreadable

    @property
    def units_stuck(self) -> int:
        """Units of adopted files that this broker could not fold at its last attempt."""
        return self.running.offline.adopted.units_stuck

    @property
    def controller_id(self) -> int:
        """The id of the broker that leads the cluster."""
        leader = self.manifest.incarnations.get(self.manifest.leader)
        return self.broker_id if leader is None else leader.broker_id

    # -- life

    async def start(self, recovered_records: int = 0) -> None:
        """Lead the partitions that the manifest gives to this incarnation. The incarnation is open in the manifest.

        Args:
            recovered_records: number of records found in the tails of the incarnations that this broker replaced; only for the
                log.
        """
        self.leader_epoch = self.manifest.incarnations[self.incarnation_id].leader_epoch
        # A leader epoch is never given twice. So ids that are made from epochs are never given twice either. An epoch has 31 bits,
        # an id 63.
        self._producer_ids = iter(range(self.leader_epoch << 32, self.leader_epoch + 1 << 32))
        started = self.clock.monotonic()
        self.running = Running(self._lifecycle, self.leads, self.writes, self._deletion, self._folds)
        self.resign = self.running.handover.resign
        self.running.start()
        self._lifecycle.begin()
        self.configs.follow()
        self._sync()
        await self.fetched.openings.settled()
        logger.info(
            "engine_open",
            cluster=self.cluster_id,
            incarnation=self.incarnation_id,
            leader_epoch=self.leader_epoch,
            topics=len(self.logs),
            segments=len(self.leads.segments()),
            recovered_records=recovered_records,
            seconds=round(self.clock.monotonic() - started, 3),
        )

    def applied(self, edits: Sequence[Edit]) -> None:
        """Make the served state agree with the manifest, after the manifest has taken these edits."""
        if not self._lifecycle.started:
            return
        for edit in edits:
            match edit:
                case AddChunks(incarnation_id, chunks, _) if incarnation_id == self.incarnation_id and chunks:
                    self.running.checkpointer.follow(chunks)
                case SealIncarnation(incarnation_id) if incarnation_id == self.incarnation_id and self._lifecycle.ready:
                    self._lifecycle.fail(self._lifecycle.taken_over())
                case SealIncarnation(incarnation_id) if incarnation_id != self.incarnation_id:
                    self.replicas.forget(incarnation_id)
                    self.sweep_sealed()
                case AlterQuotas():
                    self.meters.changed()
                case SetBrokerConfig():
                    self.configs.follow()
        self.leads.applied(edits)
        if self.lane is not None:
            self.lane.applied(edits)

    def _sync(self) -> None:
        self.leads.sync()
        if self.lane is not None:
            self.lane.sync()

    def replaced(self) -> None:
        """Called when the catalog has loaded a newer manifest. The manifest may be newer by any number of edits."""
        mine = self.manifest.incarnations.get(self.incarnation_id)
        if mine is None or mine.sealed:
            if self._lifecycle.ready:
                self._lifecycle.fail(self._lifecycle.taken_over())
            return
        for lead in self.replicas.leads:
            known = self.manifest.incarnations.get(lead)
            if known is None or known.sealed:
                self.replicas.forget(lead)
        chunks = self.manifest.chunks[self.incarnation_id]
        self.running.checkpointer.follow([chunks[number] for number in sorted(chunks)])
        self._sync()
        self.meters.changed()
        self.configs.follow()

    def sweep_sealed(self) -> None:
        """Soon delete the unused prepared chunks of sealed incarnations and the leftovers of failed recoveries."""
        self.running.sweeper.sweep_sealed()

    async def identify(self) -> None:
        """Read or write the store's identity, and set `cluster_id`. Raises as `identity.identify`."""
        settings, fresh_id = self.settings, uuid.UUID(hex=self.incarnation_id).hex[:22]
        self.cluster_id = await identify(
            self.store,
            name=settings.cluster_name,
            expected_id=settings.cluster_id,
            create=self._create,
            fresh_id=fresh_id,
            now_ms=self.clock.now_ms(),
        )

    async def close(self) -> None:
        """Make all accepted records durable, list them in the manifest and seal this incarnation. Then the next start has
        nothing to recover."""
        if not self._lifecycle.ready:
            return
        await self.leads.openings.settled()
        self._lifecycle.end()
        await self.proof.close()
        await self._reader.close()
        await self.history.close()
        await self.references.close()
        await self.running.close()
        self.leads.openings.stop()
        self.running.handover.stop()
        mine = self.manifest.incarnations.get(self.incarnation_id)  # None: other brokers have already cleaned up after this one
        logger.info("engine_closed", incarnation=self.incarnation_id, sealed=mine is None or mine.sealed)

    def _windows_opened(self, logs: Sequence[PartitionLog]) -> None:
        self.writes.windows_opened(logs)
        if any(log.windows.first_waiting() for log in logs):
            self.history.warm(reads=False)

    def _failed(self, error: HeadgateError) -> None:
        self.proof.end()
        self._fail_process(error)

    async def set_follower(self, follower: Follower) -> None:
        """Write into the manifest which broker holds copies of this broker's acked records. Raises as `Catalog.commit`."""
        await self._lifecycle.catalog.commit(SetFollower(self.incarnation_id, follower))

    async def change_access(self, *edits: AccessEdit | AlterQuotas) -> None:
        """Change users, permissions or quotas. Raises as `Catalog.commit`."""
        await self._lifecycle.catalog.commit(*edits)

    async def allocate_producer_id(self) -> int:
        """A producer id that this cluster has never given before."""
        return next(self._producer_ids)
