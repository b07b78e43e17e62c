"""The help of commands in plain words: uncut one-line descriptions, and placeholders instead of Python's types."""

from __future__ import annotations

from typing import Any

_PLACEHOLDERS = {"int": "N", "float": "NUMBER", "path": "PATH"}
SHORT_HELP_CHARS_MAX = 1000
"""Bound of a command's first sentence: a longer help text wraps, and is not cut."""


def plain(command: Any) -> Any:
    """Change a command of typer and all its subcommands. Returns the command."""
    for param in command.params:
        if param.param_type_name == "argument":
            name = param.display_name_raw.strip("[]")
            shown = name if param.required else f"[{name}]"
            param.display_type_rich = lambda ctx: None
            param.get_usage_pieces = lambda ctx, shown=shown: [shown]
        elif param.metavar is None and not param.is_flag and not param.count:
            param.metavar = _placeholder(param)
        if hasattr(param, "_get_number_range_help_str"):
            # The error for a wrong number states the range. Typer has no public switch for its "1<=x<=9".
            param._get_number_range_help_str = lambda: None
    children = getattr(command, "commands", None)
    if children is not None:
        command.format_commands = lambda ctx, formatter: _format_commands(command, ctx, formatter)
        for child in children.values():
            plain(child)
    return command


def _placeholder(param: Any) -> str:
    kind = str(param.display_type(None)) if not param.type_descriptor.is_choice else ""
    return next((word for name, word in _PLACEHOLDERS.items() if name in kind), "TEXT")


def _format_commands(command: Any, context: Any, formatter: Any) -> None:
    """The list of subcommands. Typer's own cuts a description that is longer than the rest of the line."""
    rows = [(name, child.get_short_help_str(SHORT_HELP_CHARS_MAX)) for name, child in command.commands.items() if not child.hidden]
    with formatter.section("Commands"):
        formatter.write_dl(rows)
