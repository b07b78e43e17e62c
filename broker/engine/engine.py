"""The data plane of one broker behind one interface. The Kafka handlers, gRPC and the group coordinator call it.

Everything here runs on the event loop's thread. `append` is synchronous and cheap: it checks a batch, assigns its offsets,
copies it into the partition's tail and hands it to the WAL. The batch becomes visible and is acked only after the WAL has
reported it as durable.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from headgate.broker.cluster import downtime
from headgate.broker.cluster.admission import taken_over
from headgate.broker.cluster.gates import OFFSET_MAX
from headgate.broker.cluster.manifest import (
    ROOM,
    AddChunks,
    CreateTopic,
    DeleteTopic,
    Edit,
    Follower,
    Incarnation,
    Manifest,
    OpenIncarnation,
    SealIncarnation,
    SealSegment,
    SetFollower,
    SetLogStart,
    SetPartitions,
    SetTopicConfig,
    SkipRecords,
    Topic,
)
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.cluster.succession import lead_everything
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.cluster.topics import (
    NewTopic,
    TopicLimits,
    check_new_topics,
    check_partitions,
    check_room,
    lots,
    partition_count,
)
from headgate.broker.engine import keys
from headgate.broker.engine.catalog import Catalog, DeposedError, LocalCatalog
from headgate.broker.engine.identity import identify
from headgate.broker.engine.partition.leads import INSTALL_PARTITIONS_MAX, Leads
from headgate.broker.engine.partition.log import Appended, PartitionLog, Pending
from headgate.broker.engine.partition.producers import encode_states
from headgate.broker.engine.partition.windows import NOBODY
from headgate.broker.engine.proof import LeadProof
from headgate.broker.engine.read import lookup
from headgate.broker.engine.read.encoding import Encoders
from headgate.broker.engine.read.history import HistoryReader
from headgate.broker.engine.read.reader import Reader
from headgate.broker.engine.read.references import References
from headgate.broker.engine.read.skip import Checked, find_unreadable, whole_batches
from headgate.broker.engine.upkeep.recovery import recover, sweep_leftovers
from headgate.broker.engine.upkeep.retention import Sweeper
from headgate.broker.engine.write.checkpoint import Checkpointer, Rolled
from headgate.broker.engine.write.replicas import Replicas, Replicator
from headgate.broker.engine.write.wal import AppendWal, DurableCallback, InlineWal, Wal
from headgate.broker.engine.write.wal_group import GroupWriter
from headgate.broker.engine.write.wal_put import PutWal
from headgate.broker.engine.write.wal_watch import WalWatch
from headgate.broker.log.batch import (
    CODEC_MAX,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    check,
    parse,
)
from headgate.broker.log.buffers import BufferPool
from headgate.broker.log.check import ANY_TIME, RecordError, Source, Times, check_all, check_sample
from headgate.broker.log.compression import Codec
from headgate.broker.log.crc import crc32c
from headgate.broker.log.tail import TailMemory
from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import (
    ClosedError,
    CorruptError,
    FencedError,
    HeadgateError,
    InvalidError,
    Reason,
    RetryError,
)
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import outlast, watch
from headgate.broker.runtime.threads import Pool, Pools
from headgate.broker.runtime.turns import Turns
from headgate.broker.store.interface import Store
from headgate.broker.store.open import PRIVATE_URLS

log = get_logger("engine")

RESIGN_RETRY_S = 0.2
ALTER_TRIES = 100
ALTER_PAUSE_S = 0.02
"""Pause, in seconds, before the broker tries again to change a topic's settings that another broker has just changed. With
`ALTER_TRIES`, the broker tries for about two seconds."""
TAKE_OVER_TRIES = 20
"""Attempts of a starting broker to take over the store. A broker that is being replaced may still edit the manifest between its
fence and its next write; each such edit costs one attempt."""
SEAL_TRIES = 10
"""Attempts of a closing broker to seal its segments and its incarnation."""
SWEEP_S = 2.0
"""Longest time, in seconds, that a closing broker deletes its leftovers. The next leader deletes the rest."""
STALL_GRACE_S = 5.0
"""Seconds that writers wait for a store that does not answer. After that, the broker refuses new batches with a retriable error."""
CHECKPOINT_BYTES_MAX = 64 << 20
"""Largest number of bytes in complete chunks that the manifest does not list yet. It bounds the bytes that the next start must
read."""
CHUNK_MS = 3600 * 1000
"""Greatest age, in ms, of an incomplete chunk with records. Then the WAL completes the chunk, so that retention by time can
delete it."""


class Held(NamedTuple):
    """Offsets of a partition that its lead reserves for a gate."""

    partition: int
    base_offset: int
    segment_id: int
    leader_epoch: int


class Engine:
    """One broker's topics and logs.

    Args:
        incarnation_id: 32 hex digits, never used before.
        fail: called once, on the loop, with the error that ends this broker. The broker may never ack again.
        encoders: encode history; closed with the engine. None: threads of this process encode it.
        create: makes a new cluster in an empty store.
    """

    def __init__(
        self,
        *,
        store: Store,
        settings: Settings,
        clock: SteadyClock,
        incarnation_id: str,
        fail: Callable[[HeadgateError], None],
        encoders: Encoders | None = None,
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
        self.cluster_id = ""
        self.leader_epoch = -1
        self.failed: HeadgateError | None = None
        self.ready = False
        """True from start until close."""
        self.started = False
        """True once the engine has been ready, also after close."""
        self._following = False
        self.leads = Leads(self)
        self.logs = self.leads.logs
        """A slot for each partition of each topic, by topic name. The slot of a partition that this broker does not lead is
        None."""
        self.logs_by_id = self.leads.by_id
        """The same slots, by topic id."""
        self.batches_refused = 0
        """Number of batches that were refused because of their records. Batches with a wrong header are not counted."""
        self.pool = BufferPool(settings.tail_bytes // 4)
        """Large buffers, for tails and for frames that may become part of a tail."""
        self.tail_memory = TailMemory(self.pool, settings.tail_bytes)
        self._fail_process = fail
        self._catalog: Catalog = LocalCatalog(
            store,
            incarnation_id,
            applied=self.applied,
            complete=lead_everything(incarnation_id),
            fail=self._commit_failed,
        )
        self.references = References(store, settings.gate_allowed_prefixes, self.turns, pools)
        self.history = HistoryReader(
            self.references.locate,
            cache_bytes_max=settings.history_cache_bytes,
            parallel=settings.history_encoders,
            codec=Codec.named(settings.history_compression),
            encoders=encoders,
            pools=pools,
        )
        self._reader = Reader(store, incarnation_id, settings.read_cache_bytes, self.history)
        self._chunk_logs: dict[int, dict[PartitionLog, None]] = {}
        self.replicator = Replicator(lambda: self._wal)
        """Sends copies to this broker's follower."""
        self.replicas = Replicas()
        """Copies that this broker keeps for the leads that it follows."""
        self.proof = LeadProof(
            store,
            clock,
            incarnation_id,
            fenced=lambda: self.wal_failed(self._taken_over()),
            fail=self.wal_failed,
        )
        """Proves that no other broker leads this broker's partitions."""
        self._must_be_durable = False
        """True if a batch that needs the store's confirmation was appended since the last `on_acked`. For such a batch, the
        follower's confirmation is not enough."""
        self._wal: Wal
        self._watch: WalWatch
        self._checkpointer: Checkpointer
        self._sweeper: Sweeper
        self._producer_ids: Iterator[int] = iter(())
        self._topics_lock = asyncio.Lock()
        self._resigning: set[asyncio.Task[None]] = set()

    # -- life

    async def open(self) -> None:
        """Serve alone: fence all earlier brokers, recover their acked records, and lead all partitions.

        Raises:
            FatalError: the store is not usable, or belongs to another cluster. CorruptError: the store is damaged. RetryError:
                the store does not answer. FencedError: another broker took over meanwhile.
        """
        await self.identify()
        catalog = self._catalog
        assert isinstance(catalog, LocalCatalog)
        await self.start(catalog, await self._take_over(catalog))

    async def _take_over(self, catalog: LocalCatalog) -> int:
        """Open this incarnation and seal all others. Returns the number of recovered records.

        The earlier broker may still edit the manifest meanwhile, so this may take several attempts.
        """
        await catalog.load()
        for attempt in range(TAKE_OVER_TRIES):
            version, known = catalog.version, set(self.manifest.incarnations)
            try:
                return await self._open_incarnation(catalog, attempt)
            except (DeposedError, InvalidError, CorruptError) as error:
                await catalog.load()
                if catalog.version == version:
                    raise  # the manifest has not changed: a second attempt would fail in the same way
                log.warning("recovery_overtaken", error=error.message)
                if not self.manifest.incarnations.keys() <= known:
                    raise FencedError(Reason.FENCED, "another broker took over this store while this one started") from error
        raise RetryError(Reason.STORE_UNAVAILABLE, "the manifest changes faster than it can be taken over")

    async def _open_incarnation(self, catalog: LocalCatalog, attempt: int) -> int:
        lost = [incarnation for incarnation in self.manifest.incarnations.values() if not incarnation.sealed]
        epoch = self.manifest.leader_epoch + 1
        recovered = (await recover(self.store, self.manifest, lost, keys.maker(epoch, self.incarnation_id, attempt))).whole()
        noted = self.begin_time(downtime.newest_ms(self.manifest, recovered.edits))
        mine = Incarnation(
            id=self.incarnation_id,
            broker_id=self.broker_id,
            leader_epoch=epoch,
            opened_ms=self.clock.now_ms(),
        )
        await catalog.commit(*recovered.edits, *noted, OpenIncarnation(mine))
        return recovered.records

    def begin_time(self, noted_ms: int) -> list[Edit]:
        """Make the clock agree with the time before this start. For a broker that starts without a leader to ask.

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
            log.warning(
                "downtime_noted", since_ms=noted_ms, until_ms=self.clock.started_ms, effect="this time does not count for retention"
            )
        return edits

    def cutoff_ms(self, age_ms: int) -> int | None:
        """The cutoff in wall-clock ms: records appended before it are older than `age_ms`. None while the clock is in doubt."""
        if self.clock.doubt is not None:
            return None
        return downtime.cutoff_ms(self.clock.now_ms(), age_ms, self.manifest.downtimes)

    async def start(self, catalog: Catalog, recovered_records: int = 0) -> None:
        """Lead the partitions that the manifest gives to this incarnation. The incarnation is open in the manifest, and
        `catalog` reports every change to `applied`.

        Args:
            recovered_records: number of records found in the tails of the incarnations that this broker replaced; only for the
                log.
        """
        self._catalog = catalog
        self.leader_epoch = self.manifest.incarnations[self.incarnation_id].leader_epoch
        # A leader epoch is never given twice. So ids that are made from epochs are never given twice either. An epoch has 31 bits,
        # an id 63.
        self._producer_ids = iter(range(self.leader_epoch << 32, self.leader_epoch + 1 << 32))
        started = self.clock.monotonic()
        self._start_wal()
        self.ready = self.started = self._following = True
        self.leads.sync()
        await self.leads.settled()
        log.info(
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
        if not self._following:
            return
        for edit in edits:
            match edit:
                case AddChunks(incarnation_id, chunks, _) if incarnation_id == self.incarnation_id and chunks:
                    self._checkpointer.follow(chunks)
                case SealIncarnation(incarnation_id) if incarnation_id == self.incarnation_id and self.ready:
                    self.wal_failed(self._taken_over())
                case SealIncarnation(incarnation_id) if incarnation_id != self.incarnation_id:
                    self.replicas.forget(incarnation_id)
                    self.sweep_sealed()
        self.leads.applied(edits)

    def _taken_over(self) -> FencedError:
        return taken_over(self.manifest, self.incarnation_id, self.settings.broker_id)

    def replaced(self) -> None:
        """Called when the catalog has loaded a newer manifest. The manifest may be newer by any number of edits."""
        mine = self.manifest.incarnations.get(self.incarnation_id)
        if mine is None or mine.sealed:
            if self.ready:
                self.wal_failed(self._taken_over())
            return
        for lead in self.replicas.leads:
            known = self.manifest.incarnations.get(lead)
            if known is None or known.sealed:
                self.replicas.forget(lead)
        chunks = self.manifest.chunks[self.incarnation_id]
        self._checkpointer.follow([chunks[number] for number in sorted(chunks)])
        self.leads.sync()

    @property
    def sweeps(self) -> bool:
        """True if this broker cleans up after sealed incarnations: it is the leader, or it is alone."""
        return self.manifest.leader in ("", self.incarnation_id)

    @property
    def maker_epoch(self) -> int:
        """The leader epoch for objects that this broker makes in the WAL of other incarnations (`keys.maker`), or in its own
        WAL."""
        return self.manifest.term_epoch if self.manifest.leader == self.incarnation_id else self.leader_epoch

    def sweep_sealed(self) -> None:
        """Soon delete the unused prepared chunks of sealed incarnations and the leftovers of failed recoveries."""
        self._sweeper.sweep_sealed()

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

    def _start_wal(self) -> None:
        settings, loop = self.settings, asyncio.get_running_loop()
        if self.store.appender is not None:
            # A private store has no disk, so the loop never waits for a write.
            in_memory = self.store.url in PRIVATE_URLS
            writer = GroupWriter(
                appender=self.store.appender,
                incarnation_id=self.incarnation_id,
                synced=settings.wal_fsync == "always" and not in_memory,
                chunk_bytes=settings.wal_chunk_bytes,
                chunk_ms=CHUNK_MS,
                clock=self.clock,
            )
            self._wal = (InlineWal if in_memory else AppendWal)(writer, loop, self)
        else:
            self._wal = PutWal(
                store=self.store,
                incarnation_id=self.incarnation_id,
                flush_bytes=settings.wal_flush_bytes,
                flush_interval_ms=settings.wal_flush_interval_ms,
                puts_max=settings.wal_inflight_puts_max,
                clock=self.clock,
                loop=loop,
                owner=self,
            )
        self._checkpointer = Checkpointer(
            store=self.store,
            catalog=self._catalog,
            incarnation_id=self.incarnation_id,
            logs=self.leads.all,
            listed=lambda: self._sweeper.chunks_listed(),
            fail=self.wal_failed,
            chunks_max=settings.wal_checkpoint_chunks,
            bytes_max=CHECKPOINT_BYTES_MAX,
            interval_s=settings.wal_checkpoint_interval_ms / 1000,
        )
        self._sweeper = Sweeper(self, self._catalog, self._wal, self._checkpointer)
        self._wal.start()
        self._watch = WalWatch(self._wal, loop)
        self._checkpointer.start()
        self._sweeper.start()

    async def resign(self, segment_ids: Iterable[int]) -> None:
        """Hand segments over: refuse new records, make the accepted records durable, list them in the manifest, and seal the
        segments.

        Only the writers of these segments wait meanwhile. A begun handover cannot be cancelled, also when the caller ends (the
        stream to the leader that asked for it). The broker tries until it succeeds or until the broker ends.

        Raises FencedError: another broker replaced this one. ClosedError: this broker closes.
        """
        task = asyncio.create_task(self._resign(set(segment_ids)), name="resign")
        self._resigning.add(task)
        task.add_done_callback(self._resigning.discard)
        # The partitions of these segments take no records any more. If the task fails, this broker must end, so that another broker
        # leads them.
        watch(task, "handing over", self.wal_failed)
        await outlast(task)

    async def _resign(self, wanted: set[int]) -> None:
        await self.leads.settled()
        segments = [segment for segment in self.leads.segments() if segment.id in wanted]
        logs = [log for segment in segments for log in self.leads.of_segment(segment)]
        refusal = RetryError(Reason.NOT_LEADER, "the partition is being handed over to another broker")
        for partition in logs:
            partition.refuse(refusal)
        await self.durable()
        await self._wal.roll()
        while self.failed is None:
            try:
                await self._seal(segments)
                return
            except (RetryError, InvalidError) as error:
                # Either the leader does not answer, or a topic was deleted and this broker has not heard of it yet.
                log.warning("resign_waits", segments=len(segments), error=error.message)
                await asyncio.sleep(RESIGN_RETRY_S)

    async def _seal(self, segments: Iterable[SegmentInfo], *more: Edit) -> None:
        """Seal segments. All their records are durable and in complete chunks."""
        seals: list[Edit] = []
        origins: set[str] = set()
        for segment in segments:
            if segment.id not in self.manifest.segments:
                continue  # the topic was deleted, or an earlier attempt succeeded
            if segment.id in self.leads.damaged:
                # It has no record of its own, and the state of its producers is still the damaged object. The next lead waits for
                # it, too. One edit names one object: a segment with several stays open, and a recovery seals it.
                if len(segment.origins) == 1:
                    self.leads.abandon(segment)
                    seals.append(SealSegment(segment.id, list(segment.base_offsets), segment.origins[0]))
                continue
            logs = self.leads.of_segment(segment)
            assert len(logs) == len(segment.partitions), "a segment is sealed once it is open"
            assert self._checkpointer.lists(logs), "a segment is sealed with all of its chunks"
            key = keys.segment_producers(self.incarnation_id, str(segment.id))
            await self.store.put(key, await encode_states(logs))
            seals.append(SealSegment(segment.id, [partition.high_watermark for partition in logs], key))
            origins.update(segment.origins)
        await self._checkpointer.list_all(*seals, *more)
        for origin in origins - self.manifest.producers_objects():
            await self.store.delete(origin)

    async def close(self) -> None:
        """Make all accepted records durable, list them in the manifest and seal this incarnation. Then the next start has
        nothing to recover."""
        if not self.ready:
            return
        await self.leads.settled()
        self.ready = False
        await self.proof.close()
        await self.history.close()
        await self.references.close()
        self._watch.close()
        # Close both together. The sweeper may wait for the WAL, and the WAL may wait for a store that does not answer, until
        # `close` ends it.
        await asyncio.gather(self._sweeper.close(), self._wal.close())
        await asyncio.sleep(0)
        await self._checkpointer.close()
        # If the WAL is incomplete, the broker must not seal: sealing would drop the records that the manifest does not list. The
        # next start recovers them instead.
        if self.failed is None and self._wal.complete:
            await self._seal_all()
            if self.sweeps:
                # If another broker leads, it may be folding these chunks already. Only that broker knows which objects it has just
                # made.
                try:
                    async with asyncio.timeout(SWEEP_S):
                        await sweep_leftovers(self.store, self.manifest, self.incarnation_id)
                except (TimeoutError, RetryError) as error:
                    log.info("leftovers_kept", error=str(error) or f"more than {SWEEP_S:g} s of work")
        self.leads.stop()
        for task in self._resigning:
            task.cancel()
        mine = self.manifest.incarnations.get(self.incarnation_id)  # None: other brokers have already cleaned up after this one
        log.info("engine_closed", incarnation=self.incarnation_id, sealed=mine is None or mine.sealed)

    async def _seal_all(self) -> None:
        """Seal all segments and this incarnation. The WAL must be closed."""
        for attempt in range(SEAL_TRIES):
            await self.leads.settled()
            try:
                segments = self.leads.segments()
                is_whole = not any(one.id in self.leads.damaged and len(one.origins) > 1 for one in segments)
                await self._seal(segments, *([SealIncarnation(self.incarnation_id)] if is_whole else []))
                return
            except FencedError as error:
                # This incarnation is sealed already. Either this broker sealed it, and the answer was lost with a leader that also
                # ended. Or another broker took this one for lost. In both cases all acked records are durable, and the broker that
                # seals lists all of them.
                log.info("sealed_already", error=error.message)
                return
            except InvalidError as error:
                # Either the leader has given this broker another segment, or a topic was deleted. This broker has not heard of it
                # yet.
                if attempt == SEAL_TRIES - 1:
                    raise
                log.info("seal_waits", error=error.message)
                await asyncio.sleep(RESIGN_RETRY_S)

    # -- what the WAL reports

    def wal_committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        now_ms = self.clock.now_ms()
        logs = self._chunk_logs.setdefault(chunk_number, {})
        wake: dict[PartitionLog, None] = {}
        for partition, run in groupby(group, itemgetter(0)):
            logs[partition] = None
            if partition.waiters:
                wake[partition] = None
            position = partition.committed(run, chunk_number, position, now_ms)
        for partition in wake:
            partition.wake_live()

    def wal_rolled(
        self, number: int, size_bytes: int, appended_ms: int, sections: dict[PartitionLog, tuple[int, int]] | None
    ) -> None:
        self._checkpointer.add(Rolled(number, size_bytes, appended_ms, sections, self._chunk_logs.pop(number, {})))

    def _commit_failed(self, error: HeadgateError) -> None:
        if self.ready:  # before that, `open` raises the error; after that, `close` does
            self.wal_failed(error)

    def wal_failed(self, error: HeadgateError) -> None:
        if isinstance(error, ClosedError) or self.failed is not None:
            return
        self.failed = error
        self.proof.end()
        log.error("engine_failed", reason=error.reason.value, error=error.message)
        self._fail_process(error)

    def copies_wanted(self) -> None:
        """Called by `leads` when a topic gets `ack=replicated`. Its earlier records have no copies, so a new replication stream
        begins."""
        self.replicator.end()

    async def set_follower(self, follower: Follower) -> None:
        """Write into the manifest which broker holds copies of this broker's acked records. Raises as `Catalog.commit`."""
        await self._catalog.commit(SetFollower(self.incarnation_id, follower))

    def windows_opened(self, logs: Sequence[PartitionLog]) -> None:
        """Called by `leads` when these logs have new windows. Records before a window may still be on their way to the store.
        Once they are durable, the end of the log moves past the window."""

        def step(error: HeadgateError | None) -> None:
            for partition in logs:
                if error is None and partition.closed is None:
                    partition.step()

        if any(partition.high_watermark < partition.next_offset for partition in logs):
            self._wal.on_durable(step)

    def hold(self, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int], term: int) -> list[Held]:
        """Reserve the next offsets of some partitions for a gate, all or none. Live records get offsets after them.

        Args:
            rows: number of offsets, by partition.
            term: the epoch of the leader that asks. When another leader follows before the gate is open, the gate is never
                opened.

        Raises:
            RetryError(NOT_LEADER): this broker does not lead all of them. InvalidError: the topic does not exist.
        """
        topic = self.topic_by_id(topic_id)
        logs = {number: self.partition(topic, number) for number in rows}
        for partition in logs.values():
            if partition.refusal is not None:
                raise partition.refusal
            if partition.next_offset + rows[partition.number] > OFFSET_MAX:
                raise InvalidError(Reason.INVALID_REQUEST, f"offsets end at 2^62. partition=`{partition.number}`")
        held: list[Held] = []
        for number, partition in logs.items():
            base_offset, _ = partition.hold(gate_id, rows[number], term)
            held.append(Held(number, base_offset, partition.segment_id, partition.leader_epoch))
        return held

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Release the offsets that were reserved for a gate. The gate will not be opened, so readers pass them."""
        for partition in self.logs_by_id.get(topic_id, []):
            if partition is not None:
                partition.drop_holds(gate_id)

    # -- topics

    @property
    def manifest(self) -> Manifest:
        return self._catalog.manifest

    def topics(self) -> list[Topic]:
        return list(self.manifest.topics.values())

    def topic(self, name: str) -> Topic:
        topic = self.manifest.topics.get(name)
        if topic is None:
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist. topic=`{name}`")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic:
        topic = self.manifest.topics_by_id.get(topic_id)
        if topic is None:
            raise InvalidError(Reason.UNKNOWN_TOPIC_ID, f"no topic has this id. topic_id=`{topic_id}`")
        return topic

    def partition(self, topic: Topic, number: int) -> PartitionLog:
        logs = self.logs_by_id.get(topic.id)
        if logs is None or not 0 <= number < len(logs):
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"partition does not exist. topic=`{topic.name}` partition=`{number}`")
        partition = logs[number]
        if partition is None:
            raise RetryError(
                Reason.NOT_LEADER, f"this broker does not lead the partition. topic=`{topic.name}` partition=`{number}`"
            )
        return partition

    def lead(self, topic_id: uuid.UUID, number: int) -> tuple[Incarnation, int] | None:
        """The broker that leads a partition (this one or another) and its leader epoch. None while no broker leads it."""
        leads = self.manifest.leads.get(topic_id, ())
        segment = leads[number] if 0 <= number < len(leads) else None
        return None if segment is None else (self.manifest.incarnations[segment.incarnation_id], segment.leader_epoch)

    def is_on_its_way(self, topic_id: uuid.UUID, number: int) -> bool:
        """True if a partition that refuses records here is being handed over. Then no broker leads it at the moment, or the
        manifest still names this broker. `leads.next_change` tells when the caller should ask again."""
        if self.failed is not None or not self.ready:
            return False
        lead = self.lead(topic_id, number)
        return lead is None or lead[0].id == self.incarnation_id

    def brokers(self) -> list[Incarnation]:
        """The live brokers, by id. If a broker was restarted, the list has only its newest run.

        The last broker of a cluster stays in the list until it stops answering. A client that receives an empty list forgets all
        brokers that it knows, and librdkafka may then never look for one again (its issue 5301).
        """
        newest: dict[int, Incarnation] = {}
        for incarnation in self.manifest.incarnations.values():
            if not incarnation.sealed:
                newest[incarnation.broker_id] = incarnation
        if not newest and (mine := self.manifest.incarnations.get(self.incarnation_id)) is not None:
            return [mine]
        return [newest[broker_id] for broker_id in sorted(newest)]

    @property
    def controller_id(self) -> int:
        """The id of the broker that leads the cluster."""
        leader = self.manifest.incarnations.get(self.manifest.leader)
        return self.broker_id if leader is None else leader.broker_id

    def all_logs(self) -> Iterator[PartitionLog]:
        """The partitions that this broker leads."""
        return self.leads.all()

    async def create_topic(
        self, name: str, partitions: int | None, config: Mapping[str, str], *, validate_only: bool = False
    ) -> Topic:
        """Create one topic; see `create_topics`. Raises the error that the list would hold."""
        (created,) = await self.create_topics([NewTopic(name, partitions, config)], validate_only=validate_only)
        if isinstance(created, HeadgateError):
            raise created
        return created

    async def create_topics(self, asked: Sequence[NewTopic], *, validate_only: bool = False) -> list[Topic | HeadgateError]:
        """Create topics, many with one commit.

        Args:
            asked: the topics; every name at most once.

        Returns:
            For each the topic, or the error: an InvalidError (INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG,
            or POLICY_VIOLATION if the cluster would have too many partitions), or an error of `Catalog.commit`.
        """
        async with self._topics_lock:
            results: list[Topic | HeadgateError] = []
            try:
                await self._catalog.settle()
            except HeadgateError as error:
                return [error for _ in asked]
            turn = self.turns.begin()
            for lot in lots(max(one.partitions or self.settings.num_partitions, 1) for one in asked):
                created_ms = self.clock.now_ms()
                made = [
                    partitions
                    if isinstance(partitions, HeadgateError)
                    else Topic(
                        id=uuid.uuid4(), name=one.name, partitions=partitions, config=dict(one.config), created_ms=created_ms
                    )
                    for one, partitions in zip(
                        asked[lot], check_new_topics(self.manifest.topics, asked[lot], self._topic_limits), strict=True
                    )
                ]
                topics = [one for one in made if isinstance(one, Topic)]
                refused: dict[uuid.UUID, HeadgateError] = {}
                if not validate_only:
                    errors = await self._commit_each([CreateTopic(topic) for topic in topics])
                    refused = {topic.id: error for topic, error in zip(topics, errors, strict=True) if error is not None}
                results += [refused.get(one.id, one) if isinstance(one, Topic) else one for one in made]
                await turn.pause()
            if any(isinstance(one, Topic) and one.partitions > INSTALL_PARTITIONS_MAX for one in results) and not validate_only:
                await self.leads.opened()
            return results

    async def _commit_each(self, edits: Sequence[Edit]) -> list[HeadgateError | None]:
        """Commit edits that do not depend on each other, in one commit if all are valid. Returns for each edit its error, or
        None."""
        if not edits:
            return []
        try:
            await self._catalog.commit(*edits)
        except InvalidError as error:
            # Another broker has already made one of these changes. Commit one at a time, so that each edit gets its own answer.
            return [error] if len(edits) == 1 else [(await self._commit_each([edit]))[0] for edit in edits]
        except HeadgateError as error:
            return [error] * len(edits)
        return [None] * len(edits)

    @property
    def _topic_limits(self) -> TopicLimits:
        settings = self.settings
        return TopicLimits(settings.num_partitions, settings.partitions_per_topic_max, settings.partitions_max)

    def parse_config(self, topic: Topic) -> TopicConfig:
        """A topic's settings. Settings that the topic does not have come from this broker's settings."""
        return TopicConfig.parse({"max.message.bytes": str(self.settings.message_bytes_max), **topic.config})

    async def delete_topic(self, topic: Topic) -> None:
        """Delete one topic; see `delete_topics`. Raises the error that the list would hold."""
        (error,) = await self.delete_topics([topic])
        if error is not None:
            raise error

    async def delete_topics(self, topics: Sequence[Topic]) -> list[HeadgateError | None]:
        """Delete topics and their records, many with one commit. A topic that is created later with the same name gets another
        id.

        Returns:
            For each None, or the error: InvalidError(UNKNOWN_TOPIC_ID) if the topic was deleted before, or an error of
                `Catalog.commit`.
        """
        async with self._topics_lock:
            errors: list[HeadgateError | None] = []
            try:
                await self._catalog.settle()
            except HeadgateError as error:
                return [error for _ in topics]
            turn = self.turns.begin()
            for lot in lots(topic.partitions for topic in topics):
                errors += await self._commit_each([DeleteTopic(topic.id) for topic in topics[lot]])
                await turn.pause()
        self._sweeper.wake()
        return errors

    async def create_partitions(self, topic: Topic, total: int, *, validate_only: bool = False) -> Topic:
        """Give a topic more partitions.

        Raises:
            InvalidError: INVALID_PARTITIONS if `total` is not greater than the present number, POLICY_VIOLATION if the cluster
                would have too many.
        """
        async with self._topics_lock:
            await self._catalog.settle()
            topic = self.topic_by_id(topic.id)
            check_partitions(total, self._topic_limits)
            if total <= topic.partitions:
                raise InvalidError(
                    Reason.INVALID_PARTITIONS,
                    f"a topic's number of partitions can only grow. topic=`{topic.name}` has=`{topic.partitions}` asked=`{total}`",
                )
            check_room(partition_count(self.manifest.topics), total - topic.partitions, self._topic_limits)
            if validate_only:
                return topic
            await self._catalog.commit(SetPartitions(topic.id, total))
            return self.topic_by_id(topic.id)

    async def alter_topic_config(
        self, topic: Topic, config: Mapping[str, str] | Callable[[Topic], Mapping[str, str]], *, validate_only: bool = False
    ) -> Topic:
        """Replace a topic's overrides with `config`. Raises InvalidError(INVALID_CONFIG), RetryError.

        Args:
            config: the new overrides, or a function that makes them from the current topic. With a function, two concurrent
                changes never overwrite each other, also if two different brokers make them.
        """
        async with self._topics_lock:
            for _ in range(ALTER_TRIES):
                try:
                    return await self._alter_topic_config(topic.id, config, validate_only)
                except InvalidError as error:
                    if error.reason is not Reason.CHANGED_MEANWHILE:
                        raise
                await asyncio.sleep(ALTER_PAUSE_S)  # another broker's change has not reached this broker yet
        raise RetryError(Reason.NOT_READY, f"the topic's settings change faster than this broker hears of it. topic=`{topic.name}`")

    async def _alter_topic_config(
        self, topic_id: uuid.UUID, config: Mapping[str, str] | Callable[[Topic], Mapping[str, str]], validate_only: bool
    ) -> Topic:
        await self._catalog.settle()
        topic = self.topic_by_id(topic_id)
        made, was = (config(topic), topic.config) if callable(config) else (config, None)
        TopicConfig.parse(made)
        if int(made.get(ROOM, "0")) != topic.room:
            raise InvalidError(
                Reason.INVALID_CONFIG, f"a topic gets its room in front when it is created. key=`{ROOM}` has=`{topic.room}`"
            )
        if validate_only:
            return topic
        await self._catalog.commit(SetTopicConfig(topic_id, dict(made), was))
        return self.topic_by_id(topic_id)

    async def delete_records(self, partition: PartitionLog, before_offset: int) -> int:
        """Delete the records of one partition below `before_offset` (-1: the high watermark). Returns the new first offset.

        Raises as `cut_offset` and `delete_below`.
        """
        await self.delete_below({partition: self.cut_offset(partition, before_offset)})
        return partition.log_start

    def cut_offset(self, partition: PartitionLog, before_offset: int) -> int:
        """The new first offset of a log after its records below `before_offset` (-1: the high watermark) are deleted.

        Raises InvalidError(OFFSET_OUT_OF_RANGE) if that offset is negative or above the high watermark.
        """
        offset = partition.high_watermark if before_offset == -1 else before_offset
        if not 0 <= offset <= partition.high_watermark:
            raise self._out_of_range(partition, offset)
        return offset

    async def delete_below(self, offsets: Mapping[PartitionLog, int]) -> None:
        """Make records below these offsets permanently unreadable, in one edit. A thousand partitions cost as much as one."""
        starts = {partition: offset for partition, offset in offsets.items() if offset > partition.log_start}
        if starts:
            await self.set_log_starts(starts)
            self._sweeper.wake()

    async def set_log_starts(self, starts: Mapping[PartitionLog, int], *, by_age: bool = False) -> None:
        """Move the first readable offsets, durably, in one edit. `by_age`: retention by time asks for it."""
        by_topic: dict[uuid.UUID, dict[int, int]] = {}
        for partition, offset in starts.items():
            by_topic.setdefault(partition.topic.id, {})[partition.number] = offset
        edits: list[Edit] = [SetLogStart(topic_id, offsets, by_age) for topic_id, offsets in by_topic.items()]
        await self._catalog.commit(*edits)

    async def find_unreadable(self, partition: PartitionLog, first_offset: int, last_offset: int) -> Checked:
        """Batches that consumers cannot read. See `skip.find_unreadable`."""
        return await find_unreadable(self._reader, partition, first_offset, last_offset)

    async def skip_records(
        self, partition: PartitionLog, first_offset: int, last_offset: int, *, validate_only: bool = False
    ) -> tuple[int, int]:
        """Let readers pass the batches with these offsets, permanently. Skipping the same range again has no effect.

        Returns:
            The skipped range. It has only whole batches, so it may be larger than the range asked for. Raises as
            `skip.whole_batches`.
        """
        base_offset, end_offset = await whole_batches(self._reader, partition, first_offset, last_offset)
        if validate_only:
            return base_offset, end_offset
        await self._catalog.commit(SkipRecords(partition.topic.id, partition.number, base_offset, end_offset))
        log.warning(
            "records_skipped", topic=partition.topic.name, partition=partition.number, first=base_offset, last=end_offset - 1
        )
        self._sweeper.wake()
        return base_offset, end_offset

    async def allocate_producer_id(self) -> int:
        """A producer id that this cluster has never given before."""
        return next(self._producer_ids)

    # -- writing

    def append(
        self,
        partition: PartitionLog,
        batch: memoryview,
        *,
        now_ms: int | None = None,
        adopt: bytearray | None = None,
        source: Source | None = None,
    ) -> Appended:
        """Assign offsets to one batch and send it to the store. See `append_parsed`.

        Args:
            batch: exactly one RecordBatch v2.
            now_ms: the wall clock in ms, if the caller has just read it.
            adopt: the buffer that begins with the batch. It belongs to this request alone, and the broker may keep it instead of
                a copy.
            source: as for `append_parsed`.
        """
        size = len(batch)
        header = parse(batch, 0, size)
        if now_ms is None:
            now_ms = self.clock.now_ms()
        return Appended._make(self.append_parsed(partition, header, batch, 0, size, now_ms, adopt, source))

    def append_parsed(
        self,
        partition: PartitionLog,
        header: tuple[int, ...],
        buffer: memoryview,
        position: int,
        size: int,
        now_ms: int,
        adopt: bytearray | None,
        source: Source | None,
    ) -> tuple[int, int, int]:
        """Assign offsets to one batch and send it to the store.

        Args:
            header: the batch's header, parsed by `log.batch.parse`.
            buffer: contains the batch: `size` bytes from `position`, and nothing else in these bytes.
            now_ms: the wall clock in ms.
            adopt: the buffer behind the view `buffer`, if it belongs to this request alone. The broker may keep it instead of a
                copy.
            source: the sender of the batch, if a sample of its records is due (`log/check.py`); else None.

        Returns:
            The fields of `Appended`. They are certain once `on_acked` has called back. Before that the caller must not send
            them.

        Raises:
            InvalidError: the batch is wrong; nothing was changed. RetryError: the batch cannot be stored now.
        """
        wal = self._wal
        if wal.stalled is not None or self.failed is not None or partition.refusal is not None:
            self._refuse(partition)
        config = partition.config
        (
            _, length, _, magic, crc, attributes, last_delta,
            first_ms, timestamp_max, producer_id, producer_epoch, sequence, records,
        ) = header  # fmt: skip
        # Nearly all batches pass this test. For the others, `check` raises the exact error, if there is one.
        if not (
            magic == 2
            and length + LENGTH_OVERHEAD_BYTES == size
            and records * 7 + HEADER_BYTES <= size <= config.max_message_bytes
            and crc32c(buffer[position + CRC_START : position + size]) == crc
            and 0 <= attributes <= CODEC_MAX
            and last_delta == records - 1 >= 0
            and (producer_id < 0 or (producer_epoch >= 0 and sequence >= 0))
        ):
            check(header, buffer, position, size, config.max_message_bytes)
        if timestamp_max > now_ms + config.timestamp_after_max_ms or first_ms < now_ms - config.timestamp_before_max_ms:
            self._check_timestamps(partition, header, now_ms)
        if (source is not None and source.due_in <= 0) or config.checks_all:
            self._check_records(partition, header, buffer[position : position + size], now_ms, source)
        if producer_id >= 0:
            duplicate = partition.admit(producer_id, producer_epoch, sequence, records, now_ms)
            if duplicate is not None:
                self._must_be_durable = True  # the first append may be older than the topic's copies
                return duplicate[0], duplicate[1] if config.log_append_time else -1, partition.log_start
        pending = partition.assign(buffer, position, size, records, timestamp_max, now_ms, adopt)
        wal.append(pending)
        if config.replicated:
            self.replicator.append(partition.stream, pending[1], now_ms)
        else:
            self._must_be_durable = True
        return pending[2], now_ms if config.log_append_time else -1, partition.log_start

    def _refuse(self, partition: PartitionLog) -> None:
        if partition.refusal is not None:
            raise partition.refusal
        if self.failed is not None:
            raise RetryError(Reason.NOT_LEADER, f"this broker stopped leading the partition: {self.failed.message}")
        stalled = self._wal.stalled
        if stalled is None:
            return
        if stalled.reason is Reason.STORE_FULL or asyncio.get_running_loop().time() - self._wal.stalled_since > STALL_GRACE_S:
            raise RetryError(stalled.reason, f"records cannot be stored at the moment: {stalled.message}")

    def _check_timestamps(self, partition: PartitionLog, header: tuple[int, ...], now_ms: int) -> None:
        if partition.config.log_append_time or self.clock.doubt is not None:
            return  # a clock that may be wrong proves nothing about the producer's
        raise InvalidError(
            Reason.INVALID_TIMESTAMP,
            f"record timestamp is out of the topic's range. topic=`{partition.topic.name}` first=`{header[7]}` "
            f"greatest=`{header[8]}` now=`{now_ms}` before_max_ms=`{partition.config.timestamp_before_max_ms}` "
            f"after_max_ms=`{partition.config.timestamp_after_max_ms}`",
        )

    def _check_records(
        self, partition: PartitionLog, header: tuple[int, ...], batch: memoryview, now_ms: int, source: Source | None
    ) -> None:
        config = partition.config
        if source is not None and source.due_in > 0:
            source = None  # another batch from this source was the sample
        times = Times(now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms)
        try:
            if config.checks_all:
                check_all(header, batch, ANY_TIME if config.log_append_time else times)
            elif config.checks_samples and source is not None:
                check_sample(header, batch, ANY_TIME if config.log_append_time else times)
        except RecordError as error:
            self.batches_refused += 1
            if source is not None:
                source.failed()
                if source.failures > 1:
                    raise  # log one line for each connection: a client may retry endlessly
            log.warning("batch_refused", topic=partition.topic.name, partition=partition.number, error=error.message)
            raise
        if source is not None:
            source.passed(header[12])

    @property
    def batches_unreadable(self) -> int:
        """Number of stored batches that consumers cannot read. The broker finds them when it folds chunks."""
        return self._sweeper.batches_unreadable

    def on_acked(self, callback: DurableCallback) -> None:
        """Call back, on the loop, once all batches appended since the last call are acked (None) or can never be acked (the
        error).

        A batch is acked when it is durable. If all these batches belong to topics with `ack=replicated`, they are acked when the
        follower has them; such callbacks may overtake other callbacks. The caller must call this in the same turn of the loop as
        the appends, so that no batches of another caller are among them.
        """
        durable, self._must_be_durable = self._must_be_durable, False
        if durable or not self.replicator.counts:
            self._wal.on_durable(callback)
        else:
            self.replicator.on_acked(callback)

    def on_durable(self, callback: DurableCallback) -> None:
        """Call back, on the loop and in order, once all batches appended so far are durable (None) or can never be durable (the
        error)."""
        self._wal.on_durable(callback)

    async def durable(self, timeout_ms: int | None = None) -> None:
        """Wait until all batches appended so far are durable. Raises RetryError(TIMED_OUT), FencedError, ClosedError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: HeadgateError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._wal.on_durable(finish)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await done
        except TimeoutError as error:
            raise RetryError(Reason.TIMED_OUT, f"the store did not answer in time. timeout_ms=`{timeout_ms}`") from error

    @property
    def stalled(self) -> HeadgateError | None:
        """The reason why the WAL makes no progress at the moment; None if it does."""
        return self._wal.stalled if self.ready else None

    @property
    def wal_batches(self) -> tuple[int, int]:
        """(number of batches handed to the WAL, number of durable batches), since the start."""
        return self._wal.appended_batches, self._wal.durable_batches

    # -- reading

    def read_tail(self, partition: PartitionLog, offset: int, max_bytes: int, reader: int = NOBODY) -> list[memoryview] | None:
        """Read whole batches from memory, up to the high watermark. Returns [] at its end, and None if `offset` is not in
        memory.

        Also returns [] before a window that waits for history, unless `reader` may pass the window (`partition/windows.py`).
        """
        return partition.read_memory(offset, partition.reach(offset, reader), max_bytes)

    async def read(self, partition: PartitionLog, offset: int, max_bytes: int, reader: int = NOBODY) -> list[memoryview]:
        """Read whole batches, from memory or store. The first batch contains `offset`, or follows it if `offset` is in a gap.

        Returns at least one batch, and further ones up to `max_bytes`. Returns [] at the high watermark, and in the cases of
        `read_tail`.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE. RetryError: the store does not answer.
        """
        await self.check_range(partition, offset)
        reached = partition.reach(offset, reader)
        slices = partition.read_memory(offset, reached, max_bytes)
        return await self._reader.read(partition, reached[0], max_bytes, reached) if slices is None else slices

    async def check_range(self, partition: PartitionLog, offset: int) -> None:
        """Check that an offset can be read, or is the next one to be written.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE. RetryError: this broker cannot tell, because another broker may lead the partition
                by now.
        """
        if offset > partition.high_watermark:
            # The reader may have read further at the partition's next lead. If this broker answered that the log ends below
            # `offset`, the reader would start again or skip to the end. So this check does not trust even a promise; it looks into
            # the store.
            await self.proof.look()
            self._check_life()
            self._check_lead(partition)
        if not partition.log_start <= offset <= partition.high_watermark:
            raise self._out_of_range(partition, offset)

    async def confirm(self, partition: PartitionLog | None = None) -> None:
        """Make sure that no broker had taken over from this one when the caller's request arrived; see `LeadProof`.

        Callers await this before they answer with an end: a high watermark, a committed position, or the end of an epoch.

        Args:
            partition: also check that this partition is not being handed over. Its next lead may ack already, and this broker
                hears of that later.

        Raises RetryError(NOT_LEADER).
        """
        await self.proof.confirm()
        self._check_life()
        if partition is not None:
            self._check_lead(partition)

    def _check_life(self) -> None:
        if self.failed is not None or not self.ready:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead its partitions any more")

    def _check_lead(self, partition: PartitionLog) -> None:
        if partition.refusal is not None:
            raise RetryError(
                Reason.NOT_LEADER,
                f"another broker leads the partition by now. topic=`{partition.topic.name}` partition=`{partition.number}`",
            )

    def _out_of_range(self, partition: PartitionLog, offset: int) -> InvalidError:
        return InvalidError(
            Reason.OFFSET_OUT_OF_RANGE,
            f"offset is out of range. topic=`{partition.topic.name}` partition=`{partition.number}` offset=`{offset}` "
            f"first=`{partition.log_start}` end=`{partition.high_watermark}`",
        )

    async def offset_for_timestamp(self, partition: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record, in offset order, at or after `timestamp_ms`. None if there is no such
        record."""
        return await lookup.offset_for_timestamp(self._reader, partition, timestamp_ms)

    async def max_timestamp(self, partition: PartitionLog) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record with the greatest timestamp (KIP-734). None if the log has no record."""
        return await lookup.max_timestamp(self._reader, partition)

    def epoch_end(self, partition: PartitionLog, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for an OffsetForLeaderEpoch answer (KIP-101); (-1, -1) if it is unknown. Await `confirm` first."""
        return partition.epoch_end(leader_epoch)
