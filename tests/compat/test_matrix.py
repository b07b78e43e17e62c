"""The compatibility table's rows that take seconds; `make compat` runs all of them and writes the table.

Runs: the programs in `matrix/programs/` with old versions of clients, in processes of their own, against one broker. Compared:
every step of every client works, or the client has no such feature. A mismatch means that a user of that client is stopped.
"""

from __future__ import annotations

import pytest

from tests.compat.matrix.frameworks import FRAMEWORKS
from tests.compat.matrix.report import DOCUMENT, document
from tests.compat.matrix.rows import CLIENTS, Row
from tests.compat.matrix.run import UNSUPPORTED, WORKS, Result, run


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{row.client} {row.version}", marks=[] if row.fast else [pytest.mark.slow])
        for row in (*CLIENTS, *FRAMEWORKS)
    ],
)
@pytest.mark.timeout(900)
def test_a_client_works(bootstrap: str, row: Row) -> None:
    found = run(row, bootstrap)
    assert not found.missing, found.missing
    assert found.steps and not found.errors, found.errors


def test_the_table_has_every_row() -> None:
    written = DOCUMENT.read_text()
    for row in (*CLIENTS, *FRAMEWORKS):
        assert any(row.client in line and row.version.removeprefix("v") in line for line in written.splitlines()), row


def test_the_table_says_what_does_not_work() -> None:
    row, framework = CLIENTS[0], next(iter(FRAMEWORKS))
    good = Result(row, {"records": WORKS, "group": WORKS, "group848": UNSUPPORTED, "transactions": "fenced", "end": "exit 1"})
    text = document([good, Result(framework, {}, "no Maven")])
    assert f"| {row.client} | {row.version} | yes | yes | - | no (1) | no (2) |" in text
    assert f"1. {row.client} {row.version}, transactions: fenced" in text and "2. " in text and "exit 1" in text
    assert text.count("not tried") == len(FRAMEWORKS[framework])
