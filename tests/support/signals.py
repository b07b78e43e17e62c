"""Commands that start with chosen dispositions of signals, whatever their parent ignores: under nohup and in the background of a
shell the tests ignore some, and a child inherits that. A `preexec_fn` would fork the tests beside gRPC's threads: now and then
the child ends then before it is the command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable

_SET = """
import os, signal, sys
for number, kind in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), sys.argv[1], strict=True):
    signal.signal(number, signal.SIG_IGN if kind == "i" else signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def python(*arguments: str, ignored: Iterable[signal.Signals] = ()) -> list[str]:
    """The command for this Python with arguments. Of SIGINT, SIGTERM and SIGHUP it ignores those in `ignored`."""
    kinds = "".join("i" if number in ignored else "d" for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    return [sys.executable, "-c", _SET, kinds, *arguments]
