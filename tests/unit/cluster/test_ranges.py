"""Ranges of offsets (`broker/cluster/ranges.py`), compared with sets of offsets after any sequence of changes.

A mismatch means that a table states other offsets than it has.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cluster.ranges import Ranges

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 30), st.integers(1, 8)), max_size=30)


@given(CHANGES)
def test_ranges_are_the_offsets_that_were_added_and_not_removed(changes: list[tuple[bool, int, int, int]]) -> None:
    ranges = Ranges()
    expected: dict[int, set[int]] = {0: set(), 1: set()}
    for adds, partition, first, size in changes:
        offsets = set(range(first, first + size))
        if adds:
            ranges.add(partition, first, first + size)
            expected[partition] |= offsets
        else:
            ranges.remove(partition, first, first + size)
            expected[partition] -= offsets
        found = ranges.all()
        assert found.keys() == {number for number, offsets in expected.items() if offsets}
        for number, rows in found.items():
            assert {at for low, high in rows for at in range(low, high)} == expected[number]
            assert all(one[1] < other[0] for one, other in pairwise(rows)), "ranges that touch are one"
