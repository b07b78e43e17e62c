"""The leader's judgement of silent brokers: dead, cut off, or only starved.

Runs: `Detector`, `Attention` and `Pace` by hand, on a time that the test moves; no event loop. Compared: the lost brokers and
the times of their loss, with the table at the top of `cluster/liveness.py`. A mismatch means that healthy brokers replace one
another on a busy machine, or that the leader keeps a dead or hung broker.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cluster.liveness import (
    ASK_AGAIN_S,
    CALM_PAUSES,
    GAP_S_MAX,
    KNOWN_S,
    LATE_S_MIN,
    MEMBER_REPORT_S,
    PAUSE_S_MAX,
    PEAK_S,
    STRETCHED_MAX,
    TICK_S,
    Answer,
    Attention,
    Detector,
    Evidence,
    Lateness,
    Pace,
    is_starved,
    stretched,
)

TIMEOUT_S = 2.0
NAMES = ("a", "b", "c")


class Machine:
    """A leader of some brokers. Time passes in ticks: brokers report, and the leader probes addresses."""

    def __init__(self, names: tuple[str, ...] = ("a",), *, join: bool = True, runs_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.attention = Attention(self.now_s - runs_s)
        for tick in range(round(runs_s / TICK_S)):
            self.attention.woke(self.now_s - runs_s + (tick + 1) * TICK_S)
        self.detector = Detector(self.attention, TIMEOUT_S, MEMBER_REPORT_S, self.now_s)
        self.names = list(names)
        self.answers = dict.fromkeys(names, Answer.ACCEPTED)
        self.reporting = set(names) if join else set[str]()
        self.lost: dict[str, tuple[float, Evidence]] = {}
        """By lost broker: the time and the evidence."""
        self.why = ""
        self.waited_for: list[str] = []
        self._reported_s = dict.fromkeys(names, self.now_s)
        for name in self.reporting:
            self.detector.joined(name, self.now_s)

    def run(self, seconds: float, *, gap_s: float = TICK_S, every_s: float = MEMBER_REPORT_S) -> Machine:
        """Let time pass. `gap_s`: between two ticks of the leader; `every_s`: between two reports of each broker."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick(gap_s)
            for name in self.names:
                if name in self.reporting and self.now_s - self._reported_s[name] >= every_s - 1e-6:
                    self.report(name)
        return self

    def report(self, name: str, late_s: float = 0.0, *, serves: bool = True) -> None:
        self._reported_s[name] = self.now_s
        self.detector.heard(name, self.now_s, late_s=late_s, serves=serves)

    def tick(self, gap_s: float = TICK_S) -> None:
        self.now_s += gap_s
        self.attention.woke(self.now_s)
        left = [name for name in self.names if name not in self.lost]
        for name in self.detector.asking(left, self.now_s):
            self.detector.answered(name, self.answers[name], self.now_s)
        judgement = self.detector.judge(left, self.now_s)
        for one in judgement.lost:
            self.lost[one.incarnation_id] = (self.now_s, one.evidence)
            self.why = one.why
        self.waited_for += [one.incarnation_id for one in judgement.waited_for]

    def silence(self, *names: str, answer: Answer = Answer.ACCEPTED) -> float:
        """From now on these brokers send nothing, and probes of their addresses give this answer. Returns the current time."""
        for name in names:
            self.reporting.discard(name)
            self.answers[name] = answer
        return self.now_s

    def end_stream(self, name: str, answer: Answer) -> float:
        began_s = self.silence(name, answer=answer)
        self.detector.left(name, self.now_s)
        return began_s

    def took(self, name: str, began_s: float) -> float:
        return self.lost[name][0] - began_s


