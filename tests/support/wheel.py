"""The built wheel: `build_wheel` makes it from the checkout, `environment_with` installs it in front of this one's libraries."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from tests.support.broker_process import ROOT

BUILD_S = 300


def build_wheel(place: Path) -> Path:
    """Build the wheel into a directory, with this environment's setuptools: nothing is downloaded."""
    command = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", str(place)]
    subprocess.run([sys.executable, "-m", "pip", *command, str(ROOT)], check=True, timeout=BUILD_S)
    (built,) = place.glob("*.whl")
    return built


def environment_with(wheel: Path, place: Path) -> Path:
    """A new environment with the wheel and all libraries of this environment; returns its Python.

    The wheel stands first, so this checkout's own package is not found there.
    """
    venv.create(place, with_pip=False, symlinks=True)
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    # A line of a .pth file; the .pth files of that directory, such as the checkout's, do not count.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin" / "python"
