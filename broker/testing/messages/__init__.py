"""Kafka's messages in both directions, in all versions. Importing this module adds to the generated messages what the product
does not use: the writers of requests, and the readers of answers. They are made in memory, each at its first use.

Messages that the product does not have at all are modules of this package that no file has: ``messages.fetch``,
``messages.produce``, ``messages.request_header``, ``messages.response_header``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from headgate.broker.runtime.steps import Steps
from headgate.broker.wire.kafka.message import Message
from headgate.broker.wire.kafka.primitives import Buffer
from headgate.broker.wire.kafka.schema import snake

_HERE = __name__ + "."


@cache
def _by_file() -> dict[str, str]:
    """The generator's modules, by the names of their files."""
    from headgate.broker.wire.kafka.generate import MESSAGES

    return {snake(module): module for module in MESSAGES}


def _execute(module: str, names: dict[str, Any]) -> None:
    from headgate.broker.wire.kafka.generate import generate

    exec(compile(generate(module, whole=True), f"<messages of {module}>", "exec"), names)


@cache
def _functions(module_name: str) -> dict[str, Any]:
    """The functions of a whole module. They make the product's own messages."""
    names: dict[str, Any] = {"__name__": module_name}
    _execute(_by_file()[module_name.rpartition(".")[2]], names)
    kinds = vars(sys.modules[module_name])
    names.update((name, kind) for name, kind in kinds.items() if isinstance(kind, type) and kind.__module__ == module_name)
    return names


def _complete(kind: type[Message], verb: str) -> Any:
    function = _functions(kind.__module__)[f"_{verb}_{snake(kind.__name__)}"]
    setattr(kind, f"_{verb}", staticmethod(function))
    return function


def _read(kind: type[Message], buf: Buffer, pos: int, version: int) -> Steps[tuple[Any, int]]:
    return _complete(kind, "read")(buf, pos, version)  # type: ignore[no-any-return]


def _write(kind: type[Message], out: bytearray, value: Any, version: int) -> Steps[None]:
    return _complete(kind, "write")(out, value, version)  # type: ignore[no-any-return]


class _InMemory(MetaPathFinder, Loader):
    """Finds and makes the modules that no file has."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        is_ours = fullname.startswith(_HERE) and fullname.removeprefix(_HERE) in _by_file()
        return spec_from_loader(fullname, self) if is_ours else None

    def exec_module(self, module: ModuleType) -> None:
        _execute(_by_file()[module.__name__.removeprefix(_HERE)], vars(module))


Message._read = classmethod(_read)
Message._write = classmethod(_write)
sys.meta_path.append(_InMemory())
