"""Blocks of code in documents, and their commands, run as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BLOCK_S = 240.0
"""Bound of one block, seconds; the longest one starts Spark twice."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(document: Path) -> list[tuple[str, str]]:
    """The language and text of every block of code."""
    return _BLOCK.findall(document.read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    """The commands of a console block."""
    return re.findall(r"^\$ (.*)$", text, re.M)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process' environment, with `headgate` and `python` of this installation."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **more}


def run(command: list[str], place: Path, more: Mapping[str, str]) -> str:
    """Run a command as a document's reader does. Returns its output; raises AssertionError with it when the command fails."""
    done = subprocess.run(command, cwd=place, env=environment(more), capture_output=True, text=True, timeout=BLOCK_S, check=False)
    assert done.returncode == 0, f"a block of a document fails. command=`{command[-1]}`\n{done.stdout}\n{done.stderr}"
    return done.stdout
