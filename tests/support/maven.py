"""Jars from Maven Central, downloaded once per user."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
COPY_ONE = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
TIMEOUT_S = 600.0


def missing() -> str | None:
    """The reason why Maven and the jars' programs cannot run here; None: they can."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None


def jars(name: str, artifacts: Sequence[str], only: Sequence[str] = ()) -> Path:
    """A directory with these artifacts and their run-time dependencies.

    Args:
        name: of the directory, with the version. A directory that is complete is not filled again.
        artifacts: ``group:artifact:version``.
        only: names of the artifacts to keep. Default: all.

    Raises subprocess.CalledProcessError or TimeoutExpired when Maven does not get them, FileNotFoundError without Maven.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate-tests" / name
    if not (home / "complete").exists():
        # Fills a new directory and renames it at the end: two test runs may want the same jars at the same time.
        fresh = home.with_name(f"{home.name}.{uuid.uuid4().hex}")
        fresh.mkdir(parents=True)
        try:
            (fresh / "pom.xml").write_text(_pom(artifacts))
            command = ["mvn", "-q", "-B", COPY, "-DincludeScope=runtime", f"-DoutputDirectory={fresh / 'jars'}"]
            command += [f"-DincludeArtifactIds={','.join(only)}"] if only else []
            subprocess.run(command, cwd=fresh, check=True, capture_output=True, timeout=TIMEOUT_S)
            (fresh / "complete").touch()
            if home.exists() and not (home / "complete").exists():  # left by a run of an older checkout
                shutil.rmtree(home)
            with suppress(OSError):  # the other run finished first
                fresh.rename(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return home / "jars"


def _pom(artifacts: Sequence[str]) -> str:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>\n".format(*one.split(":"))
        for one in artifacts
    )
    return f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>headgate</groupId><artifactId>tests</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