def test_a_stream_that_a_living_broker_gave_up_is_no_death() -> None:
    """The leader was silent, so the member ended its stream; then the member joins again."""
    machine = Machine().run(5)
    machine.end_stream("a", Answer.ACCEPTED)
    machine.run(TIMEOUT_S - 2 * TICK_S)
    assert not machine.lost
    machine.detector.joined("a", machine.now_s)
    machine.reporting.add("a")
    assert not machine.run(20).lost


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [(Answer.ACCEPTED, Evidence.SILENT), (Answer.UNREACHED, Evidence.UNREACHED), (Answer.UNKNOWN, Evidence.SILENT)],
)
def test_on_a_quiet_machine_silence_is_judged_by_the_time_out(answer: Answer, evidence: Evidence) -> None:
    machine = Machine().run(5)
    began_s = machine.silence("a", answer=answer)
    machine.run(5)
    assert TIMEOUT_S - MEMBER_REPORT_S <= machine.took("a", began_s) <= TIMEOUT_S + 2 * TICK_S
    assert machine.lost["a"][1] is evidence


@pytest.mark.parametrize("answer", [Answer.ACCEPTED, Answer.UNREACHED])
def test_a_far_broker_has_the_time_of_a_round_trip_more(answer: Answer) -> None:
    """Its first report comes a round trip after it was admitted; later silences are judged with that time added."""
    machine, round_trip_s = Machine().run(15), 10.0
    machine.detector.admitting("a", is_new=False, round_trip_s=round_trip_s)
    machine.silence("a", answer=answer)
    machine.detector.admitted("a", machine.now_s)
    machine.detector.joined("a", machine.now_s)
    machine.run(round_trip_s)
    assert not machine.lost
    machine.report("a")
    assert machine.detector.late_s("a", machine.now_s) < MEMBER_REPORT_S, "a long way is no lateness"
    began_s = machine.now_s
    machine.run(TIMEOUT_S + round_trip_s + 1)
    assert TIMEOUT_S + round_trip_s <= machine.took("a", began_s) <= TIMEOUT_S + round_trip_s + 3 * TICK_S


def test_a_refusal_says_nothing_of_a_broker_that_has_not_opened_its_door() -> None:
    machine = Machine()
    machine.report("a", serves=False)
    began_s = machine.silence("a", answer=Answer.REFUSED)
    machine.run(TIMEOUT_S - 2 * TICK_S)
    assert not machine.lost
    machine.run(4 * TICK_S)
    assert machine.took("a", began_s) <= TIMEOUT_S + 2 * TICK_S
    assert machine.lost["a"][1] is Evidence.SILENT


@pytest.mark.parametrize("is_new", [True, False])
def test_a_refusal_says_nothing_of_a_broker_that_joins_and_has_not_reported(is_new: bool) -> None:
    """A new broker opens its port after it has joined, and a starved one long after."""
    machine = Machine(join=False)
    machine.answers["a"] = Answer.REFUSED
    machine.detector.admitting("a", is_new=is_new)
    assert not machine.run(60).lost
    machine.detector.admitted("a", machine.now_s)
    machine.detector.joined("a", machine.now_s)
    assert not machine.run(TIMEOUT_S - 2 * TICK_S).lost
    machine.report("a", serves=True)
    began_s = machine.end_stream("a", Answer.REFUSED)
    machine.run(1)
    assert machine.took("a", began_s) <= TICK_S, "its port was open: now the process is gone"


def test_a_starting_broker_that_does_not_get_in_is_no_death() -> None:
    """A starved leader commits the admission, but the broker does not wait for the answer and asks again later."""
    machine = Machine(join=False, runs_s=KNOWN_S)
    machine.answers["a"] = Answer.REFUSED
    machine.detector.admitting("a", is_new=True)
    machine.detector.admitted("a", machine.now_s)
    began_s = machine.now_s
    assert not machine.run(TIMEOUT_S - 2 * TICK_S).lost
    machine.run(4 * TICK_S)
    assert machine.took("a", began_s) <= TIMEOUT_S + 2 * TICK_S and machine.lost["a"][1] is Evidence.SILENT


