"""The leader's part in gates: it reserves offsets through leads, checks files, and expires gates. `file_sweeper.py` deletes
unused files.

The rules of a gate are in `cluster/gates.py`. Every decision here is one commit. If a leader dies before the commit, the caller
asks again, and the next leader starts the work again.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec.structs import replace

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.gates import FillGate, OpenGate, ReleaseGate, RenewGate
from headgate.broker.cluster.gates import (
    FRONT_EPOCH,
    STEP_FILES,
    Gate,
    GateWindow,
    ParquetExtent,
    Place,
    check_extents,
    check_gate_id,
    check_rows,
    check_ttl,
    check_words,
    digest_of,
    moved,
)
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.topic_config import is_internal
from headgate.broker.control.file_sweeper import FileSweeper, SweepJournal
from headgate.broker.control.timings import Timings
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.steps import Steps
from headgate.broker.runtime.tasks import outlast

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.topics import Held

logger = get_logger("gates")

T = TypeVar("T")

LOOK_S = 0.25
"""Shortest pause, in seconds, between two checks for expired gates. It bounds how late a gate expires."""
REST_S = 1.0
"""Longest pause, in seconds, between two checks. A gate that is opened or renewed during the pause cannot expire before its end."""
OPEN_TIMEOUT_S = 10.0
"""Longest time, in seconds, that the opening of a gate waits for leads that change."""
RETRY_S = 0.05
SWEEP_S_MAX = 600.0
"""Longest pause, in seconds, between two sweeps for unused files. The pause is shorter if the grace period of files is short."""


class GatesJournal(SweepJournal, Protocol):
    """The journal, as `LeaderGates` needs it (`leader_journal.LeaderJournal`)."""

    @property
    def is_over(self) -> bool:
        """True if the term has ended."""


class HoldingLeads(Protocol):
    """The brokers that lead segments (`sessions.Sessions`)."""

    async def hold(self, incarnation_id: str, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int]) -> list[Held]: ...

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None: ...


class LeaderGates:
    """The gates during one term of a leader."""

    def __init__(
        self,
        engine: Engine,
        journal: GatesJournal,
        leads: HoldingLeads,
        note: Callable[[str, str, str], None] | None = None,
        timings: Timings | None = None,
        is_table_behind: Callable[[uuid.UUID], bool] = lambda topic_id: False,
    ) -> None:
        self._timings = timings or Timings()
        self.files = FileSweeper(engine, journal, is_table_behind)
        self._note = note or (lambda kind, why, topic: None)
        """Remembers an event, for people: kind, one sentence, topic."""
        self._engine = engine
        self._journal = journal
        self._leads = leads
        self._opening = asyncio.Lock()
        self._deadlines: dict[tuple[uuid.UUID, str], tuple[int, float]] = {}
        """For each open gate: (renewals, monotonic time in seconds at which it expires). A new leader gives each gate its full
        time again."""
        self._filling: dict[tuple[uuid.UUID, str], int] = {}
        """For each gate with files under check, the number of running checks. Such a gate does not expire."""
        self._under_way: dict[tuple[object, ...], asyncio.Task[Gate]] = {}
        """Running requests, by their contents."""

    # -- requests of clients

    async def open(
        self,
        topic_name: str,
        gate_id: str,
        place: Place,
        rows: Sequence[int],
        ttl_ms: int,
        files: Sequence[ParquetExtent] = (),
        *,
        definition: str = "",
        owner: str = "",
    ) -> Gate:
        """Open a gate, or return it if it is open already.

        Args:
            rows: number of rows of each partition. Not used with `files`, which have the numbers.
            files: only with place `end`: the files that fill the gate at once. Their offsets count from 0 in each partition.
            definition: text that describes the gate's contents. An existing gate must have the same one.
            owner: the owner of the new gate. An existing gate keeps its own owner.

        Raises:
            InvalidError: UNKNOWN_TOPIC, INVALID_REQUEST, GATE_CONFLICT, INVALID_REFERENCE. RetryError: a lead or the store does
                not answer, or this broker does not lead any more. The caller may repeat the same call.
        """
        check_gate_id(gate_id)
        check_ttl(ttl_ms)
        check_words(definition, owner)
        topic = self._topic(topic_name)
        if is_internal(topic.name):
            raise InvalidError(Reason.INVALID_TOPIC, f"the topic is the cluster's own. topic=`{topic.name}`")
        if files and place != "end":
            raise InvalidError(Reason.INVALID_REQUEST, f"only a gate at the end is filled when it is opened. place=`{place}`")
        wanted = Gate(
            id=gate_id, topic_id=topic.id, place=place, windows=[], ttl_ms=ttl_ms, opened_ms=0, definition=definition, owner=owner
        )
        digest = await self._run(digest_of(files)) if files else ""
        request = (topic.id, gate_id, "open", place, tuple(rows), ttl_ms, digest, definition, owner)
        return await self._once(request, lambda: self._open(topic, wanted, list(rows), list(files), digest))

    def _once(self, request: tuple[object, ...], work: Callable[[], Coroutine[Any, Any, Gate]]) -> Coroutine[Any, Any, Gate]:
        """The result of a request, shared by all callers that make the same request while it runs.

        The work continues if its caller is cancelled, because reserved offsets must be either opened or dropped. A client that
        gets no answer within seconds asks again through another broker. With many files that happens, and the second request
        joins the running work.
        """
        task = self._under_way.get(request)
        if task is None:
            task = self._under_way[request] = asyncio.create_task(work(), name="gate")
            task.add_done_callback(lambda _: self._under_way.pop(request))
        return outlast(task)

    async def _judge_new(self, topic: Topic, gate_id: str, files: Sequence[ParquetExtent]) -> None:
        if files:
            rows = await self._run(rows_of(files, topic.partitions))
            bounds = {partition: GateWindow(partition, 0, end, -1) for partition, end in enumerate(rows)}
            extents = await self._run(check_extents(gate_id, files, bounds))
            await self._engine.references.check(topic.id, extents, absolute=False)

    async def _open(self, topic: Topic, wanted: Gate, asked: list[int], files: list[ParquetExtent], digest: str) -> Gate:
        gate_id = wanted.id
        if self._known(topic, gate_id) is None:
            rows = await self._run(rows_of(files, topic.partitions)) if files else asked
            check_rows(topic.name, rows, topic.partitions)
            await self._judge_new(topic, gate_id, files)
        deadline_s = self._engine.clock.monotonic() + OPEN_TIMEOUT_S
        async with self._opening:
            while True:
                known = self._known(topic, gate_id)
                if known is not None:
                    if known.definition != wanted.definition:
                        raise InvalidError(
                            Reason.GATE_CONFLICT,
                            f"a gate of this id has another definition. topic=`{topic.name}` gate=`{gate_id}`",
                        )
                    # Compare files by their digest: the topic may have got partitions since the gate was opened.
                    same = known.digest == digest if files else [window.rows for window in known.windows] == asked
                    if known.place != wanted.place or not same:
                        raise InvalidError(
                            Reason.GATE_CONFLICT,
                            f"a gate of this id was opened with other rows or elsewhere. topic=`{topic.name}` gate=`{gate_id}`",
                        )
                    return known
                # The topic may have got partitions while files were checked, or while other gates were opened.
                topic = self._as_it_is(topic)
                rows = await self._run(rows_of(files, topic.partitions)) if files else asked
                check_rows(topic.name, rows, topic.partitions)
                gate = replace(wanted, opened_ms=self._engine.clock.now_ms())
                try:
                    if gate.place == "front":
                        await self._journal.commit_made(partial(_open_in_front, gate=gate, topic=topic, rows=rows))
                    else:
                        await self._open_behind(topic, gate, rows, files, digest)
                    opened = self._journal.manifest.gates.by_topic[topic.id][gate_id]
                    logger.info(
                        "gate_opened",
                        topic=topic.name,
                        gate=gate_id,
                        place=gate.place,
                        rows=sum(rows),
                        state=opened.state,
                        ttl_ms=gate.ttl_ms,
                    )
                    done = "filled with" if opened.state == "filled" else "opened, with room for"
                    self._note("gate", f"gate {gate_id} {done} {sum(rows):,} records, place {gate.place}", topic.name)
                    return opened
                except InvalidError:
                    self._leads.drop_holds(topic.id, gate_id)
                    raise
                except RetryError as error:
                    # Only after these two errors it is certain that nothing was committed.
                    if error.reason not in (Reason.NOT_LEADER, Reason.NOT_READY) or self._journal.is_over:
                        raise
                    if self._engine.clock.monotonic() > deadline_s:
                        self._leads.drop_holds(topic.id, gate_id)
                        raise
                await asyncio.sleep(RETRY_S)

    async def _open_behind(self, topic: Topic, gate: Gate, rows: list[int], files: list[ParquetExtent], digest: str) -> None:
        held = await self._hold(topic, gate.id, rows)
        windows = [
            GateWindow(hold.partition, hold.base_offset, hold.base_offset + count, hold.leader_epoch)
            for hold, count in zip(held, rows, strict=True)
        ]
        # Every gate behind a live one is live, too: live records that retention deleted since still count.
        earlier = self._journal.manifest.gates.of(topic.id).values()
        live = gate.place == "now" and (any(hold.live for hold in held) or any(hold.live for hold in earlier))
        gate = replace(gate, windows=windows, live=live)
        if files:
            counted = {window.partition: GateWindow(window.partition, 0, window.rows, -1) for window in windows}
            extents = moved(
                await self._run(check_extents(gate.id, files, counted)), {window.partition: window for window in windows}
            )
            gate = replace(
                gate,
                state="filled",
                filled_ms=gate.opened_ms,
                extents=extents,
                digest=digest,
                rows=sum(extent.rows for extent in extents),
                size_bytes=sum(extent.size_bytes for extent in extents),
                files=len(extents),
            )
        segments = [hold.segment_id for hold in held]
        await self._journal.commit_made(lambda _: [OpenGate(gate, segments)])
        self._look()

    async def _hold(self, topic: Topic, gate_id: str, rows: list[int]) -> list[Held]:
        """Make every lead of the topic reserve offsets. Returns them by partition."""
        by_lead: dict[str, dict[int, int]] = {}
        for partition, segment in enumerate(self._journal.manifest.segments.leads.get(topic.id, ())):
            if segment is None:
                raise RetryError(
                    Reason.NOT_LEADER, f"no broker leads the partition yet. topic=`{topic.name}` partition=`{partition}`"
                )
            by_lead.setdefault(segment.incarnation_id, {})[partition] = rows[partition]
        asked = await asyncio.gather(
            *(self._leads.hold(lead, topic.id, gate_id, wanted) for lead, wanted in by_lead.items()), return_exceptions=True
        )
        held: list[Held] = []
        for answer in asked:
            if isinstance(answer, BaseException):
                raise answer
            held += answer
        held.sort(key=lambda hold: hold.partition)
        if len(held) != len(rows):
            raise RetryError(Reason.NOT_READY, f"not every partition has a lead. topic=`{topic.name}`")
        return held

    async def fill(self, topic_name: str, gate_id: str, files: Sequence[ParquetExtent]) -> Gate:
        """Commit the files of a gate. Raises as `open`, and InvalidError(UNKNOWN_GATE)."""
        topic = self._topic(topic_name)
        gate = self._gate(topic, gate_id)
        windows = {window.partition: window for window in gate.windows}
        files = [
            replace(file, leader_epoch=windows[file.partition].leader_epoch) if file.partition in windows else file
            for file in files
        ]
        digest = await self._run(digest_of(files))
        gate = self._gate(topic, gate_id)
        if self._is_filled(gate, digest):
            return gate
        return await self._once((topic.id, gate_id, "fill", digest), lambda: self._fill(topic, gate, files, digest))

    async def _fill(self, topic: Topic, gate: Gate, files: Sequence[ParquetExtent], digest: str) -> Gate:
        gate_id, began_s = gate.id, self._engine.clock.monotonic()
        key = (topic.id, gate_id)
        self._filling[key] = self._filling.get(key, 0) + 1
        try:
            extents = await self._run(check_extents(gate_id, files, {window.partition: window for window in gate.windows}))
            await self._engine.references.check(topic.id, extents, absolute=True)
            filled_ms = self._engine.clock.now_ms()

            def make(now: Manifest) -> list[Edit]:
                current = now.gates.of(topic.id).get(gate_id)
                if current is not None and self._is_filled(current, digest):
                    return []
                return [FillGate(topic.id, gate_id, extents, digest, filled_ms)]

            await self._journal.commit_made(make)
        finally:
            self._filling[key] -= 1
            if not self._filling[key]:
                del self._filling[key]
        filled = self._gate(topic, gate_id)
        logger.info(
            "gate_filled", topic=topic.name, gate=gate_id, files=filled.files, rows=filled.rows, size_bytes=filled.size_bytes
        )
        self._timings.filled(self._engine.clock.monotonic() - began_s, filled.rows)
        self._note("gate", f"gate {gate_id} filled with {filled.rows:,} records in {filled.files} files, in one step", topic.name)
        return filled

    @staticmethod
    def _is_filled(gate: Gate, digest: str) -> bool:
        """True if the gate is filled with the same files. Raises InvalidError(GATE_CONFLICT) if these files can no longer fill
        it."""
        if gate.state == "filled" and gate.digest == digest:
            return True
        if gate.state != "open":
            how = "filled with other files" if gate.state == "filled" else f"released ({gate.released_by})"
            raise InvalidError(Reason.GATE_CONFLICT, f"the gate was {how} before. gate=`{gate.id}`")
        return False

    async def renew(self, topic_name: str, gate_id: str, ttl_ms: int) -> Gate:
        """Restart an open gate's time. `ttl_ms` 0: with the same length as before."""
        topic = self._topic(topic_name)
        gate = self._gate(topic, gate_id)
        ttl_ms = ttl_ms or gate.ttl_ms
        check_ttl(ttl_ms)
        await self._journal.commit_made(lambda _: [RenewGate(topic.id, gate_id, ttl_ms)])
        self._look()
        return self._gate(topic, gate_id)

    async def release(self, topic_name: str, gate_id: str, why: str = "asked", *, owner: str = "") -> Gate:
        """Release an open gate. A gate that is already released stays so. With `owner`, only if the gate belongs to that owner."""
        topic = self._topic(topic_name)

        def make(now: Manifest) -> list[Edit]:
            current = now.gates.of(topic.id).get(gate_id)
            if owner and current is not None and current.owner != owner:
                raise InvalidError(
                    Reason.GATE_CONFLICT,
                    f"the gate is another owner's. gate=`{gate_id}` owner=`{current.owner}` asked=`{owner[:100]}`",
                )
            return [] if current is not None and current.state == "released" else [ReleaseGate(topic.id, gate_id, why)]

        await self._journal.commit_made(make)
        gate = self._gate(topic, gate_id)
        logger.info("gate_released", topic=topic.name, gate=gate_id, why=why)
        self._timings.released(why)
        reason = "no client renewed it" if why == "expired" else "a client gave it up"
        self._note("gate", f"gate {gate_id} released: {reason}", topic.name)
        return gate

    def list_all(self, topic_name: str = "") -> list[Gate]:
        """All gates, by the topic's name and in the order in which they were opened."""
        manifest = self._journal.manifest
        topics = [self._topic(topic_name)] if topic_name else [manifest.topics[name] for name in sorted(manifest.topics)]
        return [gate for topic in topics for gate in manifest.gates.of(topic.id).values()]

    def open_gates(self) -> list[tuple[uuid.UUID, str]]:
        """Topic id and id of the open gates, as of the last look at their deadlines."""
        return list(self._deadlines)

    def reserved_offsets(self) -> int:
        """Offsets that the open gates keep free."""
        gates = self._journal.manifest.gates.by_topic
        known = (gates.get(topic_id, {}).get(gate_id) for topic_id, gate_id in self._deadlines)
        return sum(window.rows for gate in known if gate is not None and gate.state == "open" for window in gate.windows)

    def describe(self, topic_name: str, gate_id: str) -> Gate:
        return self._gate(self._topic(topic_name), gate_id)

    def expires_in_ms(self, gate: Gate) -> int:
        """Milliseconds until a gate expires; 0 if it is not open."""
        if gate.state != "open":
            return 0
        known = self._deadlines.get((gate.topic_id, gate.id))
        if known is None or known[0] != gate.renewals:
            return gate.ttl_ms
        return max(0, round((known[1] - self._engine.clock.monotonic()) * 1000))

    async def _run(self, steps: Steps[T]) -> T:
        """Work on the files of a gate, in slices of the loop's time."""
        return await self._engine.turns.begin().run(steps)

    def _topic(self, name: str) -> Topic:
        topic = self._journal.manifest.topics.get(name)
        if topic is None:
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic does not exist. topic=`{name}`")
        return topic

    def _as_it_is(self, topic: Topic) -> Topic:
        now = self._journal.manifest.topics_by_id.get(topic.id)
        if now is None:
            raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic was deleted. topic=`{topic.name}`")
        return now

    def _known(self, topic: Topic, gate_id: str) -> Gate | None:
        """The gate with this id. None if it was released, because then a new gate may have the id."""
        gate = self._journal.manifest.gates.of(topic.id).get(gate_id)
        return None if gate is None or gate.state == "released" else gate

    def _gate(self, topic: Topic, gate_id: str) -> Gate:
        gate = self._journal.manifest.gates.of(topic.id).get(gate_id)
        if gate is None:
            raise InvalidError(Reason.UNKNOWN_GATE, f"the topic has no such gate. topic=`{topic.name}` gate=`{gate_id}`")
        return gate

    # -- time

    async def run(self) -> None:
        """Expire gates and sweep files, until the term ends."""
        grace_ms = self._engine.settings.gate_file_grace_ms
        pause_s = min(SWEEP_S_MAX, max(grace_ms / 4000, 1.0))
        sweep_s = self._engine.clock.monotonic() + min(pause_s, 30.0)
        while True:
            next_s = min((over_s for _, over_s in self._deadlines.values()), default=math.inf)
            await asyncio.sleep(min(max(next_s - self._engine.clock.monotonic(), LOOK_S), REST_S))
            try:
                for gate in self._look():
                    await self._expire(gate)
                if self._engine.clock.monotonic() >= sweep_s:
                    sweep_s = self._engine.clock.monotonic() + pause_s
                    await self.files.sweep(grace_ms)
            except (RetryError, InvalidError) as error:
                # The store does not answer, or the manifest changed meanwhile. The next check sees the current state.
                logger.warning("gates_wait", error=error.message)

    def _look(self) -> Sequence[Gate]:
        """Bring the deadlines up to date. Returns the gates that have expired."""
        now_s = self._engine.clock.monotonic()
        deadlines: dict[tuple[uuid.UUID, str], tuple[int, float]] = {}
        over: list[Gate] = []
        for topic_id, gates in self._journal.manifest.gates.by_topic.items():
            for gate in gates.values():
                if gate.state != "open":
                    continue
                key = (topic_id, gate.id)
                known = self._deadlines.get(key)
                if known is None or known[0] != gate.renewals or key in self._filling:
                    known = (gate.renewals, now_s + gate.ttl_ms / 1000)
                deadlines[key] = known
                if now_s >= known[1]:
                    over.append(gate)
        self._deadlines = deadlines
        return over

    async def _expire(self, gate: Gate) -> None:
        topic = self._journal.manifest.topics_by_id.get(gate.topic_id)
        if topic is None:
            return
        logger.warning("gate_expired", topic=topic.name, gate=gate.id, ttl_ms=gate.ttl_ms)
        try:
            await self.release(topic.name, gate.id, "expired")
        except InvalidError as error:
            logger.info("gate_not_expired", topic=topic.name, gate=gate.id, error=error.message)


