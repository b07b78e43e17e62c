"""``python -m headgate.broker.verify``: run a verification, show its progress on stderr and its page on stdout.

``python -m headgate.broker.verify judge DIR`` judges the history of an earlier run again, and sends nothing to the endpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from headgate.broker.verify.judging import judge_directory
from headgate.broker.verify.page import Result, as_data, as_text
from headgate.broker.verify.recorder import HistoryError
from headgate.broker.verify.run import CannotRunError, Plan, Verification

EXIT_NOT_JUDGED = 2
DURATION_S_MAX = 7 * 86_400
PROGRESS_S_MIN, PROGRESS_S_MAX = 0.1, 60.0
_UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code. 0: no violation; 1: a violation; 2: it could not be judged."""
    try:
        if arguments[:1] == ["judge"]:
            given = _judge_options().parse_args(arguments[1:])
            return _show(judge_directory(given.directory, strict=given.strict), given.json)
        given = _options().parse_args(arguments)
        as_json = given.__dict__.pop("json")
        given.progress_s = max(given.progress_s, PROGRESS_S_MIN)
        given.config, given.topic_config = dict(given.config), dict(given.topic_config)
        return _show(_verified(Plan(**vars(given))), as_json)
    except (CannotRunError, HistoryError, OSError) as error:
        _say(str(error))
        return EXIT_NOT_JUDGED


def _verified(plan: Plan) -> Result:
    """The result of a run. The first SIGINT or SIGTERM stops writing and judges; the second one ends the command."""
    verification = Verification(plan, _say)
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        # Not through the buffer: the signal may have come in the middle of a line.
        os.write(2, b"verify: stops writing; once more ends it at once\n")
        verification.stop()
        restore()

    before.update({number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)})
    try:
        return verification.run()
    finally:
        restore()


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the usage."""
        self.exit(EXIT_NOT_JUDGED, f"verify: {message} (see --help)\n")


def _options() -> argparse.ArgumentParser:
    parser = _Options(
        prog="python -m headgate.broker.verify",
        description="Verify any Kafka endpoint while you inject faults: is a record lost, repeated, reordered, or gone after it "
        "was read? Producers, readers and groups work until the duration is over or Ctrl-C. Then everything is read once more and "
        "judged. Prints one page with the rules and their violations. Exit code 0: no violation. 1: a violation. 2: it could not "
        "be judged.",
        epilog="`judge DIR` instead of options judges the history of an earlier run again.",
    )
    option = parser.add_argument
    option("--bootstrap", "-b", metavar="HOST:PORT", required=True, help="Kafka endpoint, or several separated by commas")
    option("--duration", "-d", dest="duration_s", type=_seconds(), default="60s", help="time that producers write (60s)")
    option("--rate", type=_number(0.1, 1e6, float), default=1000, help="records per second of all producers together (1000)")
    option("--topics", type=_number(1, 100), default=1, help="new topics to write to (1)")
    option("--partitions", "-p", type=_number(1, 500), default=6, help="partitions of each topic (6)")
    option("--replication-factor", "-r", type=_number(-1, 100), default=-1, help="of the topics; -1: the endpoint's default (-1)")
    option("--producers", type=_number(1, 100), default=4, help="producers; every second one without idempotence (4)")
    option("--groups", type=_number(0, 100), default=1, help="consumer groups of two members each (1)")
    option(
        "--group-protocol", choices=("classic", "consumer", "both"), default="classic",
        help="classic, consumer (KIP-848), or both: every second group with each (classic)",
    )  # fmt: skip
    option("--acks", choices=("all", "1"), default="all", help="all or 1; with 1 no producer is idempotent (all)")
    option("--value-bytes", type=_number(64, 1_000_000), default=200, help="size of a value (200)")
    option(
        "--patience", dest="patience_s", type=_seconds(), default="60s",
        help="longest wait for the last acknowledgements; for the final read (60s)",
    )  # fmt: skip
    option(
        "--settle", dest="settle_s", type=_seconds(), default="15s",
        help="longest wait until all acknowledged records can be read (15s)",
    )  # fmt: skip
    option(
        "--interval", "-i", dest="progress_s", type=_seconds(PROGRESS_S_MAX), default="2s",
        help="pause between two lines of progress (2s)",
    )  # fmt: skip
    option(
        "--history", dest="directory", metavar="DIR", type=Path, help="new directory for the history; default: a temporary one",
        default=Path(tempfile.gettempdir()) / f"headgate-verify-{time.strftime('%Y%m%d-%H%M%S')}",
    )  # fmt: skip
    pair: dict[str, Any] = {"metavar": "NAME=VALUE", "type": _pair, "action": "append", "default": []}
    option("--client-config", "-X", dest="config", help="librdkafka property; may be repeated", **pair)
    option("--topic-config", help="setting of the topics; may be repeated", **pair)
    option("--keep-topic", dest="keep_topics", action="store_true", help="keep the topics even if no rule was violated")
    _add_shared(parser)
    return parser


def _judge_options() -> argparse.ArgumentParser:
    parser = _Options(prog="python -m headgate.broker.verify judge", description="Judge the history of an earlier run again.")
    parser.add_argument("directory", metavar="DIR", type=Path, help="history of an earlier run")
    _add_shared(parser)
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strict", action="store_true", help="gaps, repeats without idempotence and old watermarks are errors, too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _seconds(most: float = DURATION_S_MAX) -> Callable[[str], float]:
    """The parser of a duration such as 500ms, in seconds."""

    def parse(text: str) -> float:
        found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
        seconds = int(found[1]) * _UNIT_S[found[2]] if found else most + 1
        if seconds > most:
            raise argparse.ArgumentTypeError(f"expected a duration up to {most:g}s, such as 500ms. value=`{text}`")
        return seconds

    return parse


def _number(low: float, high: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """The parser of a number within bounds."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
            if low <= value <= high:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"expected a number from {low:g} to {high:g}. value=`{text}`")

    return parse


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE. value=`{text}`")
    return name, value


def _say(line: str) -> None:
    sys.stderr.write(f"verify: {line}\n")
    sys.stderr.flush()


def _show(result: Result, as_json: bool) -> int:
    sys.stdout.write((json.dumps(as_data(result), ensure_ascii=False) if as_json else as_text(result)) + "\n")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
