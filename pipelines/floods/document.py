"""YAML with line numbers: typed reading of a document, with problems that name the line, the field and the expected value.

A reader never raises for a mistake in the document: it notes a `Problem` and continues, so that one look at the file shows all
mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from headgate.broker.runtime.errors import InvalidError, Reason

DOCUMENT_BYTES_MAX = 1 << 20
DEPTH_MAX = 20

_SECOND_MS = 1000
_UNITS_MS = {"ms": 1, "s": _SECOND_MS, "m": 60 * _SECOND_MS, "h": 3600 * _SECOND_MS, "d": 86_400 * _SECOND_MS}
_UNITS_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a document. `line` counts from 1, and is 0 for values without lines; `field` is a path such as
    ``floods[0].partitions.by``."""

    file: str
    line: int
    field: str
    expected: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(filter(None, (place, self.field, self.expected)))


class DocumentError(InvalidError):
    """The file is wrong. `problems`: all mistakes, in the order of their lines, file by file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
        super().__init__(Reason.INVALID_CONFIG, "\n".join(map(str, self.problems)))


@dataclass(slots=True)
class Notes:
    """The problems found so far in one file."""

    file: str
    problems: list[Problem] = field(default_factory=list)

    def add(self, node: yaml.Node | None, path: str, expected: str) -> None:
        """Note a problem at a node; None: at the top of the file."""
        self.problems.append(Problem(self.file, 1 if node is None else node.start_mark.line + 1, path, expected))

    def check(self) -> None:
        """Raise DocumentError if there is a problem."""
        if self.problems:
            raise DocumentError(self.problems)


def compose(text: str, file: str) -> yaml.Node:
    """Parse YAML into nodes with lines.

    Raises:
        DocumentError: not YAML, empty, too large, or nested too deeply.
    """
    notes = Notes(file)
    if len(text) > DOCUMENT_BYTES_MAX:
        raise DocumentError([Problem(file, 1, "", f"expected at most {DOCUMENT_BYTES_MAX} bytes, found {len(text)}")])
    try:
        root = _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise DocumentError([Problem(file, line, "", f"expected YAML: {error.problem or error.context}{_hint(error)}")]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DocumentError([Problem(file, 1, "", f"expected YAML: {error}")]) from None
    if root is None:
        notes.add(None, "", "expected `floods:` and a list, found an empty file")
        notes.check()
    assert root is not None
    return root


def _hint(error: yaml.MarkedYAMLError) -> str:
    """Advice for common mistakes with cron, SQL and editors."""
    problem, context = error.problem or "", error.context or ""
    if r"'\t'" in problem:
        return " (indent with spaces, not with tabs)"
    if "cannot start any token" in problem or "mapping values" in problem or context.endswith((" alias", " anchor")):
        return " (is it a text? Put it in quotes)"
    return ""


class _Composer(yaml.SafeLoader):
    """Composes nodes to a bounded depth, without aliases, whose expansion could exceed any memory, and without tags, which could
    name code."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not used here", event.start_mark)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, "tags are not used here", event.start_mark)
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {DEPTH_MAX} levels", event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _compose(text: str) -> yaml.Node | None:
    loader = _Composer(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


class Section:
    """One mapping of the document. Each field is read once; `close` notes the fields that were not read."""

    def __init__(self, node: yaml.Node, path: str, notes: Notes) -> None:
        self.node = node
        self.path = path
        self.notes = notes
        self._fields: dict[str, yaml.Node] = {}
        self._known: list[str] = []
        if not isinstance(node, yaml.MappingNode):
            notes.add(node, path, f"expected a mapping of fields, found {describe(node)}")
            return
        for name_node, value in node.value:
            name = str(name_node.value)
            if name in self._fields:
                notes.add(name_node, self.at(name), "expected once, found twice")
            self._fields[name] = value

    def at(self, name: str) -> str:
        """The path of a field, for messages."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """True when the field is given. ``null`` counts as not given."""
        return self.peek(name) is not None

    def take(self, name: str, expected: str | None = None) -> yaml.Node | None:
        """A field's node; None when it is not given, which is a problem if `expected` is set."""
        self._known.append(name)
        node = self.peek(name)
        if node is None and expected is not None and isinstance(self.node, yaml.MappingNode):
            self.notes.add(self._fields.get(name, self.node), self.at(name), f"expected {expected}, found nothing")
        return node

    def text(self, name: str, expected: str | None = None) -> str | None:
        """A non-empty text."""
        node = self.take(name, expected)
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            self.wrong(name, expected or "a text")
            return None
        return str(node.value)

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of several words."""
        text = self.text(name)
        if text is None or text in choices:
            return text or default
        self.wrong(name, " or ".join(f"`{choice}`" for choice in choices))
        return default

    def integer(self, name: str, low: int, high: int, default: int | None) -> int | None:
        """A whole number between two others."""
        text = self.text(name)
        if text is None:
            return default
        if re.fullmatch(r"[+-]?\d{1,18}", text) and low <= int(text) <= high:
            return int(text)
        self.wrong(name, f"a whole number between {low} and {high}")
        return default

    def size(self, name: str, default: int) -> int:
        """A number of bytes, such as ``64MiB``; at least 1."""
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)", text)
        if match and match[2] in _UNITS_BYTES and (size := int(float(match[1]) * _UNITS_BYTES[match[2]])) >= 1:
            return size
        self.wrong(name, "a size such as `64MiB`")
        return default

    def duration_ms(self, name: str, default: int, low: int = 0, high: int = 366 * _UNITS_MS["d"]) -> int:
        """A duration such as ``90s``, ``15m`` or ``2h``, in ms."""
        text = self.text(name)
        if text is None:
            return default
        found = duration_ms(text)
        if found is None:
            self.wrong(name, "a duration such as `90s`, `15m` or `2h`")
            return default
        if not low <= found <= high:
            self.wrong(name, f"a duration between {low / 1000:.12g} s and {high / 1000:.12g} s")
            return default
        return found

    def texts(self, name: str) -> dict[str, str]:
        """A mapping of texts."""
        node = self.take(name)
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode) or not all(isinstance(value, yaml.ScalarNode) for _, value in node.value):
            self.wrong(name, "a mapping of names to texts")
            return {}
        return {str(key.value): str(value.value) for key, value in node.value}

    def words(self, name: str) -> tuple[str, ...]:
        """A list of non-empty texts; one text alone is a list of one."""
        node = self.take(name)
        if node is None:
            return ()
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(item, yaml.ScalarNode) and item.value.strip() for item in items):
            self.wrong(name, "a list of texts")
            return ()
        return tuple(str(item.value) for item in items)

    def section(self, name: str, expected: str | None = None) -> Section | None:
        """A mapping inside this one."""
        node = self.take(name, expected)
        return None if node is None else Section(node, self.at(name), self.notes)

    def items(self, name: str, expected: str | None = None) -> list[tuple[str, yaml.Node]]:
        """The items of a list, each with its path."""
        node = self.take(name, expected)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.wrong(name, expected or "a list")
            return []
        return [(f"{self.at(name)}[{number}]", item) for number, item in enumerate(node.value)]

    def wrong(self, name: str, expected: str) -> None:
        """Note that a field has an unexpected value."""
        node = self._fields.get(name)
        self.notes.add(node or self.node, self.at(name), f"expected {expected}, found {describe(node)}")

    def close(self) -> None:
        """Note the unknown fields."""
        for name, node in self._fields.items():
            if name in self._known:
                continue
            near = get_close_matches(name, self._known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(sorted(set(self._known)))}"
            self.notes.add(node, self.at(name), f"expected no such field ({hint})")

    def peek(self, name: str) -> yaml.Node | None:
        node = self._fields.get(name)
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return None
        return node


def describe(node: yaml.Node | None) -> str:
    """The content of a node for a message, at most one line."""
    if node is None:
        return "nothing"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = " ".join(str(node.value).split())
    return f"`{text[:60]}...`" if len(text) > 60 else f"`{text}`"


def duration_ms(text: str) -> int | None:
    """``1h30m`` in milliseconds, or None for a text that is not a duration."""
    if not re.fullmatch(r"(\d{1,9}(ms|s|m|h|d))+", text):
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h|d)", text))


def moment(text: str, zone: str = "UTC") -> datetime | None:
    """A date or a time of ISO 8601, in UTC; without a zone of its own it is local in `zone`. None for any other text, and for a
    local time that the clock skips there."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is not None:
        return found.astimezone(UTC)
    place = ZoneInfo(zone)
    instant = found.replace(tzinfo=place).astimezone(UTC)
    return instant if instant.astimezone(place).replace(tzinfo=None) == found else None
