"""Only `PartitionLog`'s own methods assign to its attributes.

The test reads the source of every module under broker/. A variable or attribute with a `PartitionLog` is called `log` or
`partition` everywhere; the first test keeps it so for parameters. A mismatch names the line that changes a partition from outside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate.broker
from headgate.broker.engine.partition.log import PartitionLog

ROOT = Path(headgate.broker.__file__).parent
NAMES = {"log", "partition"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        if path != ROOT / "engine" / "partition" / "log.py":
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Slots of a `PartitionLog` that are assigned or deleted, of an object called `log` or `partition`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in PartitionLog.__slots__:
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in NAMES:
                yield node


def test_a_parameter_with_a_partition_is_called_log_or_partition() -> None:
    found = [
        f"{path}:{node.lineno} {node.arg}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        and node.annotation is not None
        and ast.unparse(node.annotation) in ("PartitionLog", "PartitionLog | None")
        and node.arg not in NAMES
    ]
    assert not found


def test_no_other_module_assigns_to_a_partition() -> None:
    found = [f"{path}:{node.lineno} {ast.unparse(node)}" for path, tree in modules() for node in assigned(tree)]
    assert not found


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
    assert list(assigned(ast.parse(source)))
