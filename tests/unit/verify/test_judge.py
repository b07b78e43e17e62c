"""Histories written by hand, each with one defect, against the judge of the verifier.

Every kind of violation has a history that breaks only its rule, and a similar one that is allowed. A mismatch means that
the verifier would call a broken endpoint right, or a right one broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from headgate.broker.verify.history import (
    Outcome,
    PlaceHistory,
    ProducerInfo,
    Session,
    SessionKind,
    operations,
    reads,
)
from headgate.broker.verify.judge import EXAMPLES_MAX, judge_place
from headgate.broker.verify.value import HEAD_BYTES, Unread, key_of, read_stamp, value_of
from headgate.broker.verify.verdict import RULES, STRICT_ONLY, Kind

IDEMPOTENT, PLAIN = 0, 1
LIVE, FINAL, MEMBER, OTHER_MEMBER = 10, 11, 12, 13
OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
PRODUCERS = {number: ProducerInfo(number=number, idempotent=number == IDEMPOTENT) for number in (IDEMPOTENT, PLAIN)}
SESSIONS = {
    LIVE: Session(number=LIVE, kind=SessionKind.LIVE, name="reader"),
    FINAL: Session(number=FINAL, kind=SessionKind.FINAL, name="final"),
    MEMBER: Session(number=MEMBER, kind=SessionKind.GROUP, name="member-0", group="g"),
    OTHER_MEMBER: Session(number=OTHER_MEMBER, kind=SessionKind.GROUP, name="member-1", group="g"),
}

Told = tuple[int, Outcome, int, int]
"""Producer, outcome, sequence, offset (-1: not told)."""
Shown = tuple[int, int, int, int]
"""Session, producer, offset, sequence."""


@dataclass
class Given:
    told: Sequence[Told]
    shown: Sequence[Shown]
    low: int = 0
    high: int = 3
    positions: dict[str, int] = field(default_factory=dict)
    is_complete: bool = True
    lasts_us: int = 1_000
    """Time from sending to acknowledgement, us. A record is sent each microsecond, so by default all are under way at once."""


def log(*sequences: int, producer: int = IDEMPOTENT, session: int = FINAL, start: int = 0) -> list[Shown]:
    """Records of a session, from `start` on; a sequence below 0 leaves out the offset."""
    return [(session, producer, start + at, sequence) for at, sequence in enumerate(sequences) if sequence >= 0]


def acked(*offsets: int, producer: int = IDEMPOTENT) -> list[Told]:
    """The producer's sequences 0, 1, 2 ... acknowledged at these offsets."""
    return [(producer, OK, sequence, offset) for sequence, offset in enumerate(offsets)]


RIGHT = {
    "each once and in order": Given(acked(0, 1, 2), log(0, 1, 2) + log(0, 1, 2, session=LIVE)),
    "nothing was written": Given([], [], high=0),
    "a record without an answer is there": Given([*acked(0, 1), (IDEMPOTENT, UNKNOWN, 2, -1)], log(0, 1, 2)),
    "a record without an answer is not there": Given([*acked(0, 1), (IDEMPOTENT, UNKNOWN, 2, -1)], log(0, 1), high=2),
    "a refused record is not there": Given([*acked(0, 1), (IDEMPOTENT, REFUSED, 2, -1)], log(0, 1), high=2),
    "retention has deleted the first ones": Given(acked(0, 1, 2), log(2, start=2) + log(0, 1, 2, session=LIVE), low=2),
    "an acknowledgement without an offset": Given([(IDEMPOTENT, OK, 0, -1)], log(0), high=1),
    "two producers between each other": Given(
        [*acked(0, 2), *acked(1, producer=PLAIN)], [*log(0, -1, 1), *log(0, producer=PLAIN, start=1)]
    ),
    "a record without an answer comes late": Given(
        [(PLAIN, UNKNOWN, 0, -1), (PLAIN, OK, 1, 0), (PLAIN, OK, 2, 1)], log(1, 2, 0, producer=PLAIN)
    ),
    "a live reader that began later and ended before": Given(acked(0, 1, 2), log(0, 1, 2) + log(1, session=LIVE, start=1)),
    "a group's second member reads again what was not committed": Given(
        acked(0, 1, 2), log(0, 1, 2) + log(0, 1, session=MEMBER) + log(1, 2, session=OTHER_MEMBER, start=1), positions={"g": 3}
    ),
    "a group that has not read everything": Given(acked(0, 1, 2), log(0, 1, 2) + log(0, session=MEMBER), positions={"g": 1}),
    "the final read did not come to the end": Given(acked(0, 1, 2), log(0), is_complete=False),
    "records of other programs": Given(acked(0, 2), [*log(0, -1, 1), (FINAL, Unread.FOREIGN, 1, -1)]),
}

