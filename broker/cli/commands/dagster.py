"""`headgate demo` and `headgate ui`: both replace this process by a module of the Dagster part, which no broker imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.extras import missing
from headgate.broker.runtime.modules import found_by

app = typer.Typer(rich_markup_mode=None)
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_PASS_ON)
def demo(context: typer.Context) -> None:
    """Show a flood of real flights: Dagster, Spark, brokers from 1 to 3 to 1, live traffic throughout. Takes some minutes.

    `headgate demo --help` lists its options.
    """
    _become("demo", "headgate.assets.demo", context.args)


@app.command(context_settings=_PASS_ON)
def ui(context: typer.Context) -> None:
    """Run Dagster's page and daemon for your floods until Ctrl-C. `headgate ui --help` lists its options."""
    _become("assets", "headgate.assets.ui", context.args)


def _become(extra: str, module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a module. Raises FatalError if a library of the extra is not installed."""
    problem = missing(extra)
    if problem is not None:
        raise FatalError(Reason.UNSUPPORTED, problem)
    sys.stdout.flush()
    # -P: a file of the current directory, such as a user's `http.py`, does not take the place of a module.
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], found_by(os.environ))
