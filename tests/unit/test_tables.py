"""The tables of broker/REFERENCE.md against the code: different if `python -m headgate.broker.cli.tables` was not run. The list of
commands, `headgate --help`, against the commands, which it does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headgate.broker.cli import tables
from headgate.broker.cli.app import command
from headgate.broker.cli.command import Later

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_code() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.filled(page) == page, "run python -m headgate.broker.cli.tables"


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for a table"):
        tables.filled("# Brokers")


def test_the_list_of_commands_says_what_each_command_says() -> None:
    listed = [child for child in command().commands.values() if isinstance(child, Later)]
    assert len(listed) > 20
    for child in listed:
        assert str(child.loaded.help).replace("\n", " ").startswith(str(child.help)), child.name


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = "import sys; from headgate.broker.cli.main import main; main(['--help']); print('\\n'.join(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "headgate.broker.cli.app" in shown
    assert not [line for line in shown.splitlines() if line.startswith(("headgate.broker.cli.commands.", "grpc"))]
