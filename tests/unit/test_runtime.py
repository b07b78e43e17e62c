"""Clocks, log lines and metrics, as operators' tools parse them.

Runs the event log into a string, renders metrics and reads them back with Prometheus' own parser. A mismatch means that a line
would be cut in two, a field lost, or a number shown wrongly.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.broker.runtime import clock as clock_module
from headgate.broker.runtime import logging as event_logging
from headgate.broker.runtime.clock import Clock, ManualClock, SteadyClock
from headgate.broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Metrics

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("broker")
    before = (root.handlers[:], root.level, ours.level, logging.raiseExceptions)
    yield
    root.handlers[:], root.level, ours.level, logging.raiseExceptions = before


def test_the_two_clocks_of_a_manual_clock() -> None:
    clock = ManualClock(1000)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic()) == (1250, 0.25)
    clock.jump_wall(-1000)
    assert (clock.now_ms(), clock.monotonic()) == (250, 0.25)


def test_the_machine_s_clocks() -> None:
    clock = Clock()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic() <= clock.monotonic()


def test_a_steady_clock_follows_no_jump() -> None:
    system = ManualClock(NOW_MS)
    clock = SteadyClock(system, 60_000)
    for jump_ms in (2 * 86_400_000, -30 * 86_400_000):
        before_ms = system.now_ms()
        system.jump_wall(jump_ms)
        system.advance(1000)
        clock.check()
        assert clock.now_ms() == before_ms + 1000
        assert clock.doubt is not None and clock.difference_ms == abs(jump_ms)
        system.jump_wall(-jump_ms)
        clock.check()
        assert clock.doubt is None and clock.difference_ms == 0


@pytest.mark.parametrize("difference_ms", [5_000, -5_000])
def test_a_steady_clock_takes_small_differences_back_slowly(difference_ms: int) -> None:
    system = ManualClock(NOW_MS)
    clock = SteadyClock(system, 60_000)
    system.jump_wall(difference_ms)
    seconds = 0
    while clock.now_ms() != system.now_ms():
        before_ms = clock.now_ms()
        system.advance(1000)
        clock.check()
        assert 900 <= clock.now_ms() - before_ms <= 1100 and clock.doubt is None
        seconds += 1
    assert seconds == 50
    system.advance(86_400_000)
    assert clock.now_ms() == system.now_ms(), "between two checks the clock only counts"


def test_a_steady_clock_counts_what_the_machine_slept() -> None:
    class Sleeper(ManualClock):
        slept_ns = 0

        def suspended_ns(self) -> int:
            return self.slept_ns

    system = Sleeper(NOW_MS)
    clock = SteadyClock(system, 60_000)
    system.slept_ns = 7_200_000 * 1_000_000
    system.jump_wall(7_200_000)
    clock.check()
    assert clock.doubt is None and clock.now_ms() == NOW_MS + 7_200_000


def test_a_system_that_does_not_count_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for macOS and the BSDs: only Linux has CLOCK_BOOTTIME."""
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    spec = importlib.util.spec_from_file_location("clock_elsewhere", clock_module.__file__)
    assert spec is not None and spec.loader is not None
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    system = elsewhere.Clock()
    assert system.suspended_ns() == 0
    clock = elsewhere.SteadyClock(system, 60_000)
    clock.check()
    assert clock.doubt is None


def test_a_steady_clock_is_in_doubt_as_long_as_any_other_clock_differs() -> None:
    clock = SteadyClock(ManualClock(NOW_MS), 60_000)
    clock.note("leader", 60_000)
    assert clock.doubt is None
    clock.note("leader", -3 * 86_400_000)
    clock.note("store", 90_000)
    assert clock.doubt is not None and clock.difference_ms == 3 * 86_400_000
    assert clock.doubt.startswith("clock in doubt, nothing is deleted by age: ")
    assert "3.0 d behind the leader's clock" in clock.doubt and "90.0 s ahead of the store's clock" in clock.doubt
    clock.note("leader", 0)
    assert clock.difference_ms == 90_000
    clock.forget("store")
    assert clock.doubt is None


