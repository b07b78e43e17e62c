"""CRC-32C of any buffer, by the processor's own instruction: `crc32c.crc32c`, without the package around it.

The package asks importlib.metadata for its version and brings its command line, which takes a quarter of a broker's time to its
first answer.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, PathFinder
from typing import Any


def _load() -> Any:
    package = PathFinder.find_spec("crc32c")
    found = None if package is None else PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if found is None or not isinstance(found.loader, ExtensionFileLoader):
        import crc32c as whole

        return whole
    module = found.loader.create_module(found)
    found.loader.exec_module(module)
    return module


crc32c: Callable[..., int] = _load().crc32c
"""``crc32c(data, value=0)``: of `data`, behind bytes whose CRC-32C is `value`."""