def test_a_member_of_an_earlier_term_that_dies_before_it_reports_is_not_waited_for() -> None:
    machine = Machine(join=False)
    machine.detector.admitting("a", is_new=False)
    machine.detector.admitted("a", machine.now_s)
    machine.detector.joined("a", machine.now_s)
    began_s = machine.end_stream("a", Answer.REFUSED)
    machine.run(1)
    assert machine.took("a", began_s) <= TICK_S


def test_one_that_asks_to_join_is_not_forgotten() -> None:
    """The manifest does not contain it yet, and its admission takes longer than the pause between two clean-ups."""
    machine = Machine(("speaks",)).run(60)
    machine.names.append("a")
    machine.answers["a"] = Answer.ACCEPTED
    machine.detector.admitting("a", is_new=True)
    machine.detector.forget({"speaks"})
    assert not machine.run(60).lost
    machine.detector.admitted("a", machine.now_s)
    machine.detector.heard("a", machine.now_s, late_s=3.0)
    assert machine.detector.late_s("a", machine.now_s) == 3.0
    machine.detector.forget({"speaks"})
    assert machine.detector.late_s("a", machine.now_s) == 0.0


@pytest.mark.parametrize("late_s", [0.5, 1.0, 2.0, 30.0])
@pytest.mark.parametrize("who", ["leader", "reports", "member"])
def test_where_ticks_or_answers_were_late_silence_is_allowed_longer(who: str, late_s: float) -> None:
    machine = Machine().run(5)
    if who == "leader":
        machine.tick(TICK_S + late_s)
        machine.report("a")
    elif who == "reports":
        machine.run(min(late_s, 1.5) + MEMBER_REPORT_S, every_s=min(late_s, 1.5) + MEMBER_REPORT_S)
        machine.report("a")
    else:
        machine.report("a", late_s)
    assert not machine.lost
    began_s = machine.silence("a")
    allowed_s = machine.detector.allowed_s("a", machine.now_s)
    machine.run(allowed_s - 2 * TICK_S)
    assert not machine.lost and machine.waited_for == ["a"], "it is told once that it is waited for"
    machine.run(4 * TICK_S)
    assert TIMEOUT_S < allowed_s <= STRETCHED_MAX * TIMEOUT_S
    assert abs(machine.took("a", began_s) - allowed_s) <= 2 * TICK_S
    assert f"of {allowed_s:.1f} s allowed" in machine.why, "the numbers that decided it"


def test_a_machine_that_is_quiet_again_is_judged_by_the_time_out_again() -> None:
    machine = Machine().run(5)
    machine.tick(3.0)
    machine.run(2 * PEAK_S + 1)
    assert machine.detector.allowed_s("a", machine.now_s) == TIMEOUT_S
    began_s = machine.silence("a")
    machine.run(5)
    assert machine.took("a", began_s) <= TIMEOUT_S + 2 * TICK_S


def test_a_leader_that_did_not_run_hears_the_others_first() -> None:
    """The leader was stopped for a minute: the reports of that time lie in its sockets."""
    machine = Machine(NAMES).run(5)
    machine.silence(*NAMES)
    machine.tick(60.0)
    assert not machine.lost and not machine.detector.is_cut_off(machine.now_s)


@pytest.mark.parametrize("gap_s", [0.3, 0.8, 1.5, 4.0])
def test_however_starved_the_leader_is_a_hung_broker_is_replaced(gap_s: float) -> None:
    """The bound: `STRETCHED_MAX` times the timeout, in time that the leader was attentive."""
    machine = Machine().run(20, gap_s=gap_s)
    assert not machine.lost
    machine.silence("a")
    began_s = machine.attention.at(machine.now_s)
    machine.run(200, gap_s=gap_s)
    assert machine.attention.at(machine.lost["a"][0]) - began_s <= STRETCHED_MAX * TIMEOUT_S + 2 * GAP_S_MAX


def test_silent_brokers_are_replaced_one_at_a_time_with_growing_pauses() -> None:
    names = tuple("abcdef")
    machine = Machine((*names, "speaks")).run(5)
    machine.silence(*names)
    machine.run(200)
    at_s = sorted(when for when, _ in machine.lost.values())
    assert set(machine.lost) == set(names)
    pauses = [round(after - before, 6) for before, after in pairwise(at_s)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0]


