"""The cluster as one broker sees it: its own copy of the manifest, the leader's part, and the parts of the other brokers.

A broker that reaches no leader shows what it knows by itself, and says so. All of it is made on request only: a broker whose page
nobody opens does nothing here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import msgspec
from msgspec.structs import replace

from headgate.broker import __version__
from headgate.broker.cluster.objects import Topic
from headgate.broker.control.load import trouble_of
from headgate.broker.control.participant import Participant
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.server.grpc.bounds import Bounds, find_bounds
from headgate.broker.server.grpc.groups_service import GroupsService, Readers
from headgate.broker.server.grpc.peers import Peers
from headgate.broker.server.view import model
from headgate.broker.server.view.leader_view import LeaderViews
from headgate.broker.server.view.parts import (
    Counts,
    choose_gates,
    gate_row,
    led,
    plain_broker,
    plain_segment,
    topic_count,
    topic_names,
    topic_row,
)
from headgate.broker.server.view.shared import Shared
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.methods import methods

CONTROL = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])
LEADER_PAUSE_S = 0.8
"""Age of the leader's part at which it is asked for again."""
GROUPS_PAUSE_S = 3.0
SIZES_PAUSE_S = 5.0
PAUSE_PER_LOOK = 10.0
"""Pause before groups or sizes are looked up again, as a multiple of the time that the last look took."""
TOPICS_PER_PAGE = 50
SIZED_PARTITIONS_MAX = 5_000
"""Partitions of one page of topics whose sizes are asked for. The sizes of further topics are not shown."""
PARTITIONS_MAX = 1_000
"""Partitions of one topic that are listed."""
SEARCH_CHARS_MAX = 249
PAGES_REMEMBERED = 40
"""Pages of topics whose sizes are kept for the next look: more than pages can be open."""
REMEMBERED_S = 600.0
"""Time for which a broker that lost its leader shows the leader's last view, marked with its age."""


