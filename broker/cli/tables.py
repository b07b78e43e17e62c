"""The tables of broker/REFERENCE.md, generated from the code: ``python -m headgate.broker.cli.tables`` writes them.

A table is between two comments, ``<!-- settings -->`` and ``<!-- /settings -->``. A test fails when the page differs from the
code.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate.broker.cli.app import command
from headgate.broker.cluster.topic_config import KEYS
from headgate.broker.runtime import config, setting_texts
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.runtime.out_of_memory import OutOfMemory
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.http.app import HttpBackend, doors, make_pages
from headgate.broker.server.net import ports
from headgate.broker.server.process import Process

PAGE = Path(__file__).parents[1] / "REFERENCE.md"


def tables() -> dict[str, str]:
    """Each table as Markdown, by the name in its comments."""
    return {
        "commands": _commands(),
        "http": _paths(),
        "metrics": _metrics(),
        "settings": setting_texts.markdown_table(),
        "topic-settings": _topic_settings(),
    }


def filled(page: str) -> str:
    """The page with every table replaced. Raises ValueError when the page lacks the comments of a table."""
    for name, table in tables().items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not (begin and end):
            raise ValueError(f"the page has no place for a table. table=`{name}`")
        page = f"{before}{begin}{table}\n{end}{after}"
    return page


def _commands() -> str:
    rows = [f"| `headgate {path}` | {_cell(text)} |" for path, text in _leaves(command(), "")]
    return "\n".join(["| command | purpose |", "| --- | --- |", *rows])


def _leaves(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every command without subcommands: its path with its arguments, and the first paragraph of its help."""
    command = getattr(command, "loaded", command)
    children = getattr(command, "commands", None)
    if children is not None:
        for name, child in children.items():
            yield from _leaves(child, f"{path} {name}".strip())
        return
    arguments = [_argument(param) for param in command.params if param.param_type_name == "argument"]
    yield " ".join([path, *arguments]), (command.help or "").split("\n\n")[0]


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper().strip("[].") + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def _paths() -> str:
    nothing = HttpBackend(
        settings=config.Settings(),
        metrics=Metrics(),
        turns=Turns(lambda: 0.0),
        hosts=tuple,
        not_ready=lambda: None,
        line=str,
        views=lambda: None,
    )
    table = doors(
        nothing,
        make_pages(nothing),
    )
    return "\n".join(["| path | answer |", "| --- | --- |", *(f"| `{door.path}` | {_cell(door.purpose)} |" for door in table)])


def _metrics() -> str:
    rows = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for entry in asyncio.run(all_metrics()).entries():
        labels = ", ".join(f"`{label}`" for label in entry.labels)
        rows.append(f"| `{entry.shown}` | {entry.kind} | {labels} | {_cell(entry.documentation)} |")
    return "\n".join(rows)


async def all_metrics() -> Metrics:
    """The metrics of a real broker in memory, so that none is missing."""
    settings = config.Settings(store="memory:", kafka_port=0, grpc_port=0, http_port=0, log_level="error")
    kafka, http = (ports.listen(settings.host, 0, name) for name in ("kafka_port", "http_port"))
    broker = Process(settings, kafka=[kafka], http=http, out_of_memory=OutOfMemory("tables"))
    running = asyncio.create_task(broker.run(lambda line: broker.stop()))
    error = await running
    if error is not None:
        raise error
    return broker.metrics


def _topic_settings() -> str:
    """Keys with the same text share a row: most of those without effect."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    same: dict[str, list[tuple[str, str]]] = {}
    for key in KEYS.values():
        same.setdefault(key.documentation, []).append((f"`{key.name}`", f"`{key.default}`" if key.default else "empty"))
    for documentation, keys in same.items():
        names, defaults = zip(*keys, strict=True)
        rows.append(f"| {', '.join(names)} | {', '.join(defaults)} | {_cell(documentation)} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Write the page. Returns the process's exit code."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
