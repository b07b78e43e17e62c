"""Bugs planted into the simulated cluster, which the seeds must find: they prove that the checkers can fail.

Among them are bugs that the simulation found in the past. A mismatch means that a checker sees nothing any more. The suite runs
those that one of the first seeds shows, `make simulate` all; `test_checkers.py` shows every checker without a cluster.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation import simulate

CANARY_SEEDS = 2_000
LONG = ("no-proof",)
"""Bugs that show only in long lives, in which a broker is stopped for longer than its replacement takes."""

SHOWN_SOON = {
    "no-sequences": ("retries never duplicate",),
    "no-expiry": ("capacity ends",),
    "jumping-appends": ("writes go on", "records live as long as retention says", "retries never duplicate"),
    "forgiving-coordinator": ("zombies are fenced", "transactions are atomic"),
    "unstable-readers": ("aborted records stay hidden",),
    "early-positions": ("positions go with their transaction",),
    "early-pins": ("the cluster goes on", "acked records are there"),
    "foreign-rows": ("a gate is filled whole",),
    "hasty-lanes": ("acked records are there", "history, then live"),
    "forgetful-leads": ("readers are not sent in circles",),
}
"""Bugs that one of the first seeds shows: the checkers that find them. `test_checkers.py` has all checkers."""
SHOWN_LATE = {
    "jumping-retention": ("records live as long as retention says",),
    "no-fence-check": ("a fenced broker never acks",),
    "ack-before-durable": ("a fenced broker never acks", "acked records are there", "one record per offset"),
    "no-replay": ("retries never duplicate",),
    "seal-half": ("the cluster goes on", "state is sound"),
    "lead-after-seal": ("the cluster goes on",),
    "half-resigned": ("the cluster goes on",),
    "half-a-gate": ("a gate is filled whole",),
    "readers-pass-gates": ("history, then live",),
    "deaf-recovery": ("a fenced broker never acks", "acked records are there", "one record per offset"),
    "fixed-timeout": ("starved brokers stay",),
    "jumping-producers": ("retries never duplicate",),
    "no-downtime": ("records live as long as retention says", "writes go on", "retries never duplicate"),
    "loyal-follower": ("a fenced broker never acks", "acked records are there"),
    "no-proof": ("answers are current",),
    "forgotten-files": ("the cluster goes on", "acked records are there", "one record per offset"),
    "late-folds": ("the cluster goes on", "state is sound"),
    "folded-aborts": ("aborted records stay hidden",),
    "unstable-folds": ("aborted records stay hidden", "transactions are atomic"),
    "forgetful-coordinator": ("the cluster goes on",),
    "forgetful-recovery": ("aborted records stay hidden",),
    "unnamed-aborts": ("aborted records stay hidden",),
    "no-consent": ("aborted records stay hidden", "the cluster goes on"),
}
"""The same for bugs that many seeds may not show, and for one that the same seed shows by the same checker as `jumping-appends`."""


@pytest.mark.timeout(660)
@pytest.mark.parametrize("bug", SHOWN_SOON)
def test_canaries(bug: str) -> None:
    find(bug, SHOWN_SOON[bug], jobs=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", SHOWN_LATE)
def test_shy_canaries(bug: str) -> None:
    find(bug, SHOWN_LATE[bug], jobs=os.cpu_count() or 1)


def find(bug: str, checkers: tuple[str, ...], jobs: int) -> None:
    """Run seeds until one of the checkers finds the bug. Raises AssertionError when none does."""
    long = ("--long",) if bug in LONG else ()
    seeds = f"0-{CANARY_SEEDS - 1}"
    status, printed = simulate(
        *("--first", *long, "--jobs", str(jobs), "--bug", bug, "--expect", *checkers, "--seeds", seeds),
        timeout_s=3500,
        forked=jobs == 1,
    )
    assert status == 1, f"nothing was found: {printed}"
    assert f"--bug {bug}" in printed, "the command that runs it again"