class Views:
    """Answers for the page and the HTTP API of one broker."""

    def __init__(self, participant: Participant, peers: Peers, groups: GroupsService, settings: Settings) -> None:
        engine = participant.engine
        self._participant = participant
        self._engine = engine
        self._clock = engine.clock
        self._peers = peers
        self._groups = groups
        self._settings = settings
        self.leader_views = LeaderViews(engine)
        self._leader = Shared(self._ask_leader, engine.clock.monotonic, LEADER_PAUSE_S)
        self._all_groups = Shared(self._find_groups, engine.clock.monotonic, GROUPS_PAUSE_S, PAUSE_PER_LOOK)
        self._seen: tuple[model.LeaderView, float] | None = None
        """The leader's last view, and its time."""
        self._listed: tuple[list[model.Group], float] | None = None
        self._readers: Readers = {}
        self._sizes: dict[tuple[str, ...], Shared[Bounds]] = {}

    async def close(self) -> None:
        """End all work under way."""
        await self._leader.close()
        await self._all_groups.close()
        for shared in self._sizes.values():
            await shared.close()
        await self.leader_views.close()

    # -- the cluster

    async def cluster(self) -> model.Cluster:
        """Everything but topics and groups."""
        leader, trouble = await self._leader.get()
        manifest, participant = self._engine.manifest, self._participant
        turn = self._engine.turns.begin()
        counts, whole = await led(manifest, turn)
        seen_s = None
        if leader is None and self._seen is not None:
            leader, at_s = self._seen
            seen_s = self._clock.monotonic() - at_s
            if seen_s > REMEMBERED_S:
                leader = self._seen = None
        live = self._engine.brokers()
        ready = trouble_of(self._engine)
        brokers = leader.brokers if leader is not None and not trouble else self._own_brokers(counts, trouble)
        now_ms = self._clock.now_ms()
        gates = [] if leader is None else leader.gates
        if trouble:
            gates = [gate_row(manifest, gate, now_ms, None, None) async for gate in turn.each(choose_gates(manifest, []))]
        rates = None if leader is None or trouble else leader.brokers
        return model.Cluster(
            cluster_id=self._engine.cluster_id,
            cluster_name=self._settings.cluster_name,
            broker_id=self._engine.broker_id,
            version=__version__,
            role=participant.role,
            trouble=trouble,
            ready=ready,
            leader_broker_id=None if leader is None else leader.leader_broker_id,
            manifest_version=None if leader is None else leader.version,
            seen_s=seen_s if trouble else 0.0,
            topics_total=topic_count(manifest),
            partitions_total=whole.partitions,
            segments_total=whole.segments,
            bytes_in_per_s=None if rates is None else sum(rate.bytes_in_per_s or 0.0 for rate in rates),
            bytes_out_per_s=None if rates is None else sum(rate.bytes_out_per_s or 0.0 for rate in rates),
            brokers_total=len(live),
            brokers=brokers,
            floods=[] if leader is None else leader.floods,
            gates=gates,
            capacity=None if leader is None else leader.capacity,
            decisions=[] if leader is None else leader.decisions,
        )

    def _own_brokers(self, counts: dict[str, Counts], trouble: str) -> list[model.Broker]:
        """The brokers without the leader's knowledge: this one is certain, the others are as the manifest had them."""
        mine, now_ms = self._engine.incarnation_id, self._clock.now_ms()
        return [
            plain_broker(
                broker,
                counts.get(broker.id, Counts()),
                now_ms,
                leads_cluster=False,
                state=(trouble_of(self._engine) or "cut off") if broker.id == mine else "unknown",
            )
            for broker in self._engine.brokers()[: model.BROKERS_MAX]
        ]

    async def _ask_leader(self) -> tuple[model.LeaderView | None, str]:
        """The leader's view, or the reason for its absence."""
        try:
            view = await self._leaders_view([])
        except HeadgateError as error:
            return None, error.message
        self._seen = view, self._clock.monotonic()
        return view, ""

    async def _leaders_view(self, topics: Sequence[str]) -> model.LeaderView:
        """Raises RetryError if no leader answers, InvalidError(UNSUPPORTED) if it is too old."""
        if self._participant.leader_address() is None:
            leader = self._participant.leader
            assert leader is not None
            return await self.leader_views.make(leader, topics)
        manifest = self._engine.manifest
        broker = manifest.incarnations.get(manifest.leader)
        if broker is None:
            raise RetryError(Reason.NOT_LEADER, "no broker is known to lead the cluster at the moment")
        response = await self._peers.call(broker, CONTROL["View"], control_pb2.ViewRequest(topics=topics))
        try:
            return msgspec.json.decode(response.view, type=model.LeaderView)
        except msgspec.ValidationError as error:
            raise InvalidError(
                Reason.UNSUPPORTED, f"the cluster's leader runs another version. broker=`{broker.broker_id}`"
            ) from error

    # -- topics

    async def topics(self, search: str = "", sort: str = "", page: int = 1) -> model.Topics:
        """A page of topics.

        Args:
            search: part of the names.
            sort: `name`, or `busiest`; "": by name if all topics fit on one page.
            page: from 1; beyond the last page, the last page.
        """
        search = search[:SEARCH_CHARS_MAX]
        turn = self._engine.turns.begin()
        names = await topic_names(self._engine.manifest, search, turn)
        sort = sort if sort in ("name", "busiest") else "name" if len(names) <= TOPICS_PER_PAGE else "busiest"
        leader, _ = await self._leader.get()
        if sort == "busiest" and leader is not None:
            await turn.pause()
            names = _first(names, [topic.name for topic in leader.topics])
        pages = max(-(-len(names) // TOPICS_PER_PAGE), 1)
        page = min(max(page, 1), pages)
        shown = names[(page - 1) * TOPICS_PER_PAGE : page * TOPICS_PER_PAGE]
        return model.Topics(
            total=topic_count(self._engine.manifest),
            found=len(names),
            page=page,
            pages=pages,
            search=search,
            sort=sort,
            topics=await self._topic_rows(shown, leader),
        )

    def expect_reads(self, name: str) -> None:
        """Called when somebody opens the page of a topic: whoever does that often looks at its messages next. Raises
        InvalidError(UNKNOWN_TOPIC)."""
        if self._engine.manifest.has_files(self._engine.topic(name).id):
            self._engine.history.warm()

    async def topic(self, name: str) -> tuple[model.Topic, list[model.Partition]]:
        """One topic, and its first partitions. Raises InvalidError(UNKNOWN_TOPIC)."""
        topic = self._engine.topic(name)
        leader, _ = await self._leader.get()
        (row,) = await self._topic_rows([name], leader)
        bounds = await self._bounds([name])
        partitions: list[model.Partition] = []
        async for number in self._engine.turns.begin().each(range(min(topic.partitions, PARTITIONS_MAX))):
            lead = self._engine.lead(topic.id, number)
            bound = bounds.get((name, number))
            partitions.append(
                model.Partition(
                    partition=number,
                    broker_id=None if lead is None else lead[0].broker_id,
                    leader_epoch=None if lead is None else lead[1],
                    log_start=None if bound is None else bound.log_start,
                    high_watermark=None if bound is None else bound.high_watermark,
                    size_bytes=None if bound is None else bound.size_bytes,
                )
            )
        return row, partitions

    def gate(self, topic: str, gate_id: str) -> model.Gate:
        """One gate of any age, from this broker's copy of the manifest. Raises InvalidError(UNKNOWN_TOPIC, UNKNOWN_GATE)."""
        gate = self._engine.manifest.gates.of(self._engine.topic(topic).id).get(gate_id)
        if gate is None:
            raise InvalidError(Reason.UNKNOWN_GATE, f"the topic has no such gate. topic=`{topic}` gate=`{gate_id[:100]}`")
        return gate_row(self._engine.manifest, gate, self._clock.now_ms(), None, None)

    async def _topic_rows(self, names: Sequence[str], leader: model.LeaderView | None) -> list[model.Topic]:
        manifest, turn = self._engine.manifest, self._engine.turns.begin()
        known = {} if leader is None else {topic.name: topic for topic in leader.topics}
        if leader is not None and (missing := [name for name in names if name not in known]):
            with suppress(HeadgateError):  # without the leader the rates of these topics are unknown for now
                known.update((topic.name, topic) for topic in (await self._leaders_view(missing[: model.TOPICS_MAX])).topics)
        bounds = await self._bounds(names)
        rows: list[model.Topic] = []
        async for name in turn.each(names):
            topic = manifest.topics.get(name)
            if topic is None:
                continue  # deleted meanwhile
            row = known.get(name) or topic_row(manifest, topic, lambda segment: plain_segment(manifest, segment))
            rows.append(_sized(row, topic, bounds))
        return rows

    async def _bounds(self, names: Sequence[str]) -> Bounds:
        """The offsets and sizes of topics; a few seconds old."""
        wanted: list[str] = []
        left = SIZED_PARTITIONS_MAX
        for name in names:
            topic = self._engine.manifest.topics.get(name)
            if topic is not None and topic.partitions <= left:
                left -= topic.partitions
                wanted.append(name)
        key = tuple(sorted(wanted))
        shared = self._sizes.pop(key, None)
        if shared is None:
            shared = Shared(
                lambda: find_bounds(self._engine, self._peers, key), self._clock.monotonic, SIZES_PAUSE_S, PAUSE_PER_LOOK
            )
        self._sizes[key] = shared
        for old in list(islice(self._sizes, max(len(self._sizes) - PAGES_REMEMBERED, 0))):
            await self._sizes.pop(old).close()
        return await shared.get()

    # -- groups

    async def groups(self, search: str = "", page: int = 1) -> model.Groups:
        """A page of groups, the greatest lag first. `search`: part of their ids."""
        search = search[:SEARCH_CHARS_MAX]
        trouble = ""
        try:
            await self._all_groups.get()
        except HeadgateError as error:
            trouble = error.message
        groups, at_s = self._listed or ([], None)
        wanted = search.casefold()
        found = [group for group in groups if wanted in group.id.casefold()]
        pages = max(-(-len(found) // model.GROUPS_MAX), 1)
        page = min(max(page, 1), pages)
        return model.Groups(
            total=len(groups),
            found=len(found),
            page=page,
            pages=pages,
            search=search,
            groups=found[(page - 1) * model.GROUPS_MAX : page * model.GROUPS_MAX],
            lag_total=sum(group.lag_records for group in found),
            age_s=None if at_s is None else self._clock.monotonic() - at_s,
            trouble=trouble,
        )

    async def _find_groups(self) -> int:
        readers: Readers = {}
        response = await self._groups.everywhere(readers)
        found = [
            model.Group(
                id=group.id, state=group.state, members=group.members, positions=group.positions, lag_records=group.lag_records
            )
            async for group in self._engine.turns.begin().each(response.groups)
        ]
        found.sort(key=lambda group: (-group.lag_records, group.id))
        self._listed = found, self._clock.monotonic()
        self._readers = readers
        return len(found)

    async def readers(self, topic: str) -> list[model.Reader]:
        """The groups with positions in a topic, the greatest lag first; a few seconds old."""
        with suppress(HeadgateError):  # then those of before
            await self._all_groups.get()
        groups = {group.id: group for group in self._listed[0]} if self._listed is not None else {}
        found = [
            model.Reader(id=one.id, state=one.state, members=one.members, positions=positions, lag_records=lag)
            for group_id, (positions, lag) in self._readers.get(topic, {}).items()
            if (one := groups.get(group_id)) is not None
        ]
        found.sort(key=lambda group: (-group.lag_records, group.id))
        return found[: model.GROUPS_MAX]


def _first(names: list[str], wanted: Sequence[str]) -> list[str]:
    """`names`, which are in order, with those of `wanted` that are among them first. No loop over all names: they are many."""
    found: list[str] = []
    for name in wanted:
        at = bisect_left(names, name)
        if names[at : at + 1] == [name]:
            found.append(names.pop(at))
    return found + names


def _sized(row: model.Topic, topic: Topic, bounds: Bounds) -> model.Topic:
    """The row with records and size, if all partitions' leads have told them."""
    records = size = 0
    for number in range(topic.partitions):
        bound = bounds.get((topic.name, number))
        if bound is None:
            return row
        records += bound.records
        size += bound.size_bytes
    return replace(row, records=records, size_bytes=size)
