"""Counts of the code's structure: ``python -m tests.support.structure [DIR]`` prints them for a checkout.

The code is only parsed, so a checkout of any age can be measured. Generated code does not count: Kafka's messages and gRPC's stubs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

FOLDERS = ("broker", "pipelines", "assets", "headgate")
FILE_LINES = 600
CLASS_METHODS = 25
FUNCTION_LINES = 60
LATE = ("commands/flood.py", "commands/sql.py")
"""Commands that import their work when they run: Spark and DuckDB are slow to import, and may be absent."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
T = TypeVar("T", bound=ast.AST)


def measure(root: Path) -> dict[str, list[str]]:
    """The findings of each count as ``path:name``, by the count's name."""
    texts = {path: path.read_text() for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")) if _own(path)}
    code = {path: list(_nodes(ast.parse(text))) for path, text in texts.items()}
    slots = _slots([node for nodes in code.values() for node, _ in nodes])

    def every(kind: type[T]) -> Iterator[tuple[Path, T, str]]:
        return ((path, node, within) for path, nodes in code.items() for node, within in nodes if isinstance(node, kind))

    def named(path: Path, name: str) -> str:
        return f"{path.relative_to(root)}:{name}"

    functions = [
        (path, node)
        for path, nodes in code.items()
        for node, _ in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        f"files > {FILE_LINES} lines": [
            named(path, str(lines)) for path, text in texts.items() if (lines := len(text.splitlines())) > FILE_LINES
        ],
        f"classes > {CLASS_METHODS} methods": [
            named(path, node.name)
            for path, node, _ in every(ast.ClassDef)
            if sum(isinstance(one, Function) for one in node.body) > CLASS_METHODS
        ],
        f"functions > {FUNCTION_LINES} lines": [
            named(path, node.name) for path, node in functions if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
        ],
        "import cycles": [" ".join(cycle) for cycle in _cycles(_imports(root, code))],
        "imports inside functions": [
            named(path, f"{within}:{node.lineno}")
            for path, nodes in code.items()
            if "/".join(path.parts[-2:]) not in LATE
            for node, within in nodes
            if within and isinstance(node, ast.Import | ast.ImportFrom)
        ],
        "modules that assign to a PartitionLog from outside": sorted(
            {named(path, "") for path, node, _ in every(ast.Attribute) if assigns(node, slots)}
        ),
        "parameters with a PartitionLog of another name": [
            named(path, f"{node.arg}:{node.lineno}")
            for path, node, _ in every(ast.arg)
            if node.annotation is not None
            and ast.unparse(node.annotation) in ("PartitionLog", "PartitionLog | None")
            and node.arg not in ("log", "partition")
        ],
        "private names that tests reach into": [
            named(path, f"{node.attr}:{node.lineno}")
            for path in sorted((root / "tests").rglob("*.py"))
            if "._" in (text := path.read_text())
            for node, _ in _nodes(ast.parse(text))
            if isinstance(node, ast.Attribute) and _reaches(node)
        ],
    }


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """All nodes, each with the name of the function that it stands in; "" outside of functions. `ast.walk` takes twice as long."""
    todo = [(tree, "")]
    while todo:
        node, within = todo.pop()
        yield node, within
        if isinstance(node, Function):
            within = node.name
        for field in node._fields:
            value = getattr(node, field, None)
            if type(value) is list:
                todo += [(one, within) for one in reversed(value) if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                todo.append((value, within))


def _own(path: Path) -> bool:
    """True for code that people write. (`headgate/` links the other folders, in some checkouts.)"""
    return "_pb2" not in path.name and path.parent.name != "messages" and not any(one.is_symlink() for one in path.parents)


def _slots(nodes: list[ast.AST]) -> set[str]:
    """The attributes that `PartitionLog` sets on itself."""
    found = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == "PartitionLog"]
    assert len(found) == 1, "there is one class PartitionLog"
    return {
        node.attr
        for node in ast.walk(found[0])
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name(node.value) == "self"
    }


def assigns(node: ast.Attribute, slots: Collection[str]) -> bool:
    """True for an assignment such as `partition.high_watermark = ...`: by convention, these names hold a PartitionLog."""
    owners = ("log", "partition", "_log", "_partition")
    return isinstance(node.ctx, ast.Store | ast.Del) and node.attr in slots and _name(node.value) in owners


def _reaches(node: ast.Attribute) -> bool:
    private = node.attr.startswith("_") and not node.attr.startswith("__")
    # librdkafka's own names of its errors begin so.
    return (
        private and _name(node.value) not in ("self", "cls", "KafkaError") and node.attr not in ("_asdict", "_replace", "_fields")
    )


def _name(node: ast.expr) -> str:
    """The last name of `a` or of `x.a`; otherwise an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _imports(root: Path, code: dict[Path, list[tuple[ast.AST, str]]]) -> dict[str, set[str]]:
    """By module: the modules of the checkout that it imports, at any place. A package's own modules do not count."""

    def module(path: Path) -> str:
        return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")

    modules = {module(path) for path in code}
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for path, nodes in code.items():
        for node, _ in nodes:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{one.name}" for one in node.names]
            for name in names:
                known = name.removeprefix("headgate.")
                while known and known not in modules:
                    known = known.rpartition(".")[0]
                if known and not f"{module(path)}.".startswith(f"{known}."):
                    edges[module(path)].add(known)
    return edges


def _cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for one in edges[todo.pop()] - seen:
                seen.add(one)
                todo.append(one)
        return seen

    reach = {name: reached(name) for name in edges}
    groups = {frozenset(one for one in reach[name] if name in reach[one]) for name in edges if name in reach[name]}
    return sorted(sorted(group) for group in groups)


if __name__ == "__main__":
    for name, findings in measure(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()).items():
        sys.stdout.write(f"{len(findings):4}  {name}\n")
        for finding in findings if len(findings) <= 20 else ():
            sys.stdout.write(f"      {finding}\n")
