"""All groups of one partition of `__consumer_offsets`: positions, deletion, ageing, and the fold of the log.

The log is a list. Compared: the shard's answers with the records that were reported durable. A mismatch means a position that is
lost, reappears after its deletion, or is readable before it is safe.
"""

from __future__ import annotations

import itertools
import uuid

import pytest

from headgate.broker.coordination.effects import Answer, Append, Budget, Effect, Now, Row, shard_of
from headgate.broker.groups.entry import DeleteReply, RowsReply
from headgate.broker.groups.events import GroupConfig, Heartbeat, JoinReply, Leave, Leaving, State, Sync
from headgate.broker.groups.positions import NEVER, Position
from headgate.broker.groups.records import OffsetValue
from headgate.broker.groups.shard import Commit, Shard
from headgate.broker.runtime.errors import CorruptError, Reason
from tests.unit.groups.world import classic_join

SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


class Log:
    """A shard with its log: appends become durable when the test says so."""

    def __init__(self, groups_max: int = 100, durable: bool = True) -> None:
        self.budget = Budget(groups_max)
        self.shard = Shard(GroupConfig(initial_rebalance_delay_ms=0), self.budget)
        self.now = Now(0, 1_000_000)
        self.durable = durable
        self.rows: list[Row] = []
        self.in_flight: list[Append] = []
        self.answers: dict[object, object] = {}
        self.tokens = itertools.count()

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.token not in self.answers
                self.answers[effect.token] = effect.response
            else:
                self.in_flight.append(effect)
        if self.durable:
            self.store()

    def store(self, error: Reason | None = None) -> None:
        while self.in_flight:
            append = self.in_flight.pop(0)
            if error is None:
                self.rows += append.rows
            self.do(self.shard.stored(append.ticket, error, self.now))

    def commit(self, group: str = "g", *, topic: str = "t", offset: int = 1, **fields: object) -> object:
        token = next(self.tokens)
        position: dict[str, object] = {"topic": topic, "partition": 0, "offset": offset}
        position.update((key, fields.pop(key)) for key in ("metadata", "topic_id", "partition", "leader_epoch") if key in fields)
        row = Position(**position)  # type: ignore[arg-type]
        self.do(self.shard.commit(group, Commit(token=token, positions=(row,), **fields), self.now))  # type: ignore[arg-type]
        return self.answers.get(token)

    def join(self, group: str = "g", metadata: bytes = SUBSCRIPTION, protocol_type: str = "consumer") -> str:
        """The only member of its group, with its assignment."""
        member = f"m{next(self.tokens)}"
        for event in (
            classic_join((member, "join"), member, protocol_type=protocol_type, protocols=(("range", metadata),)),
            Sync(token=(member, "sync"), member_id=member, generation=1),
        ):
            self.do(self.shard.handle(group, event, self.now))
        reply = self.answers[member, "join"]
        assert isinstance(reply, JoinReply) and reply.error is None
        return member

    def leave(self, member: str, group: str = "g") -> None:
        self.do(self.shard.handle(group, Leave(token=next(self.tokens), members=(Leaving(member_id=member),)), self.now))

    def delete(self, group: str = "g") -> object:
        token = next(self.tokens)
        self.do(self.shard.delete_group(group, token, self.now))
        return self.answers.get(token)

    def delete_positions(self, *rows: tuple[str, int], group: str = "g") -> object:
        token = next(self.tokens)
        self.do(self.shard.delete_positions(group, list(rows), token, self.now))
        return self.answers.get(token)

    def clean(self, retention_ms: int = NEVER, gone: str = "") -> None:
        exists = lambda topic, value: topic != gone  # noqa: E731
        self.do(self.shard.clean(self.now, retention_ms=retention_ms, empty_group_ms=600_000, topic_exists=exists))

    def offset(self, group: str = "g", topic: str = "t", partition: int = 0) -> int | None:
        value = self.shard.position(group, topic, partition)
        return None if value is None else value.offset

    def replayed(self, rows: list[Row] | None = None) -> Shard:
        shard = Shard(self.shard.config, Budget(100))
        for key, value in self.rows if rows is None else rows:
            shard.replay(key, value)
        shard.loaded(self.now)
        return shard

    def shows(self, shard: Shard) -> object:
        listing = sorted(shard.list_groups())
        return [(row, sorted(shard.positions(row.group_id))) for row in listing]


OK = RowsReply((None,))


def test_a_simple_consumer_commits_and_its_group_appears() -> None:
    log = Log()
    topic_id = uuid.uuid4()
    assert log.commit(offset=7, leader_epoch=3, metadata="text", topic_id=topic_id) == OK
    assert log.shard.position("g", "t", 0) == OffsetValue(7, 3, "text", 1_000_000, -1, topic_id)
    assert [tuple(row) for row in log.shard.list_groups()] == [("g", "", State.EMPTY, 0, "classic")]
    assert log.shows(log.replayed()) == log.shows(log.shard)


