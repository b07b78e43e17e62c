"""The simulated cluster: the real engine, control plane, recovery, journal and Kafka server, in virtual time, one life per seed.

Runs: `python -m headgate.broker.testing.simulate` in processes of their own, forked ones and one that a person would start.
Compared: the clients' answers with the records of a fresh broker at the end; invariants 1 to 7 and 9 of the design, transactions
in a quarter of the seeds, and that a cluster goes on when its faults are over. A mismatch names its seed and the command that
shows its events.

The digests prove that a seed is one life: without that, no failure could be replayed. `test_checkers.py` proves that the checkers
can fail, `test_canaries.py` that they do for a cluster with a bug. `make simulate` runs 1,000 seeds.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation import simulate

SEEDS = 12
SEEDS_LONG = 4_000
AGAIN = ("3", "4")
"""Seeds of the first ones that run again, each as a person replays it."""


@pytest.mark.timeout(1200)
def test_seeds_end_well_and_are_one_life_each() -> None:
    """The digest is the same in another process, beside other seeds, and with its events printed."""
    status, printed = simulate("--seeds", f"0-{SEEDS - 1}", "--digests", timeout_s=1100)
    assert status == 0, printed
    digests = dict(line.split() for line in printed.splitlines() if line[0].isdigit())
    assert len(digests) == len(set(digests.values())) == SEEDS
    for seed in AGAIN:
        _, story = simulate("--seed", seed, forked=seed != AGAIN[0])
        assert f"seed={seed} digest={digests[seed]} " in story
    _, printed = simulate("--seeds", f"{AGAIN[0]}-{AGAIN[-1]}", "--digests")
    again = dict(line.split() for line in printed.splitlines() if line[0].isdigit())
    assert again == {seed: digests[seed] for seed in again} and len(again) == len(AGAIN)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_long_seeds() -> None:
    jobs = str(os.cpu_count() or 1)
    status, printed = simulate("--long", "--jobs", jobs, "--seeds", f"0-{SEEDS_LONG - 1}", timeout_s=7000, forked=False)
    assert status == 0, printed


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_limit_of_time(jobs: int) -> None:
    """The run starts no seed after that time: of more seeds than fit into the test's timeout, only the first ones run."""
    status, printed = simulate("--jobs", str(jobs), "--seeds", "0-99999", "--seconds", "0.5", timeout_s=250.0, forked=jobs == 1)
    assert status == 0, printed
    summary = dict(word.split("=") for word in printed.splitlines()[-1].split())
    assert int(summary["last_seed"]) == int(summary["seeds"]) - 1 < 99_999
