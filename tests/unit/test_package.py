"""The package as users import it: `headgate` and nothing else, with a public API that loads modules on first use.

Each check runs in a separate Python. A failure means that an installation would shadow a user's own `assets` or `broker`, or
that ``import headgate`` became slow.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import pytest

import headgate


def run(code: str, place: Path) -> str:
    """The output of a Python that is started in a directory."""
    return subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True, timeout=120).stdout


def test_one_package_is_installed() -> None:
    assert (distribution("headgate").read_text("top_level.txt") or "").split() == ["headgate"]


def test_the_version_has_one_source() -> None:
    assert distribution("headgate").version == headgate.__version__


def test_a_users_own_packages_are_not_shadowed(tmp_path: Path) -> None:
    for name in ("assets", "broker", "pipelines"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWNER = 'the user of {name}'\n")
    code = (
        "import assets, broker, pipelines, headgate.assets, headgate.broker.client\n"
        "print(assets.OWNER, broker.OWNER, pipelines.OWNER)"
    )
    assert run(code, tmp_path).strip() == "the user of assets the user of broker the user of pipelines"


def test_importing_the_package_loads_nothing_else(tmp_path: Path) -> None:
    code = (
        "import sys, headgate; print([name for name in sys.modules if name.startswith('headgate.') or name in ('grpc', 'asyncio')])"
    )
    assert run(code, tmp_path).strip() == "[]"


@pytest.mark.parametrize("name", sorted({*headgate.__all__} - {"__version__"}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(headgate, name).__name__ == name
    assert name in dir(headgate)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Prodcer"):
        _ = headgate.Prodcer


@pytest.mark.parametrize("module", ["headgate.spark", "headgate.dagster"])
def test_the_extras_have_a_module_each(module: str) -> None:
    loaded = import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)
