"""Random lives of topics and segments: every partition has one leader after every commit, and no leader begins at a wrong
offset.

A model keeps the end of every partition beside the manifest. Each step commits edits as the leader does: the edits of the step,
and those that `find_gaps` and `open_successors` add. Compared: leaders, base offsets, epochs and the producers' objects with the
model. A mismatch means a partition without a leader, or a leader that would give one offset to two records.
"""

from __future__ import annotations

import itertools
import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.cluster.admission import check
from headgate.broker.cluster.edits.brokers import Committed, SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import AddChunks, CloseIncarnation, OpenIncarnation, SealIncarnation
from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic, SetPartitions
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_edits, encode_snapshot
from headgate.broker.cluster.objects import Incarnation, Topic
from headgate.broker.cluster.segments import SegmentInfo, Successor
from headgate.broker.cluster.succession import Gap, find_gaps, open_successors
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason
from tests.support.errors import raises
from tests.support.examples import examples

LEADS = [letter * 32 for letter in "abc"]


class Life:
    """A simulated cluster of three brokers."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.manifest = Manifest()
        self.ends: dict[tuple[uuid.UUID, int], int] = {}
        self.producers: dict[tuple[uuid.UUID, int], str] = {}
        self.epochs: list[int] = []
        self.count = 0
        self.commit(
            *(
                OpenIncarnation(Incarnation(id=lead, broker_id=number, leader_epoch=number, opened_ms=0))
                for number, lead in enumerate(LEADS)
            )
        )

    def commit(self, *asked: Edit, leaderless: bool = False) -> None:
        """Commit as the leader does. `leaderless`: the leader dies after the seals, and the next one finds the gaps."""
        edits: list[Edit] = list(asked)
        for edit in edits:
            check(self.manifest, edit, LEADS[0])
        if not leaderless:
            edits += self.fill(edits)
        # Encodes and decodes the edits, as the journal does for every broker.
        self.manifest.apply(decode_edits(encode_edits(edits)))
        self.manifest.check_invariants()
        for edit in edits:
            if isinstance(edit, OpenSegment):
                self.judge(edit.segment)

    def fill(self, edits: list[Edit]) -> list[Edit]:
        gaps = find_gaps(self.manifest, edits, everywhere=any(isinstance(edit, SetLeader) for edit in edits))
        return open_successors(self.manifest, edits, gaps, [one for gap in gaps for one in self.divided(gap)])

    def divided(self, gap: Gap) -> list[Successor]:
        cuts = sorted(
            {gap.first_partition, gap.end_partition, *(self.draw.choices(range(gap.first_partition, gap.end_partition), k=2))}
        )
        return [
            Successor(topic_id=gap.topic_id, first_partition=first, end_partition=end, incarnation_id=self.draw.choice(LEADS))
            for first, end in itertools.pairwise(cuts)
        ]

    def judge(self, segment: SegmentInfo) -> None:
        """A segment that has just been opened."""
        keys = [(segment.topic_id, number) for number in segment.partitions]
        assert segment.base_offsets == [self.ends.get(key, 0) for key in keys]
        assert set(segment.origins) == {self.producers[key] for key in keys if key in self.producers}
        assert not self.epochs or segment.leader_epoch > max(self.epochs), "epochs grow with every change of lead"
        self.epochs.append(segment.leader_epoch)

    def step(self, what: str) -> None:
        topics = list(self.manifest.topics.values())
        self.count += 1
        if what == "create" or not topics:
            self.commit(CreateTopic(Topic(id=uuid.UUID(int=self.count), name=f"t{self.count}", partitions=self.draw.randint(1, 6))))
        elif what == "grow":
            topic = self.draw.choice(topics)
            self.commit(SetPartitions(topic.id, topic.partitions + self.draw.randint(1, 3)))
        elif what == "delete":
            self.commit(DeleteTopic(self.draw.choice(topics).id))
        else:
            segments = list(self.manifest.segments.open.values())
            sealed = self.draw.sample(segments, k=min(len(segments), self.draw.randint(1, 3)))
            self.commit(*(self.seal(segment) for segment in sealed), leaderless=what == "seal and die")
            if what == "seal and die":
                self.commit(SetLeader(LEADS[0], self.manifest.leader_epoch + 1))

    def seal(self, segment: SegmentInfo) -> SealSegment:
        key = f"producers/{segment.id}"
        ends = []
        for number in segment.partitions:
            place = (segment.topic_id, number)
            self.ends[place] = self.ends.get(place, 0) + self.draw.choice((0, 1, 100))
            self.producers[place] = key
            ends.append(self.ends[place])
        return SealSegment(segment.id, ends, key)


@given(
    st.integers(0, 1 << 32),
    st.lists(st.sampled_from(["create", "grow", "delete", "seal", "seal", "seal", "seal and die"]), min_size=1, max_size=40),
)
def test_every_partition_has_one_lead_that_begins_where_the_last_one_ended(seed: int, steps: list[str]) -> None:
    life = Life(seed)
    for what in steps:
        life.step(what)
        manifest = life.manifest
        for topic in manifest.topics.values():
            assert all(manifest.segments.leads[topic.id]), "nobody leads a partition"
        assert not find_gaps(manifest, [], everywhere=True)
        needed = manifest.producers_objects()
        assert {origin for segment in manifest.segments.open.values() for origin in segment.origins} <= needed
        assert encode_snapshot(decode_snapshot(encode_snapshot(manifest))) == encode_snapshot(manifest), (
            "a snapshot is the whole state"
        )


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(70, 90))
def test_a_long_chain_is_cut_and_nothing_that_is_needed_goes(seed: int, seals: int) -> None:
    life = Life(seed)
    life.step("create")
    for _ in range(seals):
        life.step("seal")
    sealed = life.manifest.segments.sealed
    assert len(sealed) <= 64 + 3
    life.step("seal and die")


def test_a_broker_that_is_alone_leads_everything_until_it_seals_itself() -> None:
    manifest = Manifest()

    def commit(*edits: Edit, lead: str = LEADS[0]) -> None:
        gaps = find_gaps(manifest, edits, everywhere=any(isinstance(edit, OpenIncarnation) for edit in edits))
        if any(isinstance(edit, SealIncarnation) for edit in edits):
            gaps = []
        successors = [
            Successor(
                topic_id=gap.topic_id, first_partition=gap.first_partition, end_partition=gap.end_partition, incarnation_id=lead
            )
            for gap in gaps
        ]
        manifest.apply([*edits, *open_successors(manifest, edits, gaps, successors)])
        manifest.check_invariants()

    topic = Topic(id=uuid.uuid4(), name="t", partitions=2)
    commit(OpenIncarnation(Incarnation(id=LEADS[0], broker_id=1, leader_epoch=0, opened_ms=0)))
    commit(CreateTopic(topic))
    commit(SetPartitions(topic.id, 5))
    assert [segment.incarnation_id for segment in manifest.segments.leads[topic.id] if segment] == [LEADS[0]] * 5
    commit(
        *(SealSegment(key, [1] * len(segment.partitions)) for key, segment in manifest.segments.open.items()),
        SealIncarnation(LEADS[0]),
    )
    assert manifest.segments.leads[topic.id] == [None] * 5
    opened = Incarnation(id=LEADS[1], broker_id=1, leader_epoch=manifest.leader_epoch + 1, opened_ms=0)
    commit(OpenIncarnation(opened), lead=LEADS[1])
    assert [segment.incarnation_id for segment in manifest.segments.leads[topic.id] if segment] == [LEADS[1]] * 5
    assert {offset for segment in manifest.segments.open.values() for offset in segment.base_offsets} == {1}


# -- edits that the leader accepts or refuses


@pytest.fixture
def known() -> Manifest:
    """Topic `t` with 2 partitions led by a; b is sealed; c is open and leads nothing."""
    life = Life(1)
    life.manifest.apply(
        [
            CreateTopic(Topic(id=uuid.UUID(int=7), name="t", partitions=2)),
            OpenSegment(
                SegmentInfo(
                    id=5,
                    topic_id=uuid.UUID(int=7),
                    first_partition=0,
                    end_partition=2,
                    incarnation_id=LEADS[0],
                    leader_epoch=9,
                    base_offsets=[0, 0],
                )
            ),
            SealIncarnation(LEADS[1]),
        ]
    )
    return life.manifest


T, OTHER = uuid.UUID(int=7), uuid.UUID(int=8)


@pytest.mark.parametrize(
    ("edit", "by", "reason"),
    [
        (CreateTopic(Topic(id=OTHER, name="t", partitions=1)), LEADS[2], Reason.TOPIC_EXISTS),
        (DeleteTopic(OTHER), LEADS[2], Reason.UNKNOWN_TOPIC_ID),
        (SetPartitions(OTHER, 3), LEADS[2], Reason.UNKNOWN_TOPIC_ID),
        (SetPartitions(T, 2), LEADS[2], Reason.INVALID_PARTITIONS),
        (SetPartitions(T, 1), LEADS[2], Reason.INVALID_PARTITIONS),
        (SealSegment(4, [0]), LEADS[2], Reason.INVALID_REQUEST),
    ],
)
def test_what_does_not_fit_is_refused(known: Manifest, edit: Edit, by: str, reason: Reason) -> None:
    with raises(InvalidError, reason):
        check(known, edit, by)


@pytest.mark.parametrize(
    ("edit", "by"),
    [
        (CreateTopic(Topic(id=OTHER, name="u", partitions=1)), LEADS[1]),
        (SealSegment(5, [0, 0]), LEADS[1]),
        (AddChunks(LEADS[1], []), LEADS[2]),
        (AddChunks("d" * 32, []), LEADS[2]),
        (SealIncarnation(LEADS[1]), LEADS[2]),
        (OpenIncarnation(Incarnation(id=LEADS[2], broker_id=3, leader_epoch=50, opened_ms=0)), LEADS[2]),
    ],
)
def test_who_is_over_is_told_so(known: Manifest, edit: Edit, by: str) -> None:
    with pytest.raises(FencedError):
        check(known, edit, by)


@pytest.mark.parametrize(
    "edit",
    [
        CreateTopic(Topic(id=OTHER, name="u", partitions=1)),
        SetPartitions(T, 3),
        SealSegment(5, [0, 0]),
        AddChunks(LEADS[0], []),
        SealIncarnation(LEADS[0]),
        CloseIncarnation(LEADS[1]),
        SetLeader(LEADS[2], 99),
    ],
)
def test_what_fits_is_taken(known: Manifest, edit: Edit) -> None:
    check(known, edit, LEADS[2])


def test_numbers_of_commits_only_grow(known: Manifest) -> None:
    """A commit that arrives late must not make a newer one look unexecuted."""
    known.apply([Committed(LEADS[0], 6), Committed(LEADS[0], 5)])
    assert known.commits[LEADS[0]] == 6
