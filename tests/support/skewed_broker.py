"""A broker whose wall clock can be moved while it runs: `python -m tests.support.skewed_broker FILE broker ...`.

FILE holds the seconds by which the clock is wrong; it is read anew every time that the broker asks for the time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker.cli.main import main
from broker.runtime.clock import Clock


def skew(file: Path) -> None:
    """From now on this process lives in another time."""
    right = Clock.now_ms

    def now_ms(self: Clock) -> int:
        return right(self) + int(float(file.read_text() or "0") * 1000)

    Clock.now_ms = now_ms  # type: ignore[method-assign]


if __name__ == "__main__":
    skew(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
