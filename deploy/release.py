"""``make release``: wheel, source archive and SBOM in `dist/`, tested in empty environments.

1. The version of the package is the first heading of CHANGELOG.md.
2. The source archive is built from the checkout, the wheel from the source archive.
3. Three empty environments: one with the wheel, one with the source archive, and one that `uv tool install` makes of the wheel.
   Beside a user's packages `assets` and `broker`, `headgate --version` names version and commit, and a broker serves a produced
   record.
4. The SBOM (CycloneDX) lists what the wheel's environment has, from that environment itself.

Nothing is published. With ``--demo`` the wheel's environment also gets the extra ``demo``, and runs `headgate demo` there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ["build>=1.3,<2", "cyclonedx-bom>=7,<8", "uv>=0.12,<1"]
SERVE_S = 120


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="also run the demo in the wheel's environment")
    given = parser.parse_args()
    version = checked_version()
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="headgate-release-") as name:
        place = Path(name)
        tools = environment(place / "tools", *TOOLS)
        run(tools / "python", "-m", "build", "--outdir", dist, ROOT)
        wheel, archive = dist / f"headgate-{version}-py3-none-any.whl", dist / f"headgate-{version}.tar.gz"
        programs = {
            "wheel": environment(place / "wheel", wheel),
            "archive": environment(place / "archive", archive),
            "tool": tool_environment(tools / "uv", place / "tool", wheel),
        }
        commits = {try_out(kind, version, program) for kind, program in programs.items()}
        if len(commits) != 1:
            raise SystemExit(f"wheel and source archive name different commits. commits=`{commits}`")
        sbom = dist / f"headgate-{version}.cdx.json"
        run(tools / "cyclonedx-py", "environment", "--output-file", sbom, place / "wheel" / "bin" / "python")
        if given.demo:
            run(place / "wheel" / "bin" / "python", "-m", "pip", "install", "--quiet", f"{wheel}[demo]")
            run(place / "wheel" / "bin" / "headgate", "demo", place=place / "wheel" / "user")
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(dist.iterdir()))
    (dist / "SHA256SUMS").write_text(sums)
    sys.stdout.write(f"release {version}, commit {commits.pop()}:\n{sums}")
    return 0


def checked_version() -> str:
    """The version. Ends the script if the changelog's first heading is another one."""
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "broker" / "__init__.py").read_text(), re.M)
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if version is None or heading is None or version[1] != heading[1]:
        raise SystemExit(
            f"CHANGELOG.md does not begin with this version. version=`{version and version[1]}` heading=`{heading and heading[1]}`"
        )
    return version[1]


def environment(place: Path, *packages: str | Path) -> Path:
    """A new environment with some packages. Returns its directory of programs."""
    venv.create(place, with_pip=True)
    run(place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return place / "bin"


def tool_environment(uv: Path, place: Path, wheel: Path) -> Path:
    """An environment that uv makes for the tool `headgate`. Returns its directory of programs."""
    programs = place / "bin"
    own = {**os.environ, "UV_TOOL_DIR": str(place / "tools"), "UV_TOOL_BIN_DIR": str(programs)}
    run(uv, "tool", "install", "--quiet", "--python", sys.executable, wheel, environment=own)
    return programs


def try_out(kind: str, version: str, programs: Path) -> str:
    """Use the package in its environment, from a directory with packages of a user's own. Returns its commit."""
    place = programs.parent / "user"
    for package in ("assets", "broker"):
        (place / package).mkdir(parents=True)
        (place / package / "__init__.py").write_text("")
    said = run(programs / "headgate", "--version", place=place).strip()
    found = re.fullmatch(rf"headgate {re.escape(version)} \(commit ([0-9a-f]{{12}}(?:, changed)?)\)", said)
    if found is None:
        raise SystemExit(f"the {kind} does not name its version and commit. said=`{said}`")
    ports = [part for name in ("kafka", "grpc", "http") for part in (f"--{name}-port", "0")]
    broker = subprocess.Popen([programs / "headgate", "up", *ports], cwd=place, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        address = re.search(r"grpc=(\S+)", line)
        if address is None:
            raise SystemExit(f"the broker of the {kind} does not serve. said=`{line.strip()}`")
        cluster = ("--cluster", address[1])
        run(programs / "headgate", "topic", "create", "greetings", *cluster, place=place)
        run(programs / "headgate", "produce", "greetings", *cluster, place=place, given="hello\n")
        read = run(programs / "headgate", "consume", "greetings", *cluster, "--from-beginning", "--max", "1", place=place)
        if "hello" not in read:
            raise SystemExit(f"the {kind} does not read what it wrote. read=`{read}`")
    finally:
        broker.terminate()
        broker.wait(SERVE_S)
    return found[1]


def run(
    program: Path,
    *arguments: str | Path,
    place: Path = ROOT,
    given: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The output of a program. Ends the script if it fails."""
    began = time.monotonic()
    done = subprocess.run(
        [program, *arguments], cwd=place, input=given, env=environment, capture_output=True, text=True, check=False
    )
    command = " ".join(map(str, (program.name, *arguments)))
    if done.returncode != 0:
        raise SystemExit(f"{command} failed. exit=`{done.returncode}`\n{done.stdout}{done.stderr}")
    sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {command}\n")
    sys.stdout.flush()
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
