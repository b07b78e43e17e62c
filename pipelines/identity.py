"""The identity of a flood: its id, if it has no name of its own, and the digests of its definition, which its gate keeps. Pure.

A source has one identity under all its spellings: `s3://lake/day` and `s3a://lake/day/`, `/dir` and `file:///dir`, with and without
an option that says what the reader does anyway. Earlier releases kept digests of the texts as they were written: their floods are
found under these, too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from headgate.pipelines.spark_paths import S3_SCHEMES, one_spelling, scheme_of, spellings

FILE_FORMATS = frozenset({"parquet", "csv", "json", "orc", "text", "avro", "xml", "binaryfile", "delta"})
"""Formats whose source is a path. A source of another format may be the name of a table."""
_SECRET_OPTION = re.compile(r"secret|password|token|access[._]?key", re.IGNORECASE)
"""Spark options that hold secrets (`spark.redaction.regex`). They change with time and do not identify the source."""
_SYNONYMS = {("csv", "delimiter"): "sep", ("csv", "charset"): "encoding", ("json", "charset"): "encoding"}
_EVERYWHERE = {"recursiveFileLookup": "false", "mergeSchema": "false"}
_LINES = {"multiLine": "false", "mode": "permissive", "locale": "en-us", "samplingRatio": "1.0"}
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "csv": {
        **_LINES, "header": "false", "sep": ",", "inferSchema": "false", "quote": '"', "escape": "\\", "encoding": "utf-8",
        "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false", "enforceSchema": "true", "nullValue": "",
        "preferDate": "true",
    },
    "json": {
        **_LINES, "primitivesAsString": "false", "prefersDecimal": "false", "allowComments": "false",
        "allowUnquotedFieldNames": "false", "allowSingleQuotes": "true", "allowNumericLeadingZeros": "false",
        "allowBackslashEscapingAnyCharacter": "false", "dropFieldIfAllNull": "false",
    },
    "text": {"wholetext": "false"},
}  # fmt: skip
"""What Spark's readers do without an option, by format: such an option changes nothing."""
_NAMES = (
    "basePath", "columnNameOfCorruptRecord", "comment", "dateFormat", "emptyValue", "lineSep", "modifiedAfter", "modifiedBefore",
    "pathGlobFilter", "timeZone", "timestampFormat", "timestampNTZFormat",
)  # fmt: skip
"""Other options, as people write them: Spark ignores the case of their names."""
_ANY_CASE = frozenset(("true", "false", "permissive", "utf-8", "en-us"))


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts of a flood's definition that decide its records and their place, without the topic.

    `parts`: the value of each. `former`: other values of some parts under which earlier releases know the same flood.
    """

    topic: str
    parts: Mapping[str, object]
    former: Mapping[str, tuple[object, ...]]

    @property
    def id(self) -> str:
        """The id of a flood that has no other."""
        return self._id(self.parts)

    def former_ids(self) -> Iterator[str]:
        """The ids that earlier releases gave to this flood, without its own."""
        seen = {self.id}
        names = list(self.former)
        for values in product(*((self.parts[name], *self.former[name]) for name in names)):
            found = self._id({**self.parts, **dict(zip(names, values, strict=True))})
            if found not in seen:
                seen.add(found)
                yield found

    def definition(self) -> str:
        """A digest of each part, which a gate keeps. Digests, because SQL is long and a URL may hold a password."""
        return " ".join(f"{name}={_digest(part, 12)}" for name, part in self.parts.items())

    def digests(self) -> dict[str, frozenset[str]]:
        """The digests of each part, with those of earlier releases."""
        return {
            name: frozenset(_digest(one, 12) for one in (part, *self.former.get(name, ()))) for name, part in self.parts.items()
        }

    def differs_from(self, theirs: Mapping[str, str]) -> list[str]:
        """The names of the parts in which a gate's definition (`parts_of`) is another one."""
        ours = self.digests()
        return sorted(name for name in ours.keys() | theirs.keys() if theirs.get(name) not in ours.get(name, ()))

    def _id(self, parts: Mapping[str, object]) -> str:
        return f"flood-{_digest([self.topic, *parts.values()], 16)}"


def parts_of(definition: str) -> dict[str, str]:
    """A gate's definition by its parts."""
    return dict(part.split("=", 1) for part in definition.split() if "=" in part)


def identity(topic: str, source: object, format: str, options: Mapping[str, str], **others: object) -> Identity:
    """The identity of a flood.

    Args:
        source: a path, a name or a query; a DataFrame counts only as "a DataFrame".
        others: the other parts, as plain values.
    """
    kind = format.lower() if format.lower() in (*FILE_FORMATS, "iceberg") else format
    given = sorted([name, value] for name, value in options.items() if _SECRET_OPTION.search(name) is None)
    parts: dict[str, object] = {"source": None, "format": kind, "options": _plain(kind, given), **others}
    former: dict[str, tuple[object, ...]] = {"format": (format,), "options": (given,)}
    if isinstance(source, str):
        is_path = kind in FILE_FORMATS or (kind == "iceberg" and scheme_of(source) in (*S3_SCHEMES, "file"))
        parts["source"] = one_spelling(source) if is_path else source
        former["source"] = tuple(spellings(source)) if is_path else ()
    return Identity(topic, parts, former)


def _plain(format: str, options: list[list[str]]) -> list[list[str]]:
    """The options without those that change nothing, under one name each."""
    if format not in FILE_FORMATS:
        return options
    defaults = {**_EVERYWHERE, **_DEFAULTS.get(format, {})}
    written = {name.lower(): name for name in (*defaults, *_NAMES)}
    found: dict[str, str] = {}
    for name, value in options:
        lower = _SYNONYMS.get((format, name.lower()), name.lower())
        option = written.get(lower, lower)
        plain = value.lower() if option in defaults and value.lower() in _ANY_CASE else value
        if plain != defaults.get(option):
            found[option] = plain
    return [[name, found[name]] for name in sorted(found)]


def _digest(what: Any, characters: int) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:characters]
