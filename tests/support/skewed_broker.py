"""A broker with a wall clock that can be moved while it runs: `python -m tests.support.skewed_broker FILE broker ...`.

FILE holds the clock's error in seconds; the broker reads the file each time it asks for the time. `set_clock` writes the file,
and `use_clock` makes a test's broker process run this way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headgate.broker.cli.main import main as run_command
from headgate.broker.runtime.clock import Clock
from tests.support.broker_process import BrokerProcess


def use_clock(broker: BrokerProcess, file: Path) -> None:
    """Make a broker run under the clock in `file`, from its next start on."""
    set_clock(file, 0)
    broker.entry = ("tests.support.skewed_broker", str(file))


def set_clock(file: Path, wrong_s: int) -> None:
    """Set the clock's error in seconds, in one atomic step: the broker may read the file at any moment."""
    new = file.with_suffix(".new")
    new.write_text(str(wrong_s))
    new.rename(file)


def skew(file: Path) -> None:
    """Patch the clock of this process from now on."""
    right = Clock.now_ms

    def now_ms(self: Clock) -> int:
        return right(self) + int(float(file.read_text() or "0") * 1000)

    Clock.now_ms = now_ms  # type: ignore[method-assign]


def main(arguments: Sequence[str]) -> int:
    """Run a broker under the clock in a file, the first argument. Returns the exit code."""
    skew(Path(arguments[0]))
    return run_command(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
