"""``headgate``: the command line.

Fleets start ``headgate broker`` a thousand times: it goes straight to the broker and never imports the modules that only the
commands for people need (typer, rich, grpc).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

USAGE_BROKER = """\
usage: headgate broker [--config FILE] [--SETTING VALUE]...

Run one broker process until SIGTERM or Ctrl-C. It prints one line to stdout once it serves; its log goes to stderr.
Exit code: 0 a requested end, 1 a failure (the reason is on stderr), 2 a wrong setting or an empty store,
3 another broker took over its store.

The first of these sources that has a setting wins: command line, environment, TOML file, default.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # gRPC's C core writes lines of its own to stderr, such as one for each lost broker. Relevant faults are reported as errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if given[:1] == ["broker"]:
        return broker(given[1:])
    from headgate.broker.cli.app import run

    return run(given)


def broker(arguments: Sequence[str]) -> int:
    """``headgate broker``."""
    from headgate.broker.runtime.config import Settings, help_text
    from headgate.broker.runtime.errors import InvalidError

    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(f"{USAGE_BROKER}\n{help_text()}\n")
        return 0
    try:
        settings = Settings.load(arguments, os.environ)
    except InvalidError as error:
        sys.stderr.write(f"headgate broker: {error.message}\n")
        return 2
    from headgate.broker.server.main import run

    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
