"""The table as a document beside the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.compat.matrix.frameworks import FRAMEWORKS
from tests.compat.matrix.rows import STEPS
from tests.compat.matrix.run import UNSUPPORTED, WORKS, Result

DOCUMENT = Path(__file__).parents[1] / "README.md"
INTRODUCTION = """\
# Which clients work

Written by `make compat`, which fetches each client from its registry and runs it against one broker with default settings. Nothing
is emulated: a cell is the outcome of the client's own code.

- **Records**: idempotent or plain writes with every codec of the client, and their reading, in order.
- **Groups**: two members of a classic group share four partitions, read everything, and commit.
- **KIP-848**: the same with the new protocol (`group.protocol=consumer`).
- **Transactions**: two are committed and one is aborted; a reader of committed records sees the two.
- **Admin**: topics are created, grown, configured, described and deleted.

`-`: the client has no such feature.
"""


def document(results: Sequence[Result]) -> str:
    """The whole text."""
    frameworks = [one for one in results if one.row in FRAMEWORKS]
    clients = [one for one in results if one.row not in FRAMEWORKS]
    lines = [INTRODUCTION, f"| client | version | {' | '.join(STEPS.values())} |", f"| --- | --- |{' --- |' * len(STEPS)}"]
    notes: list[str] = []
    for one in clients:
        cells = [_cell(one, step, notes) for step in STEPS]
        lines.append(f"| {one.row.client} | {one.row.version.removeprefix('v')} | {' | '.join(cells)} |")
    lines += ["", "Frameworks:", "", "| framework | version | what it does | works |", "| --- | --- | --- | --- |"]
    for one in frameworks:
        for step, about in FRAMEWORKS[one.row].items():
            lines.append(f"| {one.row.client} | {one.row.version} | {about} | {_cell(one, step, notes)} |")
    if notes:
        lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    return "\n".join(lines) + "\n"


def _cell(result: Result, step: str, notes: list[str]) -> str:
    if result.missing:
        return "not tried"
    text = result.steps.get(step, result.steps.get("end", "not reached"))
    if text in (WORKS, UNSUPPORTED):
        return text
    notes.append(f"{result.row.client} {result.row.version}, {step}: {' '.join(text.split())[:200]}")
    return f"no ({len(notes)})"
