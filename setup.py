"""The build beside pyproject.toml: the commit goes into wheels and source archives, modules for developers stay out."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
from headgate.broker.cli.version import BAKED, commit_of

FOR_DEVELOPERS = {
    ("headgate.broker.wire.kafka", "generate"), ("headgate.broker.wire.grpc", "generate"), ("headgate.broker.cli", "tables"),
}  # fmt: skip
"""Modules that write the repository's own files, and need its development tools."""


def bake(root: Path) -> None:
    """Write the commit into a built tree. A source archive is no checkout, and has the file already; an image's build has neither,
    and gets the commit as HEADGATE_COMMIT."""
    found = commit_of(Path.cwd()) or os.environ.get("HEADGATE_COMMIT")
    if found is not None:
        (root / "headgate" / "broker" / BAKED).write_text(f"{found}\n")


class BuildPy(build_py):
    def run(self) -> None:
        if not self.editable_mode:
            # A module that was deleted since the last build would stay in every later wheel.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            bake(Path(self.build_lib))

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        return [
            module for module in super().find_package_modules(package, package_dir) if (module[0], module[1]) not in FOR_DEVELOPERS
        ]


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        bake(Path(base_dir))


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
