"""The version for people: `headgate 0.1.0 (commit 20387b4c90ab)`. The number's one source is `headgate.broker.__version__`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from headgate.broker import __file__ as package_file
from headgate.broker import __version__

BAKED = "COMMIT"
"""File beside `headgate/broker/__init__.py` with the commit; `setup.py` writes it into wheels and source archives."""
GIT_S = 5.0
"""Longest wait for git, seconds."""


def version_line() -> str:
    """Version and commit, as one line."""
    commit = _commit(Path(package_file).parent)
    return f"headgate {__version__}" + (f" (commit {commit})" if commit else "")


def _commit(package: Path) -> str | None:
    """The commit that a build has kept, or that of the checkout; None: neither is known."""
    try:
        return (package / BAKED).read_text().strip()
    except OSError:
        pass
    return commit_of(package.resolve().parent)  # of a checkout, where `headgate/broker` is a link to `broker`


def commit_of(root: Path) -> str | None:
    """The commit of a checkout, with ", changed" if files differ from it. None: it is no checkout, or there is no git."""
    if not (root / ".git").exists():
        return None
    try:
        found = _git(root, "rev-parse", "--short=12", "HEAD")
        return f"{found}, changed" if _git(root, "status", "--porcelain", "--untracked-files=no") else found
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=GIT_S
    ).stdout.strip()
