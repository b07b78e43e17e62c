"""The simulated cluster: the real engine, control plane, recovery, journal and Kafka server, in virtual time, one life per seed.

Runs: `python -m headgate.broker.testing.simulate`, as a person would (a separate process: its seeds do not depend on this one).
Compared: the clients' answers with the records of a fresh broker at the end; invariants 1 to 7 and 9 of the design, transactions
in a quarter of the seeds, and that a cluster goes on when its faults are over. A mismatch names its seed and the command that
shows its events.

The canaries plant a bug and expect the seeds to find it. Among them are bugs that the simulation found in the past. They prove
that the checkers can fail. The digests prove that a seed is one life: without that, no failure could be replayed.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEEDS = 150
SEEDS_LONG = 4_000
CANARY_SEEDS = 500
CANARY_FIRST_SEED = {
    "no-fence-check": 15,
    "ack-before-durable": 20,
    "lead-after-seal": 90,
    "half-a-gate": 60,
    "readers-pass-gates": 15,
    "deaf-recovery": 750,
    "fixed-timeout": 160,
    "jumping-producers": 15,
    "no-proof": 15,
    "half-resigned": 80,
    "loyal-follower": 330,
    "forgotten-files": 40,
    "late-folds": 20,
}
"""Bugs that few seeds show: where their search begins, which saves minutes. Any change of the cluster changes the seeds' lives."""
LONG = ("no-proof",)
"""Bugs that show only in long lives, in which a broker is stopped for longer than its replacement takes."""


def simulate(*arguments: str, timeout_s: float = 600.0) -> tuple[int, str]:
    """(exit status, output)."""
    done = subprocess.run(
        [sys.executable, "-m", "headgate.broker.testing.simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.timeout(1200)
def test_seeds() -> None:
    jobs = str(os.cpu_count() or 1)
    status, printed = simulate("--jobs", jobs, "--seeds", f"0-{SEEDS - 1}", timeout_s=1100)
    assert status == 0, printed


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_long_seeds() -> None:
    jobs = str(os.cpu_count() or 1)
    status, printed = simulate("--long", "--jobs", jobs, "--seeds", f"0-{SEEDS_LONG - 1}", timeout_s=7000)
    assert status == 0, printed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_limit_of_time(jobs: int) -> None:
    """The run starts no seed after that time: of more seeds than fit into the test's timeout, only the first ones run."""
    status, printed = simulate("--jobs", str(jobs), "--seeds", "0-99999", "--seconds", "0.5", timeout_s=250.0)
    assert status == 0, printed
    summary = dict(word.split("=") for word in printed.splitlines()[-1].split())
    assert int(summary["last_seed"]) == int(summary["seeds"]) - 1 < 99_999


@pytest.mark.timeout(300)
def test_a_seed_is_one_life() -> None:
    """The digest is the same in another process, beside other seeds, and with its events printed."""
    _, printed = simulate("--seeds", "0-7", "--digests")
    digests = dict(line.split() for line in printed.splitlines() if line[0].isdigit())
    assert len(digests) == len(set(digests.values())) == 8
    for seed in ("3", "6"):
        _, story = simulate("--seed", seed)
        assert f"seed={seed} digest={digests[seed]} " in story
    _, printed = simulate("--seeds", "0-7", "--digests")
    assert digests == dict(line.split() for line in printed.splitlines() if line[0].isdigit())


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
