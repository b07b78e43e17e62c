"""`headgate broker`, with a right or a wrong clock, as a program of `forks.py`. Its first argument is the module to run."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

_NO_BROKERS = ("headgate.broker.cli", "headgate.broker.client", "headgate.broker.testing", "headgate.broker.verify")
"""Packages of which a broker imports nothing at its start. What it imports of them later, it imports as always."""


def prepare() -> None:
    """Import the modules of a broker."""
    import_module("headgate.broker.cli.main")
    import_module("headgate.broker.cli.broker")
    import_module("headgate.broker.server.main")
    import_module("tests.support.skewed_broker")
    broker = import_module("headgate.broker")
    names = [module.name for module in pkgutil.iter_modules(broker.__path__, "headgate.broker.")]
    while names:
        name = names.pop()
        if name.startswith(_NO_BROKERS) or name.endswith("__main__"):
            continue
        module = import_module(name)
        names += [inner.name for inner in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}.")]


def main() -> int:
    """Run a module's broker until its end. Returns the exit code."""
    module, *arguments = sys.argv[1:]
    found: int = import_module(module).main(arguments)
    return found