def test_a_position_is_shown_and_acked_only_once_it_is_durable() -> None:
    log = Log(durable=False)
    assert log.commit(offset=7) is None and log.offset() is None
    log.store()
    assert log.offset() == 7 and log.answers == {0: OK}


def test_a_position_that_cannot_be_stored_is_refused_and_not_shown() -> None:
    log = Log(durable=False)
    log.commit(offset=7)
    log.store(Reason.COORDINATOR_NOT_AVAILABLE)
    assert log.answers == {0: RowsReply((Reason.COORDINATOR_NOT_AVAILABLE,))}
    assert log.offset() is None and not list(log.shard.list_groups()) and log.budget.ids == 0


def test_metadata_of_4096_characters_fits_and_one_more_does_not() -> None:
    log = Log()
    assert log.commit(metadata="ü" * 4096) == OK
    assert log.commit(offset=2, metadata="x" * 4097) == RowsReply((Reason.OFFSET_METADATA_TOO_LARGE,))
    assert log.offset() == 1
    rows = (
        Position(topic="t", partition=1, offset=5),
        Position(topic="t", partition=2, offset=5, metadata="x" * 40_000),
    )
    log.do(log.shard.commit("g", Commit(token="both", positions=rows), log.now))
    assert log.answers["both"] == RowsReply((None, Reason.OFFSET_METADATA_TOO_LARGE))
    assert (log.offset(partition=1), log.offset(partition=2)) == (5, None)


def test_members_of_groups_that_do_not_exist() -> None:
    log = Log()
    assert log.commit(member_id="m", generation=3) == RowsReply(error=Reason.ILLEGAL_GENERATION)
    assert log.commit(member_id="m", generation=3, unknown_group=Reason.GROUP_ID_NOT_FOUND) == RowsReply(
        error=Reason.GROUP_ID_NOT_FOUND
    )
    for event in (
        Sync(token="sync", member_id="m", generation=1),
        Heartbeat(token="beat", member_id="m", generation=1),
        Leave(token="leave", members=(Leaving(member_id="m"),)),
    ):
        log.do(log.shard.handle("g", event, log.now))
    assert {getattr(log.answers[token], "error", None) for token in ("sync", "beat")} == {Reason.UNKNOWN_MEMBER_ID}
    assert getattr(log.answers["leave"], "members", None) == ((Leaving(member_id="m"), Reason.UNKNOWN_MEMBER_ID),)
    log.do(log.shard.handle("", Heartbeat(token="nameless", member_id="m", generation=1), log.now))
    assert getattr(log.answers["nameless"], "error", None) is Reason.INVALID_GROUP_ID
    assert not list(log.shard.list_groups())


def test_members_commit_and_strangers_do_not() -> None:
    log = Log()
    member = log.join()
    assert log.commit(member_id=member, generation=1, offset=4) == OK
    assert log.commit(member_id=member, generation=0) == RowsReply(error=Reason.ILLEGAL_GENERATION)
    assert log.commit() == RowsReply(error=Reason.UNKNOWN_MEMBER_ID)
    log.leave(member)
    assert log.commit(member_id=member, generation=1) == RowsReply(error=Reason.UNKNOWN_MEMBER_ID)
    assert log.commit(offset=5) == OK, "the group is empty: an administrator resets it"


def test_groups_with_members_live_on_after_a_crash_and_empty_ones_wait() -> None:
    log = Log()
    member = log.join("a")
    log.leave(log.join("b"), "b")
    log.commit("b", offset=3)
    shard = log.replayed()
    assert log.shows(shard) == log.shows(log.shard)
    log.do(shard.handle("a", Heartbeat(token="beat", member_id=member, generation=1), log.now))
    assert getattr(log.answers["beat"], "error", "none") is None
    assert shard.next_deadline_ms == 10_000
    assert [type(effect) for effect in shard.tick(Now(10_000, 0))] == [Append], "the member is gone: the group is empty"
    assert {row.group_id: row.state for row in shard.list_groups()} == {"a": State.EMPTY, "b": State.EMPTY}


def test_only_handshakes_leave_nothing_behind() -> None:
    log = Log()
    log.do(log.shard.handle("g", classic_join("join", require_member_id=True), log.now))
    assert [row.group_id for row in log.shard.list_groups()] == ["g"]
    log.do(log.shard.tick(Now(10_000, 0)))
    assert not list(log.shard.list_groups()) and not log.rows and log.budget.ids == 0