WRONG = {
    "the last record is missing": (Kind.LOST, 1, Given(acked(0, 1, 2), log(0, 1), high=2)),
    "a record without a told offset is missing": (Kind.LOST, 1, Given([*acked(0), (IDEMPOTENT, OK, 1, -1)], log(0), high=1)),
    "everything is missing": (Kind.LOST, 3, Given(acked(0, 1, 2), [], high=0)),
    "an idempotent producer's record twice": (Kind.DUPLICATED, 1, Given(acked(0, 1), log(0, 1, 0))),
    "an unacknowledged record twice": (Kind.DUPLICATED, 1, Given([*acked(0), (IDEMPOTENT, UNKNOWN, 1, -1)], log(0, 1, 1))),
    "a record three times": (Kind.DUPLICATED, 2, Given(acked(0), log(0, 0, 0))),
    "a plain producer's record twice": (Kind.DUPLICATED_PLAIN, 1, Given(acked(0, 2, producer=PLAIN), log(0, 0, 1, producer=PLAIN))),
    "two records the other way round": (Kind.REORDERED, 1, Given(acked(0, 2, 1), log(0, 2, 1))),
    "one record behind two later ones": (Kind.REORDERED, 2, Given(acked(2, 0, 1), log(1, 2, 0))),
    "a plain producer's records the other way round": (
        Kind.REORDERED_PLAIN,
        1,
        Given(acked(1, 0, producer=PLAIN), log(1, 0, producer=PLAIN), high=2),
    ),
    "a record sent after an acknowledgement stands before it": (
        Kind.OVERTOOK,
        1,
        Given([*acked(1, producer=PLAIN), (IDEMPOTENT, OK, 0, 0)], [*log(0), *log(0, producer=PLAIN, start=1)], high=2, lasts_us=0),
    ),
    "a record that was read is gone": (
        Kind.VANISHED,
        1,
        Given([*acked(0, 1), (IDEMPOTENT, UNKNOWN, 2, -1)], log(0, 1) + log(0, 1, 2, session=LIVE), high=2),
    ),
    "a record that a group was shown is gone": (
        Kind.VANISHED,
        1,
        Given([*acked(0), (IDEMPOTENT, UNKNOWN, 1, -1)], log(0) + log(0, 1, session=MEMBER), high=1),
    ),
    "an offset was acknowledged twice": (
        Kind.TWO_VALUES,
        1,
        Given([*acked(0, 1), (PLAIN, OK, 0, 1)], [*log(0, 1), *log(0, producer=PLAIN, start=2)]),
    ),
    "a reader was shown another record at the offset": (
        Kind.TWO_VALUES,
        1,
        Given([*acked(0, 1), (PLAIN, UNKNOWN, 0, -1)], [*log(0, 1), *log(0, session=LIVE), (LIVE, PLAIN, 1, 0)], high=2),
    ),
    "the record is one offset further": (Kind.MOVED, 1, Given(acked(0, 5), log(0, 1), high=2)),
    "a value was changed": (Kind.CHANGED, 1, Given(acked(0, 2), [*log(0, -1, 1), (FINAL, Unread.CHANGED, 1, -1)])),
    "a record of this run that it did not send": (Kind.NEVER_SENT, 1, Given(acked(0, 1), log(0, 1, 7))),
    "a refused record is there": (Kind.REFUSED, 1, Given([*acked(0, 1), (IDEMPOTENT, REFUSED, 2, -1)], log(0, 1, 2))),
    "a reader is shown a record again": (
        Kind.READ_BACKWARDS,
        1,
        Given(acked(0, 1, 2), [*log(0, 1, 2), (LIVE, 0, 0, 0), (LIVE, 0, 1, 1), (LIVE, 0, 1, 1), (LIVE, 0, 2, 2)]),
    ),
    "a reader steps over a record": (Kind.STEPPED_OVER, 1, Given(acked(0, 1, 2), log(0, 1, 2) + log(0, -1, 2, session=LIVE))),
    "a group commits past a record": (
        Kind.GROUP_MISSED,
        1,
        Given(
            acked(0, 1, 2),
            log(0, 1, 2) + log(0, session=MEMBER) + log(2, session=OTHER_MEMBER, start=2),
            positions={"g": 3},
        ),
    ),
    "an offset in the middle has no record": (Kind.GAP, 1, Given(acked(0, 2), log(0, -1, 1))),
    "the first offset has no record": (Kind.GAP, 1, Given(acked(1, 2), log(-1, 0, 1))),
    "the last offset has no record": (Kind.GAP, 1, Given(acked(0, 1), log(0, 1))),
}


