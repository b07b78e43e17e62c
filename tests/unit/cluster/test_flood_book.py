"""Reports of floods: what is remembered, rates, and limits. Pure. A mismatch means that the page shows a wrong progress, or that
reports take memory without limit."""

from __future__ import annotations

import pytest

from headgate.broker.cluster import chronicle, flood_book
from headgate.broker.cluster.flood_book import FloodBook, FloodReport, check_report
from headgate.broker.runtime.errors import InvalidError


def report(phase: str, written: int = 0, flood_id: str = "f", **changes: object) -> FloodReport:
    known = {"topic": "t", "flood_id": flood_id, "phase": phase, "rows_planned": 1000, "rows_written": written}
    return FloodReport(**{**known, **changes})


def test_the_rate_and_the_time_left() -> None:
    book = FloodBook()
    assert book.take(report("writing"), 100.0)
    assert book.floods()[0].rows_per_s == 0 and book.floods()[0].left_s is None
    for second in range(1, 6):
        assert not book.take(report("writing", 100 * second), 100.0 + second)
    (seen,) = book.floods()
    assert seen.rows_per_s == pytest.approx(100) and seen.left_s == pytest.approx(5)
    assert seen.began_s == 100.0 and seen.reported_s == 105.0 and seen.ended_s is None
    book.take(report("committing", 1000), 106.0)
    assert book.floods()[0].rows_per_s == 0 and book.floods()[0].left_s is None


def test_another_phase_has_another_rate() -> None:
    book = FloodBook()
    book.take(report("shuffling", rows_moved=0), 0.0)
    book.take(report("shuffling", rows_moved=500), 1.0)
    assert book.floods()[0].rows_per_s == 500
    book.take(report("writing", 10), 2.0)
    assert book.floods()[0].rows_per_s == 0
    book.take(report("writing", 30), 3.0)
    assert book.floods()[0].rows_per_s == 20


def test_a_flood_ends_is_verified_later_and_may_run_again() -> None:
    book = FloodBook()
    assert book.take(report("counting"), 0.0) and book.take(report("done", 1000), 5.0)
    assert book.floods()[0].ended_s == 5.0
    assert not book.take(report("verifying", 1000, rows_verified=10), 60.0)
    assert book.floods()[0].began_s == 0.0 and book.floods()[0].ended_s is None
    assert book.take(report("failed", 1000), 61.0)
    assert not book.take(report("failed", 1000), 62.0)
    assert book.take(report("counting"), 70.0) and book.floods()[0].began_s == 70.0


def test_the_flood_that_was_silent_for_longest_is_forgotten() -> None:
    book = FloodBook()
    for number in range(flood_book.FLOODS_MAX):
        book.take(report("writing", flood_id=f"f{number}"), float(number))
    book.take(report("writing", flood_id="f0"), 1000.0)
    book.take(report("writing", flood_id="new"), 1001.0)
    known = [one.report.flood_id for one in book.floods()]
    assert len(known) == flood_book.FLOODS_MAX and known[:2] == ["new", "f0"] and "f1" not in known


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phase": "dancing"}, "no such phase"), ({"flood_id": "a/b"}, "gate's id"), ({"topic": ""}, "names a topic"),
        ({"topic": "t" * 250}, "names a topic"), ({"message": "m" * 301}, "at most 300"), ({"rows_written": -1}, "out of range"),
        ({"rows_planned": 1 << 63}, "out of range"),
    ],
)  # fmt: skip
def test_reports_are_bounded(changes: dict[str, object], message: str) -> None:
    check_report(report("writing"))
    with pytest.raises(InvalidError, match=message):
        check_report(report(**{"phase": "writing", **changes}))


def test_the_chronicle_is_bounded() -> None:
    one = chronicle.Chronicle()
    for number in range(chronicle.EVENTS_MAX + 5):
        one.note("gate", "w" * 1000, float(number))
    assert len(one.events) == chronicle.EVENTS_MAX and len(one.events[-1].why) == chronicle.TEXT_CHARS_MAX
    assert one.is_sample_due(0.0)
    one.sample(chronicle.Sample(at_s=0.0, desired=1, live=1, bytes_in_per_s=0, bytes_out_per_s=0))
    assert not one.is_sample_due(chronicle.SAMPLE_S - 0.1) and one.is_sample_due(chronicle.SAMPLE_S)


@pytest.mark.parametrize("verified", [(0, 1000), (1000, 0)])
def test_the_ends_of_a_job_and_of_its_verification_come_in_any_order(verified: tuple[int, int]) -> None:
    book = FloodBook()
    book.take(report("writing", 500), 0.0)
    for number, rows in enumerate(verified):
        book.take(report("done", 1000, rows_verified=rows), 1.0 + number)
    assert book.floods()[0].report.rows_verified == 1000
