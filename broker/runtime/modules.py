"""What brokers do not import, and where other processes find what they import."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class _WithoutPandas:
    """Says that pandas is not installed: pyarrow would import it with the first history that is read, half a second in which all
    others wait, and does as well without."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("brokers do without", name=name)


def found_by(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which another Python finds this very package, however this one did."""
    paths = [_PACKAGE_ROOT, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def without_pandas() -> None:
    """Keep pandas out of this process, also where it is installed."""
    sys.meta_path.insert(0, _WithoutPandas())
