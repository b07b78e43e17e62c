"""The code's structure is counted (`tests/support/structure.py`). A failure means that a count grew: divide the file, class or
function, or break the cycle. A count that shrinks lowers its bound here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from headgate.broker.engine.partition.log import PartitionLog
from tests.support.structure import assigns, measure

ROOT = Path(__file__).parents[2]
MOST = {
    "files > 600 lines": 1,
    "classes > 25 methods": 0,
    "functions > 60 lines": 3,
    "import cycles": 0,
    "imports inside functions": 182,
    "modules that assign to a PartitionLog from outside": 0,
    "parameters with a PartitionLog of another name": 0,
    "private names that tests reach into": 105,
}


FOR_TYPES_ALONE = {"from dagster._core.execution.backfill import PartitionBackfill"}


def test_no_private_module_of_a_library_is_imported() -> None:
    """A release of the library may move it. For types alone it is allowed: mypy tells when it is gone."""
    found = []
    for path in sorted(one for place in ("broker", "pipelines", "assets") for one in (ROOT / place).rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            private = re.match(r"\s*(?:from|import) (?!headgate|\.|__)[a-z]\w*(?:\.\w+)*?\._\w+", line)
            if private and line.strip() not in FOR_TYPES_ALONE:
                found.append(f"{path.relative_to(ROOT)}: {line.strip()}")
    assert not found, found


def test_no_count_grows() -> None:
    found = measure(ROOT)
    assert found.keys() == MOST.keys()
    grown = {name: findings for name, findings in found.items() if len(findings) > MOST[name]}
    assert not grown, grown


@pytest.mark.parametrize(
    "source",
    [
        "log.high_watermark = 1",
        "log.next_offset += 1",
        "a, partition.refusal = 1, None",
        "wanted.log.size_bytes += 1",
        "del partition.tail",
        "for log.size_bytes in (1, 2): pass",
    ],
)
def test_an_assignment_from_outside_is_found(source: str) -> None:
    attributes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    assert any(assigns(node, PartitionLog.__slots__) for node in attributes)
