"""The lines of progress of the verifier name the partitions without an acknowledgement, and tests beside it read them.

A mismatch means that a test of outages waits for a partition that has acknowledged, or does not wait for one that has not.
"""

from __future__ import annotations

import pytest

from headgate.broker.verify.run import Progress
from tests.support.verifier import silent, still_silent


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], "12 of 12 partitions acknowledge, 3 client errors"),
        ([4], "11 of 12 partitions acknowledge (without 4), 3 client errors"),
        ([0, 1, 2, 7, 10, 11], "6 of 12 partitions acknowledge (without 0-2, 7, 10-11), 3 client errors"),
        (list(range(12)), "0 of 12 partitions acknowledge (without 0-11), 3 client errors"),
    ],
)
def test_a_line_names_the_silent_partitions(numbers: list[int], text: str) -> None:
    line = str(Progress(elapsed_s=8, acks_per_s=2.5, latency_us_p99=None, inflight=9, silent=numbers, places=12, errors=3))
    assert line.endswith(text)
    assert silent(f"  {line}\n") == set(numbers)


def test_each_partition_has_acknowledged_once_and_not_all_at_the_same_time() -> None:
    assert silent("writes to a; history in b") is None
    assert still_silent([]), "no line was printed yet"
    assert still_silent([{0, 1, 2}, {1, 2}]) == {1, 2}
    assert not still_silent([{0, 1, 2}, {1, 2}, {0}]), "on a far store, no line ever has all partitions"
