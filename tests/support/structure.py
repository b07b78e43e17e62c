"""Counts of the code's structure: ``python -m tests.support.structure [DIR]`` prints them for a checkout.

The code is only parsed, so a checkout of any age can be measured. Generated code does not count: Kafka's messages and gRPC's stubs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("broker", "pipelines", "assets", "headgate")
FILE_LINES = 600
CLASS_METHODS = 25
FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def measure(root: Path) -> dict[str, list[str]]:
    """The findings of each count as ``path:name``, by the count's name."""
    code = {path: ast.parse(path.read_text()) for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")) if _own(path)}
    tests = {path: ast.parse(path.read_text()) for path in sorted((root / "tests").rglob("*.py"))}
    nodes = [(path, node) for path, tree in code.items() for node in ast.walk(tree)]  # once: a walk takes as long as the rest
    slots = _slots(code)

    def every(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[Path, ast.AST]]:
        return ((path, node) for path, node in nodes if isinstance(node, kind))

    def named(path: Path, name: str) -> str:
        return f"{path.relative_to(root)}:{name}"

    return {
        f"files > {FILE_LINES} lines": [
            named(path, str(lines)) for path in code if (lines := len(path.read_text().splitlines())) > FILE_LINES
        ],
        f"classes > {CLASS_METHODS} methods": [
            named(path, node.name)
            for path, node in every(ast.ClassDef)
            if isinstance(node, ast.ClassDef) and sum(isinstance(one, Function) for one in node.body) > CLASS_METHODS
        ],
        f"functions > {FUNCTION_LINES} lines": [
            named(path, node.name)
            for path, node in every((ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(node, Function) and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
        ],
        "import cycles": [" ".join(cycle) for cycle in _cycles(_imports(root, code))],
        "imports inside functions": [
            named(path, f"{node.name}:{one.lineno}")
            for path, node in every((ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(node, Function) and path.parent.name != "commands"  # a command imports its work when it runs
            for one in _without_functions(node)
            if isinstance(one, ast.Import | ast.ImportFrom)
        ],
        "modules that assign to a PartitionLog from outside": sorted(
            {named(path, "") for path, node in every(ast.Attribute) if isinstance(node, ast.Attribute) and _assigns(node, slots)}
        ),
        "private names that tests reach into": [
            named(path, f"{node.attr}:{node.lineno}")
            for path, tree in tests.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and _reaches(node)
        ],
    }


def _own(path: Path) -> bool:
    """True for code that people write. (`headgate/` links the other folders, in some checkouts.)"""
    return "_pb2" not in path.name and path.parent.name != "messages" and not any(one.is_symlink() for one in path.parents)


def _without_functions(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, Function):
            yield node
            yield from _without_functions(node)


def _slots(code: dict[Path, ast.Module]) -> set[str]:
    """The attributes that `PartitionLog` sets on itself."""
    found = [node for tree in code.values() for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "PartitionLog"]
    assert len(found) == 1, "there is one class PartitionLog"
    return {
        node.attr
        for node in ast.walk(found[0])
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name(node.value) == "self"
    }


def _assigns(node: ast.Attribute, slots: set[str]) -> bool:
    """True for an assignment such as `partition.high_watermark = ...`: by convention, these names hold a PartitionLog."""
    return (
        isinstance(node.ctx, ast.Store) and node.attr in slots and _name(node.value) in ("log", "partition", "_log", "_partition")
    )


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


def _imports(root: Path, code: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """By module: the modules of the checkout that it imports, at any place. A package's own modules do not count."""

    def module(path: Path) -> str:
        return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")

    modules = {module(path) for path in code}
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for path, tree in code.items():
        for node in ast.walk(tree):
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
