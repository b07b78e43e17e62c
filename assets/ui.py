"""``headgate ui``: Dagster's page and daemon for the floods of a file, with the workspace and the instance of this package."""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
DG = ("-c", "from dagster_dg_cli.cli import main; main()", "dev")
"""Dagster's own development server, by Python: its command `dg` may belong to another environment."""
HOST, PORT = "127.0.0.1", 3000
"""Where the page is, unless the user says so."""
LOG_LEVEL = "error"
"""Dagster warns at the first start of each home, and tells each look of each sensor. The page shows what runs do."""
POLL_S = 0.25
ASK_S = 5.0
"""Longest wait for one answer of the page, in seconds."""
ANY_ADDRESS = {"0.0.0.0": HOST, "::": "::1"}


@dataclass(frozen=True, kw_only=True)
class Ui:
    """Dagster's command line, its environment, and where its page will be."""

    command: list[str]
    environment: dict[str, str]
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def plan(arguments: Sequence[str], environment: Mapping[str, str], place: Path) -> Ui:
    """Plan Dagster's start; makes Dagster's home if there is none.

    Args:
        arguments: options of `headgate ui`; unknown ones are for `dg dev`.
        place: the current directory.
    """
    parser = argparse.ArgumentParser(
        prog="headgate ui",
        description="Dagster's page and daemon for your floods, until Ctrl-C. It takes the options of `dg dev` too.",
        allow_abbrev=False,
    )
    parser.add_argument("--floods", metavar="FILE", help="a file, or a directory of them. Default: HEADGATE_FLOODS, ./floods.yaml")
    parser.add_argument("--cluster", metavar="HOST:GRPC_PORT", help="Default: HEADGATE_CLUSTER, 127.0.0.1:9095")
    parser.add_argument("--home", type=Path, metavar="DIR", help="Dagster's state. Default: DAGSTER_HOME, ./.dagster")
    parser.add_argument("--host", metavar="ADDRESS", default=HOST, help=f"address of the page. Default: {HOST}")
    parser.add_argument("-p", "--port", type=int, metavar="N", default=PORT, help=f"port of the page. Default: {PORT}")
    parser.add_argument("--log-level", metavar="LEVEL", default=LOG_LEVEL, help=f"of Dagster's log. Default: {LOG_LEVEL}")
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
    told = ["--host", given.host, "--port", str(given.port), "--log-level", given.log_level]
    command = [sys.executable, *DG, *workspace, *told, *others]
    return Ui(command=command, environment={**environment, **added}, host=ANY_ADDRESS.get(given.host, given.host), port=given.port)


def run(ui: Ui) -> int:
    """Run Dagster until it ends or a signal asks for it. Says when the page can be opened. Returns the exit code."""
    if _answers(ui, ASK_S):
        sys.stderr.write(f"headgate ui: something else answers there, choose another --port. url=`{ui.url}`\n")
        return 2
    began = time.monotonic()
    asked: list[int] = []
    # Before Dagster starts: a shell that starts this command with `&` ignores SIGINT, and Dagster would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda given, frame: asked.append(given))
    # In a session of its own, Dagster gets each signal once: from here, and not from the terminal as well.
    process = subprocess.Popen(ui.command, env=ui.environment, start_new_session=True)
    is_open = False
    while (code := process.poll()) is None:
        while asked:
            asked.pop()
            process.send_signal(signal.SIGINT)
        if not is_open and _answers(ui, ASK_S):
            is_open = True
            _say(f"Dagster's page: {ui.url} (open it now; it took {time.monotonic() - began:.0f} s). Ctrl-C ends it.")
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    return code if code >= 0 else 128 - code


def _answers(ui: Ui, timeout_s: float) -> bool:
    """Whether a page answers at the address."""
    connection = http.client.HTTPConnection(ui.host, ui.port, timeout=timeout_s)
    try:
        connection.request("GET", "/server_info")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _say(line: str) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run Dagster's page and daemon. Returns the exit code."""
    ui = plan(arguments, os.environ, Path.cwd())
    floods = ui.environment.get("HEADGATE_FLOODS", "the example of the package (no floods.yaml here)")
    _say(f"floods: {floods}\nDagster's state: {ui.environment['DAGSTER_HOME']}\nDagster starts; this takes some seconds.")
    return run(ui)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
