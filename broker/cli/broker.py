"""``headgate broker``: one broker process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.runtime.setting_texts import help_text
from headgate.broker.server.main import run

USAGE = """\
usage: headgate broker [--config FILE] [--SETTING VALUE]...

Run one broker process until SIGTERM or Ctrl-C. It prints one line to stdout once it serves; its log goes to stderr.
Exit code: 0 a requested end, 1 a failure (the reason is on stderr), 2 a wrong setting or an empty store,
3 another broker took over its store.

The first of these sources that has a setting wins: command line, environment, TOML file, default.
"""


def run_broker(arguments: Sequence[str]) -> int:
    """Run a broker until its end, or print the help text. Returns the exit code."""
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(f"{USAGE}\n{help_text()}\n")
        return 0
    try:
        settings = Settings.load(arguments, os.environ)
    except InvalidError as error:
        sys.stderr.write(f"headgate broker: {error.message}\n")
        return 2
    return run(settings)
