"""Modules that brokers do not import, and the environment in which other processes find this package."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class _WithoutPandas:
    """Marks pandas as not installed. Otherwise pyarrow would import it at the first read of history, for half a second in which
    all other requests wait. pyarrow works as well without it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("brokers do without", name=name)


def found_by(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which another Python finds this same package."""
    if _PACKAGE_ROOT in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(environment)  # installed: found anyway
    paths = [_PACKAGE_ROOT, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def without_pandas() -> None:
    """Keep pandas out of this process, even if it is installed."""
    sys.meta_path.insert(0, _WithoutPandas())