def test_text_lines() -> None:
    out = io.StringIO()
    event_logging.configure("info", "text", out)
    log = event_logging.get_logger("wal")
    log.debug("unseen")
    log.info("chunk_sealed", chunk=7, path="/a b", text="x\ny", empty="", long="z" * 1000)
    line = out.getvalue()
    assert line.count("\n") == 1
    assert line[23:].startswith("Z info    chunk_sealed chunk=7 path='/a b' text='x\\ny' empty='' long=zzz")
    assert len(line) < 700


def test_json_lines() -> None:
    out = io.StringIO()
    event_logging.configure("debug", "auto", out)
    log = event_logging.get_logger("headgate.broker.engine")
    log.debug("opened", count=3, ratio=0.5, error=ValueError("line\nbreak"), nothing=None, flag=True)
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        log.exception("failed", error)
    logging.getLogger("botocore").warning("a %s", "stranger")
    logging.getLogger("botocore").info("unheard")
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert {name: first[name] for name in ("level", "logger", "event", "count", "ratio", "error", "nothing", "flag")} == {
        "level": "debug", "logger": "headgate.broker.engine", "event": "opened", "count": 3, "ratio": 0.5, "error": "line\nbreak",
        "nothing": None, "flag": True,
    }  # fmt: skip
    assert second["level"] == "error" and "RuntimeError: boom" in second["exception"]
    assert (third["event"], third["level"]) == ("a stranger", "warning")


def test_metrics_are_what_prometheus_reads() -> None:
    metrics, histogram = Metrics(), Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7):
        histogram.observe(seconds)
    metrics.counter("headgate_test_bytes", "a counter", lambda: 12)
    metrics.gauge("headgate_test_topics", "by topic", lambda: {("a",): 1.0, ("b",): 2.5}, ("topic",))
    metrics.histogram("headgate_test_seconds", "a histogram", histogram)
    assert metrics.names() == ["headgate_test_bytes", "headgate_test_topics", "headgate_test_seconds"]
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name.startswith("headgate")
    }
    assert samples == {
        ("headgate_test_bytes_total",): 12,
        ("headgate_test_topics", "a"): 1,
        ("headgate_test_topics", "b"): 2.5,
        ("headgate_test_seconds_bucket", "0.1"): 2,
        ("headgate_test_seconds_bucket", "1.0"): 3,
        ("headgate_test_seconds_bucket", "+Inf"): 4,
        ("headgate_test_seconds_count",): 4,
        ("headgate_test_seconds_sum",): 7.65,
    }


def test_a_name_is_registered_once() -> None:
    metrics = Metrics()
    metrics.counter("headgate_once", "", lambda: 0)
    with pytest.raises(AssertionError):
        metrics.gauge("headgate_once", "", lambda: 0)
    with pytest.raises(AssertionError):
        metrics.gauge("kafka_once", "", lambda: 0)


def test_bucket_bounds_rise() -> None:
    assert Histogram(LATENCY_BUCKETS_S).bounds == LATENCY_BUCKETS_S


def test_labels_hold_anything_and_long_texts_are_written_in_steps() -> None:
    metrics = Metrics()
    names = ["plain", 'q"uote', "back\\slash", "new\nline", "\u00fcml\u00e4ut", "{}=,", ""]
    rows = {(f"{name}{number}",): float(number) for number in range(300) for name in names}
    metrics.gauge("headgate_test_rows", 'a text with "quotes", a \\ and\na line', lambda: rows, ("name",))
    metrics.histogram("headgate_test_seconds", "by kind", {("a",): Histogram((1.0,)), ("b",): Histogram((1.0,))}, ("kind",))
    metrics.gauge("headgate_test_broken", "half of a surrogate pair", lambda: {("\ud800",): 1.0}, ("name",))
    steps = metrics.render_steps()
    count = 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        text = end.value.decode()
    assert count > len(rows) // 100
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {(one.labels["name"],): one.value for one in families["headgate_test_rows"].samples} == rows
    assert families["headgate_test_rows"].documentation == 'a text with "quotes", a \\ and\na line'
    kinds = {(one.name, one.labels["kind"], one.labels.get("le")) for one in families["headgate_test_seconds"].samples}
    assert ("headgate_test_seconds_bucket", "b", "+Inf") in kinds and ("headgate_test_seconds_sum", "a", None) in kinds
    assert families["headgate_test_broken"].samples[0].labels == {"name": "?"}


def test_several_observations_of_one_value() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.observe(0.5, 3)
    assert histogram.counts == [0, 3, 0] and histogram.sum == 1.5
