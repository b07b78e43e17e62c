"""Which batch of a stream its sink takes for one that it committed before.

Compared: acceptance or error, for the gates of a topic. A mismatch means that a sink leaves out records, or refuses to go on
after a crash.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.broker.client.gate_admin import GateState
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.sink import check_replay


def committed(*rows: int, query: str = "q", state: GateState = GateState.FILLED) -> list[Any]:
    """The gates of a query's batches, by their numbers of rows."""
    return [SimpleNamespace(id=f"stream-{query}-{number}", rows=count, state=state) for number, count in enumerate(rows)]


@pytest.mark.parametrize(
    ("gates", "batch", "rows"),
    [
        (committed(10), 0, 10),
        (committed(10, 20, 30), 2, 30),
        (committed(10, 20, 30), 2, 29),  # another condition, as of a query that was changed
        ([*committed(10), *committed(1, 1, 1, query="q-1")], 0, 10),
        ([*committed(10), *committed(1, 1, 1, query="other")], 0, 10),
    ],
    ids=["the only batch", "the last batch", "fewer rows", "a query with a longer name", "another query"],
)
def test_the_last_batch_is_taken_for_itself(gates: list[Any], batch: int, rows: int) -> None:
    check_replay(gates, "q", batch, rows)


@pytest.mark.parametrize(
    ("gates", "batch", "rows"),
    [
        (committed(10, 10, 10), 1, 10),
        (committed(10, 10, 10), 0, 1),
        (committed(10), 0, 11),
        (committed(10, state=GateState.RELEASED), 0, 10),
    ],
    ids=["as many rows as a batch before", "fewer rows than a batch before", "more rows", "a batch that was given up"],
)
def test_a_batch_of_other_records_is_refused(gates: list[Any], batch: int, rows: int) -> None:
    with pytest.raises(InvalidError, match="checkpoint is an older copy"):
        check_replay(gates, "q", batch, rows)
