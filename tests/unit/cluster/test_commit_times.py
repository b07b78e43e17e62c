"""How long commits take, and how many hand-overs may be under way therefore.

Compared: the seconds that count at a time, and the bound of hand-overs. A mismatch means that writers wait for many slow commits,
or that the load is not balanced on a quick store.
"""

from __future__ import annotations

import pytest

from headgate.broker.cluster.commit_times import COMMIT_S_MAX, RECENT_S, CommitTimes, hand_overs_max


@pytest.mark.parametrize(
    ("commit_s", "most"),
    [(0.0, 2000), (0.01, 200), (0.1, 20), (0.5, 4), (1.0, 2), (2.5, 1), (4.9, 1), (COMMIT_S_MAX, 0), (60.0, 0)],
)
def test_the_slower_the_store_the_fewer_hand_overs(commit_s: float, most: int) -> None:
    assert hand_overs_max(commit_s) == most


def test_the_longest_recent_commit_counts() -> None:
    times = CommitTimes()
    assert times.longest_s(100.0) == 0
    slow = times.began(100.0)
    assert times.longest_s(103.0) == 3, "a store that became slow is known before its first answer"
    times.ended(slow, 106.0)
    quick = times.began(106.0)
    times.ended(quick, 106.1)
    assert times.longest_s(107.0) == 6
    assert times.longest_s(106.0 + RECENT_S) == pytest.approx(0.1)
    assert times.longest_s(10_000.0) == pytest.approx(0.1), "the newest counts until there is another one"
