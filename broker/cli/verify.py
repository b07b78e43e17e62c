"""``headgate verify``: run `headgate.broker.verify`, show its progress on stderr and its page on stdout."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from headgate.broker.cli import output
from headgate.broker.runtime.extras import install_command

if TYPE_CHECKING:
    from headgate.broker.verify.page import Result

EXIT_NOT_JUDGED = 2
PACKAGE = "headgate.broker.verify"
NOT_HERE = "the verifier is not a part of the installed package. In a source tree: pip install -e '.[verify]'"


def verify_endpoint(plan: Mapping[str, Any], directory: Path | None, as_json: bool) -> int:
    """Run a plan (fields of `headgate.broker.verify.run.Plan`). Returns the exit code.

    The first SIGINT or SIGTERM stops writing and judges; the second one ends the command.
    """
    try:
        from headgate.broker.verify.run import CannotRunError, Plan, Verification
    except ModuleNotFoundError as error:
        return _lacks(error, "headgate verify")
    from headgate.broker.verify.recorder import HistoryError

    where = directory or Path(tempfile.gettempdir()) / f"headgate-verify-{time.strftime('%Y%m%d-%H%M%S')}"
    verification = Verification(Plan(directory=where, **plan), _say)
    before: dict[signal.Signals, Any] = {}

    def end(number: int, frame: FrameType | None) -> None:
        # Not through the buffer: the signal may have come in the middle of a line.
        os.write(2, b"headgate verify: stops writing; once more ends it at once\n")
        verification.stop()
        for one, handler in before.items():
            signal.signal(one, handler)

    before.update({number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)})
    try:
        result = verification.run()
    except (CannotRunError, HistoryError, OSError) as error:
        output.fail(str(error), "headgate verify")
        return EXIT_NOT_JUDGED
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return _show(result, as_json)


def judge_again(directory: Path, strict: bool, as_json: bool) -> int:
    """Judge a recorded history. Returns the exit code."""
    try:
        from headgate.broker.verify.judging import judge_directory
        from headgate.broker.verify.recorder import HistoryError
    except ModuleNotFoundError as error:
        return _lacks(error, "headgate verify judge")
    try:
        return _show(judge_directory(directory, strict=strict), as_json)
    except HistoryError as error:
        output.fail(str(error), "headgate verify judge")
        return EXIT_NOT_JUDGED


def _lacks(error: ModuleNotFoundError, command: str) -> int:
    """Say what is not installed. Returns the exit code. Raises the error if it is about another module."""
    if error.name not in (PACKAGE, "confluent_kafka"):
        raise error
    install = install_command("verify", Path(sys.prefix))
    output.fail(NOT_HERE if error.name == PACKAGE else f"confluent-kafka is not installed: {install}", command)
    return EXIT_NOT_JUDGED


def _say(line: str) -> None:
    sys.stderr.write(f"headgate verify: {line}\n")
    sys.stderr.flush()


def _show(result: Result, as_json: bool) -> int:
    from headgate.broker.verify.page import as_data, as_text

    if as_json:
        output.print_json(as_data(result))
    else:
        for line in as_text(result).split("\n"):
            output.print_line(line)
    return result.exit_code
