"""``headgate``: the command line.

Fleets start ``headgate broker`` a thousand times, and containers ask ``headgate health`` every few seconds: these two never import
the modules that only the commands for people need (typer, rich, grpc).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headgate.broker.cli import EXIT_INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # while modules are imported
        return EXIT_INTERRUPTED


def _run(given: list[str]) -> int:
    # gRPC's C core writes lines of its own to stderr, such as one for each lost broker. Relevant faults are reported as errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if given[:1] == ["broker"]:
        from headgate.broker.cli.broker import run_broker

        return run_broker(given[1:])
    if given[:1] == ["health"]:
        from headgate.broker.cli.health import run_health

        return run_health(given[1:])
    from headgate.broker.cli.app import run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
