"""The settings as texts: for `headgate broker --help`, and for the manual."""

from __future__ import annotations

import textwrap
from dataclasses import Field, fields
from typing import Any

from headgate.broker.runtime.config import Settings, environment_name, expected, flag_name, shown


def help_text() -> str:
    """Every setting with its meaning, default and range: the list in ``headgate broker --help``."""
    lines: list[str] = []
    for item in fields(Settings):
        lines.append(f"  {flag_name(item.name)}  [{environment_name(item.name)}]  default: {_default(item) or '(empty)'}")
        text = f"{item.metadata['documentation']}."
        if item.metadata["kind"] != "text":
            text += f" {expected(item)}."
        lines += textwrap.wrap(text, width=110, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def markdown_table() -> str:
    """Every setting as a row of a Markdown table, for broker/REFERENCE.md; a test compares the page with it."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for item in fields(Settings):
        default, text = _default(item), item.metadata["documentation"]
        if item.metadata["kind"] == "choice" and "=" not in text:
            text += f" ({', '.join(item.metadata['choices'])})"
        rows.append(f"| `{item.name}` | {f'`{default}`' if default else 'empty'} | {text} |")
    return "\n".join(rows)


def _default(item: Field[Any]) -> str:
    return shown(item, getattr(Settings, item.name))
