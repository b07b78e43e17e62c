"""`headgate demo` and `headgate ui`: both run a module of the Dagster part, which no broker imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import typer

from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.extras import missing
from headgate.broker.runtime.modules import found_by

app = typer.Typer(rich_markup_mode=None)
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_PASS_ON)
def demo(context: typer.Context) -> int:
    """Show a flood of real flights: Dagster, Spark, brokers from 1 to 3 to 1, live traffic throughout. Takes some minutes.

    `headgate demo --help` lists its options.
    """
    return _run_apart(_command("demo", "headgate.assets.demo", context.args))


@app.command(context_settings=_PASS_ON)
def ui(context: typer.Context) -> None:
    """Run Dagster's page and daemon for your floods until Ctrl-C. `headgate ui --help` lists its options."""
    command = _command("assets", "headgate.assets.ui", context.args)
    sys.stdout.flush()
    os.execve(command[0], command, found_by(os.environ))


def _command(extra: str, module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a module. Raises FatalError if a library of the extra is not installed."""
    problem = missing(extra)
    if problem is not None:
        raise FatalError(Reason.UNSUPPORTED, problem)
    # -P: a file of the current directory, such as a user's `http.py`, does not take the place of a module.
    return [sys.executable, "-P", "-m", module, *arguments]


def _run_apart(command: Sequence[str]) -> int:
    """Run a command in a session of its own and pass signals on to it. Returns its exit code.

    Where the kernel shares time by session (sched(7), autogroup), a demo that is started with `nice` in a terminal with busy
    processes would stand still: niceness counts inside one session only.
    """
    process = subprocess.Popen(command, env=found_by(os.environ), start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda given, _: process.send_signal(given))
    code = process.wait()
    return code if code >= 0 else 128 - code
