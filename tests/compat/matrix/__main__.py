"""``python -m tests.compat.matrix``: runs the rows one after another and writes the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.compat.matrix.frameworks import FRAMEWORKS
from tests.compat.matrix.report import DOCUMENT, document
from tests.compat.matrix.rows import CLIENTS
from tests.compat.matrix.run import Result, run
from tests.support.broker_process import BrokerProcess


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _outcome(result: Result) -> str:
    if result.missing:
        return f"not tried: {result.missing}"
    return " ".join(f"{step}={text}" for step, text in result.steps.items())


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    parser.add_argument("--only", default="", help="only rows whose client or version contains this text; the table is not written")
    options = parser.parse_args()
    rows = [row for row in (*CLIENTS, *FRAMEWORKS) if options.only.lower() in f"{row.client} {row.version}".lower()]
    results = []
    with tempfile.TemporaryDirectory(prefix="headgate-compat-") as home:
        with BrokerProcess(Path(home) / "store", Path(home) / "broker.log") as broker:
            broker.start()
            for row in rows:
                began = time.monotonic()
                found = run(row, broker.bootstrap)
                results.append(found)
                _say(f"{row.client} {row.version} ({time.monotonic() - began:.0f} s): {_outcome(found)}")
            broker.check_alive()
        broker.check_output()
    if not options.only:
        DOCUMENT.write_text(document(results))
        _say(f"written: {DOCUMENT}")
    return 1 if any(one.errors for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
