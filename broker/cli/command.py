"""What all commands for people have in common: how they run, and when their modules are imported."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import cached_property, wraps
from importlib import import_module
from typing import Any, TypeVar

import typer.core
import typer.main

from headgate.broker.cli import output, plain_help

_Command = TypeVar("_Command", bound=Callable[..., Coroutine[Any, Any, int | None]])


def command(app: typer.Typer, name: str) -> Callable[[_Command], _Command]:
    """A decorator: adds an asynchronous command. One with a parameter `cluster` begins once a broker of it answers.

    The function returns a coroutine; a plain function judges options before a broker is asked. The coroutine returns the exit
    code; None for 0.
    """

    def add(function: _Command) -> _Command:
        @app.command(name)
        @wraps(function)
        def run(**parameters: Any) -> int | None:
            with closing(function(**parameters)) as work:
                if "cluster" in parameters:
                    output.check_reachable(parameters["cluster"])
                return output.run(work)

        return function

    return add


class Later(typer.core.TyperGroup):
    """A command, or a group of them, whose module is imported only when it is called or asked for its own help."""

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name=name, help=text)
        self._module = module

    @cached_property
    def loaded(self) -> Any:
        """The command itself: the one of this name among several of a module, or else all of the module as a group."""
        group = typer.main.get_group(import_module(f"headgate.broker.cli.commands.{self._module}").app)
        command = group.commands.get(self.name or "", group)
        command.help = command.help or self.help
        return plain_help.plain(command)

    def make_context(self, *given: Any, **options: Any) -> Any:
        """The context of the command itself, which typer then runs or completes."""
        return self.loaded.make_context(*given, **options)
