"""Sentences that name code are true: import contracts, tables of places, lists of modules, docstrings that promise a bool.

Compared: names in pyproject.toml, in the READMEs and in docstrings with the tree. A mismatch sends a reader to a place that does
not exist, or lets a contract check nothing.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READMES = sorted(
    path for path in ROOT.glob("**/*.md") if not {".venv", "node_modules"} & set(path.parts) and ".dagster" not in path.parts
)
PARTS = ("broker", "pipelines", "assets")
PLACES = [path for path in READMES if "## Where to change what" in path.read_text()]
BASES = (ROOT, ROOT / "tests")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def test_import_contracts_name_modules_that_exist() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = {
        module.strip(" ()")
        for contract in contracts
        for key in ("source_modules", "forbidden_modules", "layers", "ancestors")
        for line in contract.get(key, ())
        for module in re.split(r"[|:]", line)
    }
    missing = sorted(module for module in named if importlib.util.find_spec(module) is None)
    assert len(named) > 60 and not missing, missing


@pytest.mark.parametrize("readme", PLACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_places_exist(readme: Path) -> None:
    """Every path in a table of places exists: from the top, from `tests/`, or beside another path of its row."""
    text = readme.read_text().split("## Where to change what")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| to change", "| ---"))]
    missing = []
    for row in rows:
        # The first cell is what to change, not where.
        names = re.findall(r"`([\w./*-]+(?:/|\.\w+|\*))`", row.split("|", 2)[2])
        places = [base / name if name.endswith("/") else (base / name).parent for name in names if "/" in name for base in BASES]
        for name in names:
            if not any(any(place.glob(name.rstrip("/"))) for place in (*BASES, *places) if place.is_dir()):
                missing.append(f"{name} in {row[:60]}")
    assert rows and not missing, missing


def test_the_engines_rooms_list_their_modules() -> None:
    """The table of rooms names every module of a room once: patterns count."""
    engine = ROOT / "broker" / "engine"
    rows = re.findall(r"^\| `(\w+)/` \|[^|]*\| ([^|]*) \|$", (engine / "README.md").read_text(), re.M)
    assert {room for room, _ in rows} == {path.name for path in engine.iterdir() if (path / "__init__.py").exists()}
    for room, cell in rows:
        patterns = re.findall(r"`([\w*]+\.py)`", cell)
        listed = {path.name for pattern in patterns for path in (engine / room).glob(pattern)}
        there = {path.name for path in (engine / room).glob("*.py")} - {"__init__.py"}
        assert listed == there, (room, sorted(there - listed), [one for one in patterns if not any((engine / room).glob(one))])


def test_paths_in_docstrings_and_comments_exist() -> None:
    """From the top (`headgate/` is its name as a package), from a folder above the file, or from a folder there."""
    missing = []
    for path in SOURCES:
        above = [folder for folder in path.parents if folder.is_relative_to(ROOT)]
        for name in set(re.findall(r"`((?:[\w-]+/)+\w+\.(?:py|proto|md))`", path.read_text())):
            names = {name, name.removeprefix("headgate/")}
            if not any((base / named).exists() for folder in above for base in (folder, folder / "broker") for named in names):
                missing.append(f"{name} in {path.relative_to(ROOT)}")
    assert not missing, missing


def test_true_if_returns_a_bool() -> None:
    wrong = []
    for path in SOURCES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if '"""True if' in text else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (ast.get_docstring(node) or "").startswith("True if"):
                returns = ast.unparse(node.returns) if node.returns else ""
                if returns not in {"bool", "Steps[bool]"} and "TypeGuard" not in returns and "TypeIs" not in returns:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.name} -> {returns}")
    assert not wrong, wrong


def test_every_field_of_a_flood_has_its_row() -> None:
    """Each field that the parser reads of a flood stands in the table of assets/README.md, or beside another one there."""
    parser = (ROOT / "pipelines" / "floods" / "parse.py").read_text()
    flood = next(node for node in ast.parse(parser).body if isinstance(node, ast.FunctionDef) and node.name == "_flood")
    read = set(
        re.findall(r"(?:section\.(?:text|choice|words|integer|duration_ms)\(|_message\(section, )'(\w+)'", ast.unparse(flood))
    )
    table = (ROOT / "assets" / "README.md").read_text().split("## Fields")[1].split("\n\n## ")[0]
    missing = sorted(read - set(re.findall(r"`(\w+)`", table)))
    assert len(read) > 15 and not missing, missing