def test_the_number_of_groups_is_limited() -> None:
    log = Log(groups_max=2)
    assert log.commit("a") == OK and log.commit("b") == OK
    assert log.commit("c") == RowsReply(error=Reason.GROUP_MAX_SIZE_REACHED)
    assert log.commit("a", offset=2) == OK
    log.do(log.shard.handle("c", classic_join("join", require_member_id=True), log.now))
    assert getattr(log.answers["join"], "error", None) is Reason.GROUP_MAX_SIZE_REACHED
    assert log.delete("a") == DeleteReply() and log.commit("c") == OK


# -- deletion


def test_deleting_a_group_deletes_its_positions_for_good() -> None:
    log = Log()
    member = log.join()
    log.commit(member_id=member, generation=1, offset=4)
    assert log.delete() == DeleteReply(Reason.NON_EMPTY_GROUP)
    log.leave(member)
    assert log.delete() == DeleteReply()
    assert log.delete() == DeleteReply(Reason.GROUP_ID_NOT_FOUND)
    assert log.offset() is None and log.shows(log.replayed()) == [] == log.shows(log.shard)


def test_a_commit_on_its_way_does_not_outlive_the_group() -> None:
    log = Log(durable=False)
    log.commit(offset=1)
    log.store()
    log.commit(offset=2, partition=9)
    log.delete()
    assert log.commit(offset=3) == RowsReply(error=Reason.COORDINATOR_NOT_AVAILABLE)
    log.store()
    assert log.shows(log.shard) == [] == log.shows(log.replayed())


def test_a_group_that_could_not_be_deleted_is_still_there() -> None:
    log = Log(durable=False)
    log.commit(offset=1)
    log.store()
    log.delete()
    log.store(Reason.COORDINATOR_NOT_AVAILABLE)
    assert log.answers[1] == DeleteReply(Reason.COORDINATOR_NOT_AVAILABLE)
    assert log.offset() == 1 and log.shows(log.shard) == log.shows(log.replayed())


def test_positions_of_topics_that_are_read_cannot_be_deleted() -> None:
    log = Log()
    member = log.join()
    for topic in ("t", "old"):
        log.commit(member_id=member, generation=1, topic=topic)
    assert log.delete_positions(("t", 0), ("old", 0), ("never", 5)) == RowsReply((Reason.GROUP_SUBSCRIBED_TO_TOPIC, None, None))
    assert (log.offset(), log.offset(topic="old")) == (1, None)
    log.leave(member)
    assert log.delete_positions(("t", 0), ("t", 0)) == RowsReply((None, None))
    assert log.offset() is None
    assert log.delete_positions(("t", 0), group="x") == RowsReply(error=Reason.GROUP_ID_NOT_FOUND)


def test_a_group_without_its_last_position_is_empty_until_it_expires() -> None:
    """Kafka lists it until its next look for expired groups. Tools delete positions and then describe the group."""
    log = Log()
    log.commit()
    assert log.delete_positions(("t", 0)) == RowsReply((None,))
    for shard in (log.shard, log.replayed()):
        assert [(one.group_id, one.state) for one in shard.list_groups()] == [("g", State.EMPTY)]
    log.commit()
    assert log.offset() == 1
    assert log.delete_positions(("t", 0)) == RowsReply((None,))
    assert log.delete() == DeleteReply()
    assert list(log.shard.list_groups()) == list(log.replayed().list_groups()) == []


def test_a_deletion_of_the_last_position_that_is_lost_changes_nothing() -> None:
    log = Log()
    log.commit()
    log.durable = False
    assert log.delete_positions(("t", 0)) is None
    log.store(Reason.COORDINATOR_NOT_AVAILABLE)
    assert log.offset() == 1 and log.shows(log.shard) == log.shows(log.replayed())


@pytest.mark.parametrize(
    ("protocol_type", "reply"),
    [("consumer", RowsReply((Reason.GROUP_SUBSCRIBED_TO_TOPIC,))), ("connect", RowsReply(error=Reason.NON_EMPTY_GROUP))],
)
def test_a_group_whose_topics_cannot_be_known_keeps_its_positions(protocol_type: str, reply: RowsReply) -> None:
    log = Log()
    member = log.join(metadata=b"garbage", protocol_type=protocol_type)
    log.commit(member_id=member, generation=1)
    assert log.delete_positions(("t", 0)) == reply


# -- ageing


def test_positions_never_expire_by_default() -> None:
    log = Log()
    log.commit(offset=1)
    log.now = Now(0, 1_000_000 + 10 * 365 * 86_400_000)
    log.clean()
    assert log.offset() == 1


def test_positions_of_a_simple_consumer_age_from_their_commit() -> None:
    log = Log()
    log.commit(offset=1)
    log.now = Now(0, 1_000_999)
    log.commit(offset=2, partition=1)
    log.clean(retention_ms=1_000)
    assert log.offset() == 1
    log.now = Now(0, 1_001_000)
    log.clean(retention_ms=1_000)
    assert (log.offset(), log.offset(partition=1)) == (None, 2)
    assert log.shows(log.replayed()) == log.shows(log.shard)


