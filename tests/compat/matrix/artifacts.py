"""Clients of given versions from PyPI, npm, Maven Central and the Go proxy, each fetched once per user, apart from the project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import maven

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
FETCH_S = 600.0
SMALL_JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True)
class Program:
    """A command, to which the arguments are added, and what it needs in its environment."""

    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)


class MissingError(Exception):
    """A client cannot be had here, with the reason."""


def _home(*parts: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate-tests" / "compat" / "-".join(parts)


def _run(command: Sequence[str], where: Path, **env: str) -> None:
    if shutil.which(command[0]) is None:
        raise MissingError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command, cwd=where, env={**os.environ, **env}, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"{command[0]} does not end") from error
    if done.returncode:
        raise MissingError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-300:]}")


def pip(package: str, version: str, program: str, extras: str = "") -> Program:
    home = _home("pip", package, version)
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        wanted = f"{package}{extras}=={version}"
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--target", str(home), wanted], home)
        (home / "complete").touch()
    path = os.pathsep.join((str(home), str(ROOT)))
    return Program((sys.executable, "-m", f"tests.compat.matrix.programs.{program}"), {"PYTHONPATH": path})


def environment(package: str, version: str) -> Path:
    """The Python of an environment that has this package alone: its dependencies differ from the project's."""
    home = _home("venv", package, version)
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _run([sys.executable, "-m", "venv", str(home)], home)
        _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", f"{package}=={version}"], home)
        (home / "complete").touch()
    return home / "bin" / "python"


def npm(package: str, version: str, program: str) -> Program:
    home = _home("npm", package, version)
    if not (home / "complete").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text(json.dumps({"private": True, "dependencies": {package: version}}))
        _run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"], home)
        (home / "complete").touch()
    env = {"NODE_PATH": str(home / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return Program(("node", str(PROGRAMS / program)), env)


def java(name: str, artifacts: Sequence[str], program: str, options: Sequence[str] = ()) -> Program:
    if (reason := maven.missing()) is not None:
        raise MissingError(reason)
    try:
        jars = maven.jars(f"compat/{name}", artifacts)
    except subprocess.SubprocessError as error:
        output = getattr(error, "stdout", b"") or b""
        raise MissingError(f"Maven: {output.decode(errors='replace').strip()[-300:]}") from error
    return Program(("java", *SMALL_JVM, *options, "-cp", f"{jars}/*", str(PROGRAMS / program)))


def unpacked(artifact: str) -> Path:
    """The directory with the content of a tar archive of Maven: ``group:artifact:version:tar.gz:classifier``."""
    home = _home("tar", artifact.replace(":", "-"))
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _run(["mvn", "-q", "-B", maven.COPY_ONE, f"-Dartifact={artifact}", f"-DoutputDirectory={home}"], home)
        (archive,) = home.glob("*.tar.gz")
        with tarfile.open(archive) as found:
            found.extractall(home, filter="data")
        archive.unlink()
        (home / "complete").touch()
    return home


def go(module: str, version: str, folder: str, also: Sequence[str] = ()) -> Program:
    """`also`: further modules of the program, with their versions."""
    home = _home("go", folder, version)
    binary = home / "program"
    if not binary.exists() or binary.stat().st_mtime < (PROGRAMS / folder / "main.go").stat().st_mtime:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(PROGRAMS / folder / "main.go", home)
        _run(["go", "mod", "init", "headgate/compat"], home)
        _run(["go", "get", f"{module}@{version}", *also], home, GOFLAGS="-mod=mod", GOTOOLCHAIN="local")
        _run(["go", "build", "-o", str(binary), "."], home, GOFLAGS="-mod=mod", GOTOOLCHAIN="local")
    return Program((str(binary),))