def _open_in_front(manifest: Manifest, *, gate: Gate, topic: Topic, rows: list[int]) -> list[Edit]:
    """Open a gate before all existing offsets. Raises InvalidError if there is no room."""
    if topic.id not in manifest.topics_by_id:
        raise InvalidError(Reason.UNKNOWN_TOPIC, f"topic was deleted. topic=`{topic.name}`")
    windows: list[GateWindow] = []
    for partition, count in enumerate(rows):
        end = manifest.front(topic.id, partition)
        if count > end:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"no room in front: a topic gets it when it is created, with history.room. topic=`{topic.name}` "
                f"partition=`{partition}` rows=`{count}` room=`{end}`",
            )
        windows.append(GateWindow(partition, end - count, end, FRONT_EPOCH))
    return [OpenGate(replace(gate, windows=windows))]


def rows_of(files: Sequence[ParquetExtent], partitions: int) -> Steps[list[int]]:
    """The number of rows of each partition, for files with offsets from 0: the end of the partition's last file."""
    rows = [0] * partitions
    for number, file in enumerate(files):
        if number % STEP_FILES == 0:
            yield STEP_FILES
        if not 0 <= file.partition < partitions:
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"the topic has no such file. partition=`{file.partition}` partitions=`{partitions}`",
            )
        rows[file.partition] = max(rows[file.partition], file.end_offset)
    return rows