def test_positions_of_a_group_age_from_its_last_member_and_not_while_it_reads() -> None:
    log = Log()
    member = log.join()
    log.commit(member_id=member, generation=1, offset=1)
    log.commit(member_id=member, generation=1, topic="old")
    log.now = Now(0, 2_000_000)
    log.clean(retention_ms=1_000)
    assert (log.offset(), log.offset(topic="old")) == (1, None), "only a topic that it does not read any more"
    log.leave(member)
    log.now = Now(0, 2_000_999)
    log.clean(retention_ms=1_000)
    assert log.offset() == 1
    shard = log.replayed()
    log.now = Now(0, 2_001_000)
    for each in (shard, log.shard):
        effects = each.clean(log.now, retention_ms=1_000, empty_group_ms=10**9, topic_exists=lambda topic, value: True)
        assert [len(effect.rows) for effect in effects if isinstance(effect, Append)] == [1]


def test_an_expiry_that_the_client_asked_for_is_kept() -> None:
    log = Log()
    log.commit(offset=1, retention_ms=500)
    log.now = Now(0, 1_000_499)
    log.clean()
    assert log.offset() == 1
    log.now = Now(0, 1_000_500)
    log.clean()
    assert log.offset() is None


def test_positions_of_deleted_topics_are_forgotten() -> None:
    log = Log()
    log.commit(offset=1)
    log.commit(topic="gone")
    log.clean(gone="gone")
    assert (log.offset(), log.offset(topic="gone")) == (1, None)


def test_an_empty_group_without_positions_is_forgotten_after_a_while() -> None:
    log = Log()
    log.leave(log.join())
    log.clean()
    assert [row.group_id for row in log.shard.list_groups()] == ["g"]
    log.now = Now(0, 1_600_000)
    log.clean()
    assert not list(log.shard.list_groups()) and log.shows(log.replayed()) == []


def test_cleaning_leaves_what_is_in_flight_alone() -> None:
    log = Log()
    log.commit(offset=1)
    log.durable = False
    log.commit(offset=2)
    log.clean(gone="t")
    log.store()
    assert log.offset() == 2


# -- the fold of the log


def test_a_snapshot_is_the_state_with_what_is_on_its_way() -> None:
    log = Log()
    member = log.join("a")
    log.commit("a", member_id=member, generation=1, offset=1)
    log.commit("b", offset=1)
    log.commit("c", offset=1)
    assert log.shard.rows_appended == 4 and log.shard.live_count() == 4
    log.durable = False
    log.commit("b", offset=2)
    log.commit("d", offset=9)
    log.delete("c")
    snapshot = [row for rows in log.shard.snapshot() for row in rows]
    assert log.shard.rows_appended == 0
    log.store()
    assert log.shows(log.replayed(snapshot)) == log.shows(log.shard) == log.shows(log.replayed())


def test_unloading_answers_everybody_once() -> None:
    log = Log(durable=False)
    log.commit(offset=1)
    log.delete("x")
    log.do(log.shard.unload(Reason.NOT_COORDINATOR))
    assert log.answers == {0: RowsReply((Reason.NOT_COORDINATOR,)), 1: DeleteReply(Reason.GROUP_ID_NOT_FOUND)}
    log.store()
    assert not list(log.shard.list_groups()) and log.budget.ids == 0 and log.shard.next_deadline_ms is None


def test_group_records_that_fail_do_not_enter_a_snapshot() -> None:
    log = Log()
    log.leave(log.join())
    before = [row for rows in log.shard.snapshot() for row in rows]
    log.durable = False
    log.do(log.shard.handle("g", classic_join("join", "n"), log.now))
    log.do(log.shard.handle("g", Sync(token="sync", member_id="n", generation=3), log.now))
    assert log.in_flight
    log.store(Reason.INTERNAL)
    assert getattr(log.answers["sync"], "error", None) is Reason.INTERNAL
    assert [row for rows in log.shard.snapshot() for row in rows] == before


def test_foreign_and_garbled_records() -> None:
    shard = Shard(GroupConfig(), Budget(10))
    shard.replay(b"\x00\x03\x00\x01g", b"whatever")
    shard.replay(b"\x00\x02\x00\x01g", None)
    shard.replay(b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", None)
    for key, value in ((b"", b""), (b"\x00\x02\x00\x01g", b"\x00\x09"), (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00")):
        with pytest.raises(CorruptError):
            shard.replay(key, value)
    shard.loaded(Now(0, 0))
    assert not list(shard.list_groups())


def test_groups_lie_where_kafka_puts_them() -> None:
    """Expected numbers: java.lang.String.hashCode and Kafka 4.1's Utils.abs, of 50 partitions."""
    assert [shard_of(group, 50) for group in ("my-group", "grüße-🎉", "polygenelubricants", "")] == [12, 39, 0, 0]
