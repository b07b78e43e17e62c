"""``headgate ui``: Dagster's page and daemon for the floods of a file, with the workspace and the instance of this package."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE / "workspace.yaml"
"""The code location of this package."""
INSTANCE = HERE / "dagster.yaml"
"""The Dagster instance for floods. A home without a `dagster.yaml` gets a copy, which the user may change."""
PATIENCE = dict.fromkeys(
    ("DAGSTER_GRPC_TIMEOUT_SECONDS", "DAGSTER_REPOSITORY_GRPC_TIMEOUT_SECONDS", "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS",
     "DAGSTER_SCHEDULE_GRPC_TIMEOUT_SECONDS"),
    "300",
)  # fmt: skip
"""Longest time of a call to Dagster's code server, in seconds, in Dagster's variables: an instance has no field for it. On a busy
machine a launch takes longer than Dagster's 60 s, and each one that fails uses up a retry of its run."""
QUIET = "ignore:Function `dev_command`:FutureWarning"
"""Dagster calls its own command superseded by another package's."""


def command(arguments: Sequence[str], environment: Mapping[str, str], place: Path) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of Dagster; makes Dagster's home if there is none.

    Args:
        arguments: options of `headgate ui`; unknown ones are for `dagster dev`.
        place: the current directory.
    """
    parser = argparse.ArgumentParser(
        prog="headgate ui",
        description="Dagster's page and daemon for your floods, until Ctrl-C. It takes the options of `dagster dev` too.",
    )
    parser.add_argument("--floods", metavar="FILE", help="a file, or a directory of them. Default: HEADGATE_FLOODS, ./floods.yaml")
    parser.add_argument("--cluster", metavar="HOST:GRPC_PORT", help="Default: HEADGATE_CLUSTER, 127.0.0.1:9095")
    parser.add_argument("--home", type=Path, metavar="DIR", help="Dagster's state. Default: DAGSTER_HOME, ./.dagster")
    given, others = parser.parse_known_args(list(arguments))
    home = (place / (given.home or environment.get("DAGSTER_HOME") or ".dagster")).resolve()
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        shutil.copy(INSTANCE, home / "dagster.yaml")
    added = {"DAGSTER_HOME": str(home), **PATIENCE, **{name: environment[name] for name in PATIENCE if name in environment}}
    floods = given.floods or environment.get("HEADGATE_FLOODS") or ("floods.yaml" if (place / "floods.yaml").exists() else None)
    if floods is not None:
        # Dagster's processes may work in other directories.
        added["HEADGATE_FLOODS"] = os.pathsep.join(str(place / part) for part in floods.split(os.pathsep) if part)
    if given.cluster is not None:
        added["HEADGATE_CLUSTER"] = given.cluster
    own = any(other.split("=")[0] in ("-w", "--workspace", "-m", "--module-name", "-f", "--python-file") for other in others)
    workspace = [] if own else ["--workspace", str(WORKSPACE)]
    return [sys.executable, "-W", QUIET, "-m", "dagster", "dev", *workspace, *others], {**environment, **added}


def main(arguments: Sequence[str]) -> None:
    """Replace this process by Dagster's."""
    given, environment = command(arguments, os.environ, Path.cwd())
    floods = environment.get("HEADGATE_FLOODS", "the example of the package (no floods.yaml here)")
    sys.stdout.write(f"floods: {floods}\nDagster's state: {environment['DAGSTER_HOME']}\n")
    sys.stdout.flush()
    os.execve(given[0], given, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
