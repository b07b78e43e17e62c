"""Bugs planted into the simulated cluster, which the seeds must find: they prove that the checkers can fail.

Among them are bugs that the simulation found in the past. A mismatch means that a checker sees nothing any more.
"""

from __future__ import annotations

import pytest

from tests.support.simulation import simulate

CANARY_SEEDS = 500
CANARY_FIRST_SEED = {
    "no-fence-check": 330,
    "ack-before-durable": 25,
    "lead-after-seal": 105,
    "half-a-gate": 118,
    "readers-pass-gates": 15,
    "deaf-recovery": 963,
    "fixed-timeout": 160,
    "jumping-producers": 35,
    "no-proof": 15,
    "half-resigned": 80,
    "loyal-follower": 330,
    "forgotten-files": 40,
    "late-folds": 20,
}
"""Bugs that few seeds show: where their search begins, which saves minutes. Any change of the cluster changes the seeds' lives."""
LONG = ("no-proof",)
"""Bugs that show only in long lives, in which a broker is stopped for longer than its replacement takes."""


@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    ("bug", "checkers"),
    [
        ("no-fence-check", ("a fenced broker never acks",)),
        ("ack-before-durable", ("a fenced broker never acks", "acked records are there", "one record per offset")),
        ("no-sequences", ("retries never duplicate",)),
        ("no-replay", ("retries never duplicate",)),
        ("seal-half", ("the cluster goes on", "state is sound")),
        ("lead-after-seal", ("the cluster goes on",)),
        pytest.param("half-resigned", ("the cluster goes on",), marks=pytest.mark.slow),
        ("no-expiry", ("capacity ends",)),
        ("half-a-gate", ("a gate is filled whole",)),
        ("readers-pass-gates", ("history, then live",)),
        ("deaf-recovery", ("a fenced broker never acks", "acked records are there", "one record per offset")),
        ("fixed-timeout", ("starved brokers stay",)),
        ("jumping-retention", ("records live as long as retention says",)),
        ("jumping-producers", ("retries never duplicate",)),
        ("jumping-appends", ("writes go on", "records live as long as retention says", "retries never duplicate")),
        pytest.param(
            "no-downtime",
            ("records live as long as retention says", "writes go on", "retries never duplicate"),
            marks=pytest.mark.slow,
        ),
        pytest.param("loyal-follower", ("a fenced broker never acks", "acked records are there"), marks=pytest.mark.slow),
        ("no-proof", ("answers are current",)),
        ("forgotten-files", ("the cluster goes on", "acked records are there", "one record per offset")),
        pytest.param("late-folds", ("the cluster goes on", "state is sound"), marks=pytest.mark.slow),
        ("folded-aborts", ("aborted records stay hidden",)),
        pytest.param("unstable-folds", ("aborted records stay hidden", "transactions are atomic"), marks=pytest.mark.slow),
        ("forgiving-coordinator", ("zombies are fenced", "transactions are atomic")),
        ("forgetful-coordinator", ("the cluster goes on",)),
        ("forgetful-recovery", ("aborted records stay hidden",)),
        ("unstable-readers", ("aborted records stay hidden",)),
        ("unnamed-aborts", ("aborted records stay hidden",)),
        ("early-positions", ("positions go with their transaction",)),
        ("no-consent", ("aborted records stay hidden", "the cluster goes on")),
    ],
)
def test_canaries(bug: str, checkers: tuple[str, ...]) -> None:
    long = ("--long",) if bug in LONG else ()
    first = CANARY_FIRST_SEED.get(bug, 0)
    seeds = f"{first}-{first + CANARY_SEEDS - 1}"
    status, printed = simulate("--first", *long, "--bug", bug, "--expect", *checkers, "--seeds", seeds)
    assert status == 1, f"nothing was found: {printed}"
    assert f"--bug {bug}" in printed, "the command that runs it again"
