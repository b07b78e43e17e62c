"""Runs a row of the table against a broker."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from dataclasses import dataclass

from tests.compat.matrix.artifacts import MissingError, Program
from tests.compat.matrix.rows import Row

TIMEOUT_S = 420.0
WORKS, UNSUPPORTED = "yes", "-"


@dataclass(frozen=True, slots=True)
class Result:
    """`steps`: by step: WORKS, UNSUPPORTED (the client has no such feature), or the error. `missing`: the reason why the client
    cannot be had here."""

    row: Row
    steps: dict[str, str]
    missing: str = ""

    @property
    def errors(self) -> dict[str, str]:
        return {name: text for name, text in self.steps.items() if text not in (WORKS, UNSUPPORTED)}


def run(row: Row, bootstrap: str) -> Result:
    """Fetch a client and run its program. A step that the program does not reach failed."""
    try:
        program = row.make()
    except MissingError as error:
        return Result(row, {}, str(error))
    return Result(row, run_program(program, bootstrap))


def run_program(program: Program, bootstrap: str, *arguments: str) -> dict[str, str]:
    """The outcome of each step that the program reported, and `end` if it did not end well."""
    prefix = f"compat-{uuid.uuid4().hex[:8]}"
    command = [*program.command, bootstrap, prefix, *arguments]
    try:
        done = subprocess.run(
            command, env={**os.environ, **program.env}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        output, ended = done.stdout, "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()[-300:]}"
    except subprocess.TimeoutExpired as error:
        output, ended = (error.stdout or b"").decode(errors="replace"), "hangs"
    steps: dict[str, str] = {}
    for line in output.splitlines():
        if line.startswith('{"'):
            found = json.loads(line)
            steps[found["step"]] = {"": WORKS, "-": UNSUPPORTED}.get(found["error"], found["error"])
    if ended:
        steps["end"] = ended
    return steps
