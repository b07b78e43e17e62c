"""What the programs of Python clients share: a step is a function, and its result a line of JSON on standard output.

The programs run with the client's own version on the path, apart from the project. So this file imports only the standard library.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable

BOOTSTRAP, PREFIX = sys.argv[1:3]
RECORDS = 50
PATIENCE_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def step(name: str, act: Callable[[], None]) -> None:
    """Run a step and report it. An error does not end the program."""
    try:
        act()
    except Exception as error:  # noqa: BLE001  # whatever a client raises is the outcome of the step
        traceback.print_exc()
        report(name, f"{type(error).__name__}: {error}")
    else:
        report(name, "")


def report(name: str, error: str) -> None:
    """`error` "": it works."""
    sys.stdout.write(json.dumps({"step": name, "error": error[:300]}) + "\n")
    sys.stdout.flush()


def until(ready: Callable[[], bool], what: str) -> None:
    """Call until it returns true."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(what)


def same(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {str(found)[:120]}, wanted {str(wanted)[:120]}")