def test_dead_and_unreached_brokers_are_replaced_at_once_however_many() -> None:
    names = tuple("abcdef")
    machine = Machine((*names, "speaks")).run(5)
    for name in "abc":
        machine.end_stream(name, Answer.REFUSED)
    machine.silence("d", "e", "f", answer=Answer.UNREACHED)
    machine.run(TICK_S)
    assert set(machine.lost) == set("abc")
    machine.run(TIMEOUT_S + 2 * TICK_S)
    assert set(machine.lost) == set(names)


def test_pauses_double_up_to_a_limit_and_are_forgotten() -> None:
    pace, now_s, pauses = Pace(TIMEOUT_S), 0.0, []
    for _ in range(8):
        assert pace.allows(now_s)
        pace.took(now_s)
        assert pace.pause_s == 0 or not pace.allows(now_s)
        pauses.append(pace.pause_s)
        now_s += pace.pause_s
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, PAUSE_S_MAX, PAUSE_S_MAX, PAUSE_S_MAX]
    pace.took(now_s + CALM_PAUSES * PAUSE_S_MAX + 1)
    assert pace.pause_s == TIMEOUT_S


def test_a_pause_begins_when_the_failover_has_ended() -> None:
    """A failover on a starved machine may take longer than the pause."""
    pace = Pace(TIMEOUT_S)
    pace.took(10.0)
    pace.ended(15.0)
    assert not pace.allows(15.0 + TIMEOUT_S - 0.1) and pace.allows(15.0 + TIMEOUT_S)
    pace.ended(16.9)
    assert pace.allows(15.0 + TIMEOUT_S), "a failover of dead brokers is not paced"


def test_a_leader_that_has_just_started_does_not_know_whether_its_machine_is_quiet() -> None:
    """All brokers of a starved machine were restarted: the first one leads, and the others join late."""
    machine = Machine(("a", "b"), join=False)
    began_s = machine.now_s
    machine.run(4 * TIMEOUT_S)
    assert not machine.lost
    machine.run(2 * KNOWN_S)
    assert machine.took("a", began_s) >= KNOWN_S and set(machine.lost) == {"a", "b"}
    known = Machine().run(1)
    began_s = known.silence("a")
    known.run(TIMEOUT_S + 2 * TICK_S)
    assert known.took("a", began_s) <= TIMEOUT_S + 2 * TICK_S, "one that has reported on time is judged by the time-out"


def test_brokers_that_never_joined() -> None:
    """A new term: one broker is dead, one is on a lost machine, one hangs."""
    machine = Machine(NAMES, join=False, runs_s=KNOWN_S)
    machine.answers |= {"a": Answer.REFUSED, "b": Answer.UNREACHED}
    began_s = machine.now_s
    machine.detector.begins(began_s, 1.0)
    machine.run(10)
    assert machine.took("a", began_s) <= TICK_S
    for name in "bc":
        assert TIMEOUT_S + 1.0 < machine.took(name, began_s) <= TIMEOUT_S + 1.0 + 2 * TICK_S, (
            "as long as the beginning took, longer"
        )


def test_the_leader_before_is_silent_since_its_last_renewal() -> None:
    machine = Machine(("a", "b"), join=False, runs_s=KNOWN_S)
    machine.answers["a"] = Answer.ACCEPTED
    machine.detector.silent_since("a", 3.0, machine.now_s)
    began_s = machine.now_s
    machine.run(1)
    assert machine.took("a", began_s) <= TICK_S
    starved = Machine(("a",), join=False, runs_s=KNOWN_S)
    starved.attention.woke(starved.now_s + 1.0)
    starved.now_s += 1.0
    starved.detector.silent_since("a", 3.0, starved.now_s)
    assert not starved.run(1).lost, "its renewals may be as late as this broker's timers"