def judged(given: Given) -> dict[Kind, int]:
    """Counts by kind. The final read of a hand-written history is sorted by offset."""
    shown = sorted(given.shown, key=lambda row: row[2] if row[0] == FINAL else -1)
    history = PlaceHistory(
        place=0,
        operations=operations(
            [
                (producer, outcome, sequence, offset, at, -1 if outcome is UNKNOWN else at + given.lasts_us)
                for at, (producer, outcome, sequence, offset) in enumerate(given.told)
            ]
        ),
        reads=reads(
            [(session, producer, offset, sequence, 100_000 + at) for at, (session, producer, offset, sequence) in enumerate(shown)]
        ),
        low=given.low,
        high=given.high,
        is_complete=given.is_complete,
    )
    findings, _ = judge_place(history, PRODUCERS, SESSIONS, given.positions, (0, 10_000))
    assert all(found.place == 0 and found.text for found in findings.examples)
    assert {found.kind for found in findings.examples} == {kind for kind, count in findings.counts.items() if count}
    return {kind: count for kind, count in findings.counts.items() if count}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_is_right(name: str) -> None:
    assert judged(RIGHT[name]) == {}


@pytest.mark.parametrize("name", WRONG)
def test_a_defect_is_found_and_counted_once(name: str) -> None:
    kind, count, given = WRONG[name]
    assert judged(given) == {kind: count}


def test_every_kind_has_a_rule_and_those_of_records_have_a_defect() -> None:
    assert set(RULES) == set(Kind)
    about_answers = {Kind.POSITION_BACK, Kind.POSITION_UNKNOWN, Kind.WATERMARK_BACK}
    assert {kind for kind, _, _ in WRONG.values()} == set(Kind) - about_answers
    assert set(Kind) > STRICT_ONLY


def test_a_truncated_log_that_went_on_is_all_of_it() -> None:
    """An unclean election: the last records are gone, and other records have their offsets."""
    given = Given(
        [*acked(0, 1, 2), (PLAIN, OK, 0, 1)],
        log(0) + log(0, producer=PLAIN, start=1) + log(0, 1, 2, session=LIVE),
        high=2,
    )
    assert judged(given) == {Kind.LOST: 2, Kind.VANISHED: 1, Kind.TWO_VALUES: 1}


def test_examples_are_bounded_and_counts_are_not() -> None:
    told = acked(*range(500))
    history = PlaceHistory(
        place=0,
        operations=operations([(producer, outcome, sequence, offset, 0, 1) for producer, outcome, sequence, offset in told]),
        reads=reads([]),
        low=0,
        high=0,
        is_complete=True,
    )
    findings, counts = judge_place(history, PRODUCERS, SESSIONS, {}, (0, 10))
    assert findings.counts[Kind.LOST] == 500
    assert len(findings.examples) == EXAMPLES_MAX
    assert [found.offset for found in findings.examples] == list(range(EXAMPLES_MAX))
    assert (counts.sent, counts.acked) == (500, 500)


def test_the_longest_time_without_an_acknowledgement() -> None:
    rows = [(0, OK, at, at, ended_us - 1_000, ended_us) for at, ended_us in enumerate([2_000, 3_000, 8_000, 9_000])]
    history = PlaceHistory(place=0, operations=operations(rows), reads=reads([]), low=0, high=0, is_complete=False)
    _, counts = judge_place(history, PRODUCERS, SESSIONS, {}, (1_000, 10_000))
    assert (counts.unavailable_us, counts.unavailable_from_us, counts.latency_us_max) == (5_000, 3_000, 1_000)
    _, counts = judge_place(history, PRODUCERS, SESSIONS, {}, (1_000, 30_000))
    assert (counts.unavailable_us, counts.unavailable_from_us) == (21_000, 9_000), "the end without any acknowledgement counts"


def test_a_value_says_who_wrote_it_and_any_change_of_it_shows() -> None:
    value, key = value_of(7, 3, 5, 11, 200), key_of(5, 11)
    assert len(value) == 200
    assert read_stamp(7, 5, key, value) == (3, 11)
    for at in range(8, len(value)):
        changed = bytearray(value)
        changed[at] ^= 1
        assert read_stamp(7, 5, key, bytes(changed)).producer < 0, at
    assert read_stamp(7, 4, key, value).producer is Unread.CHANGED, "another partition"
    assert read_stamp(7, 5, b"other", value).producer is Unread.CHANGED
    assert read_stamp(7, 5, key, value[:-1]).producer is Unread.CHANGED
    assert read_stamp(8, 5, key, value).producer is Unread.FOREIGN, "another run"
    assert read_stamp(7, 5, None, b"hello").producer is Unread.FOREIGN
    assert read_stamp(7, 5, None, None).producer is Unread.FOREIGN
    assert len(value_of(7, 3, 5, 11, 1)) == HEAD_BYTES
