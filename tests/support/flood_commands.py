"""`headgate flood` in processes that are forked from one that has the modules of floods too, for `commands.run`."""

from __future__ import annotations

from importlib import import_module
from typing import NoReturn

from tests.support import commands

MODULES = ("headgate.pipelines.backfill", "headgate.pipelines.verify", "headgate.pipelines.columns.processes", "pyarrow.parquet")


def prepare() -> None:
    """Import what a flood of plain columns needs. Nothing is called, so that Arrow has no threads before a fork."""
    commands.prepare()
    for name in MODULES:
        import_module(name)


def main() -> NoReturn:
    """Run a command and end the process."""
    commands.main()