def test_only_suspects_are_asked_and_each_one_question_at_a_time() -> None:
    machine = Machine(("a", "b")).run(5)
    detector = machine.detector
    assert detector.asking(["a", "b"], machine.now_s) == []
    detector.left("a", machine.now_s)
    assert detector.asking(["a", "b"], machine.now_s) == ["a"]
    assert detector.asking(["a", "b"], machine.now_s + 60) == [], "the question has no answer yet"
    detector.answered("a", Answer.ACCEPTED, machine.now_s)
    assert detector.asking(["a", "b"], machine.now_s + ASK_AGAIN_S / 2) == []
    assert detector.asking(["a", "b"], machine.now_s + ASK_AGAIN_S) == ["a"]
    detector.joined("a", machine.now_s)
    detector.answered("a", Answer.REFUSED, machine.now_s)
    assert not detector.judge(["a"], machine.now_s).lost, "an answer that comes too late counts for nothing"


@pytest.mark.parametrize("answer", [Answer.ACCEPTED, Answer.UNREACHED])
def test_when_all_fall_silent_it_is_the_leader_that_is_cut_off(answer: Answer) -> None:
    machine = Machine(NAMES).run(5)
    assert not machine.detector.is_cut_off(machine.now_s)
    machine.silence(*NAMES, answer=answer)
    while not machine.lost and not machine.detector.is_cut_off(machine.now_s):
        machine.tick()
    assert machine.detector.is_cut_off(machine.now_s)
    alone = Machine(("a",)).run(5)
    alone.silence("a")
    assert not alone.run(1.9).detector.is_cut_off(alone.now_s + 10), "of one silent broker nothing is known"


def test_a_starved_leader_does_not_take_itself_for_cut_off() -> None:
    machine = Machine(NAMES).run(5)
    machine.tick(3.0)
    machine.silence(*NAMES)
    machine.run(TIMEOUT_S + 1)
    assert not machine.detector.is_cut_off(machine.now_s) and not machine.lost


@given(st.lists(st.floats(0, 20), min_size=1, max_size=30), st.floats(0.2, 600))
def test_a_stretched_time_out_is_bounded_and_grows_with_lateness(late: list[float], timeout_s: float) -> None:
    allowed = [stretched(timeout_s, late_s) for late_s in sorted(late)]
    assert allowed == sorted(allowed)
    assert all(timeout_s <= one <= STRETCHED_MAX * timeout_s for one in allowed)
    assert stretched(timeout_s, LATE_S_MIN) == timeout_s and not is_starved(LATE_S_MIN)


@given(st.lists(st.tuples(st.floats(0, PEAK_S), st.floats(-1, 20)), max_size=30))
def test_the_peak_of_lateness_covers_the_last_half_minute(steps: list[tuple[float, float]]) -> None:
    lateness, now_s, seen = Lateness(), 100.0, []
    for pause_s, late_s in steps:
        now_s += pause_s
        lateness.observe(late_s, now_s)
        seen.append((now_s, late_s))
    least = max((late_s for at_s, late_s in seen if now_s - at_s < PEAK_S), default=0.0)
    most = max((late_s for at_s, late_s in seen if now_s - at_s <= 2 * PEAK_S), default=0.0)
    assert max(least, 0.0) <= lateness.peak_s(now_s) <= max(most, 0.0)


@given(st.lists(st.floats(0.01, 60), max_size=40))
def test_attention_never_goes_back_and_counts_no_gap_for_more_than_its_limit(gaps: list[float]) -> None:
    attention, now_s, counted_s = Attention(0.0), 0.0, 0.0
    for gap_s in gaps:
        before_s = attention.at(now_s)
        now_s += gap_s
        assert before_s <= attention.at(now_s) <= before_s + gap_s + 1e-9
        attention.woke(now_s)
        counted_s += min(gap_s, GAP_S_MAX)
        assert abs(attention.at(now_s) - counted_s) < 1e-6
        assert attention.late_s(now_s) >= gap_s - TICK_S - 1e-9
