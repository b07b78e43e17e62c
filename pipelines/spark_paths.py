"""How Spark reads the path of a source: patterns, names that it hides, columns in directories, and spellings of one place. Pure.

The rules are those of Hadoop's `Globber` and of Spark's `InMemoryFileIndex` and `PartitioningUtils`. No part of a path is decoded:
`%41` and `#` are characters of a name.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from urllib.parse import unquote

from headgate.broker.runtime.errors import InvalidError, Reason

S3_SCHEMES = ("s3", "s3a", "s3n")
METADATA_LOG = "_spark_metadata"
"""The directory in which a stream's file sink keeps the list of its files."""
_GLOB = frozenset("{}[]*?\\")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


# -- spellings


def scheme_of(path: str) -> str:
    """The scheme of a path in lower case; empty without one."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else ""


def local_path(path: str) -> str | None:
    """The absolute local path that a path without scheme, or with ``file:``, names; None for a path elsewhere."""
    scheme = scheme_of(path)
    if scheme not in ("", "file"):
        return None
    rest = path[5:] if scheme else path
    found = os.path.abspath(rest) if rest else rest
    # POSIX leaves the meaning of two slashes in front to the system; Hadoop makes one of them.
    return f"/{found.lstrip('/')}" if found.startswith("//") else found


def bucket_of(path: str) -> str:
    """The bucket of a path on S3; empty for another path."""
    return path.partition("://")[2].partition("/")[0] if scheme_of(path) in S3_SCHEMES else ""


def key_of(path: str) -> str:
    """The key of a path on S3, without slashes at its end and double ones."""
    return _normal(path.partition("://")[2].partition("/")[2])


def one_spelling(path: str) -> str:
    """The same text for all spellings of one place: of a local path, ``/dir``; of one on S3, ``s3://bucket/key``."""
    if (local := local_path(path)) is not None:
        return local
    if bucket := bucket_of(path):
        return f"s3://{bucket}/{key_of(path)}".rstrip("/")
    scheme, separator, rest = path.partition("://")
    host, slash, key = rest.partition("/")
    return f"{scheme.lower()}{separator}{host}{slash}{_normal(key)}" if separator else path


def spellings(path: str) -> Iterator[str]:
    """The texts that name the place of a path, as people write them."""
    spelling = one_spelling(path)
    fronts: tuple[str, ...] = ("", "file://", "file:") if local_path(path) is not None else ("",)
    rest = spelling
    if bucket_of(path):
        fronts, rest = tuple(f"{scheme}://" for scheme in S3_SCHEMES), spelling.partition("://")[2]
    yield path
    for front, end in product(fronts, ("", "/")):
        yield f"{front}{rest}{end}"


def _normal(key: str) -> str:
    return posixpath.normpath(f"/{key}").lstrip("/")


# -- names


def is_hidden(name: str) -> bool:
    """True for a file or directory that Spark does not list below a path. A path that names it is read all the same."""
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def is_pattern(text: str) -> bool:
    """True if Hadoop takes a path, or a part of it, for a pattern."""
    return not _GLOB.isdisjoint(text)


def expanded(pattern: str) -> list[str]:
    """The patterns without braces across a slash: ``{a/b,c}`` is ``a/b`` or ``c``."""
    depth = begin = 0
    for place, character in enumerate(pattern):
        if character == "{" and not _escaped(pattern, place):
            begin, depth = (place, 1) if not depth else (begin, depth + 1)
        elif character == "}" and depth and not _escaped(pattern, place):
            depth -= 1
            if not depth and "/" in pattern[begin:place]:
                head, tail = pattern[:begin], pattern[place + 1 :]
                return [path for part in _alternatives(pattern[begin + 1 : place]) for path in expanded(f"{head}{part}{tail}")]
    return [pattern]


def matcher(pattern: str) -> re.Pattern[str]:
    """The expression that a name matches as it matches Hadoop's pattern. Raises InvalidError for brackets that do not close."""
    made: list[str] = []
    braces, in_set, characters = 0, False, iter(enumerate(pattern))
    for place, character in characters:
        if character == "\\":
            made.append(re.escape(next(characters, (0, ""))[1]))
        elif in_set:
            first = pattern[place - 1] == "["
            in_set = character != "]"
            made.append("^" if character in "!^" and first else character if character in "-]" else re.escape(character))
        elif character in "*?":
            made.append(".*" if character == "*" else ".")
        elif character == "[":
            in_set = True
            made.append("[")
        elif character in "{}" and (braces or character == "{"):
            braces += 1 if character == "{" else -1
            made.append("(?:" if character == "{" else ")")
        else:
            made.append("|" if character == "," and braces else re.escape(character))
    if braces or in_set:
        raise InvalidError(Reason.INVALID_REQUEST, f"a bracket of the path's pattern does not close. pattern=`{pattern}`")
    try:
        return re.compile("".join(made), re.DOTALL)
    except re.error as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"the path is no pattern: {error}. pattern=`{pattern}`") from error


def _alternatives(text: str) -> list[str]:
    found, depth = [""], 0
    for place, character in enumerate(text):
        if not _escaped(text, place):
            depth += {"{": 1, "}": -1}.get(character, 0)
            if character == "," and not depth:
                found.append("")
                continue
        found[-1] += character
    return found


def _escaped(text: str, place: int) -> bool:
    return (place - len(text[:place].rstrip("\\"))) % 2 == 1


# -- columns in directories


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories from which Spark reads, each with the directories below the source that are columns (``day=1``)."""

    columns: Mapping[str, tuple[str, ...]]
    by_column: bool


def directories(leaves: Iterable[str], bases: Collection[str], roots: Collection[str]) -> Directories:
    """The directories of a source that Spark reads: those with columns in their paths, or, without such columns, the paths
    themselves.

    Args:
        leaves: directories with files. bases: directories at which columns end. roots: the paths of the source.

    Raises:
        InvalidError: the directories have different columns, or columns at different depths: Spark refuses them, too.
    """
    found: dict[str, tuple[str, ...]] = {}
    starts: dict[str, str] = {}
    for leaf in sorted(leaves):
        parsed = _parsed(leaf, bases)
        if parsed is not None:
            found[leaf], starts[leaf] = parsed
    with_columns = {leaf: columns for leaf, columns in found.items() if columns}
    if not with_columns:
        return Directories(dict.fromkeys(roots, ()), False)
    if len(set(starts.values())) > 1:
        some = sorted(set(starts.values()))
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "Spark refuses a source whose columns in directories begin at different places, or that has other directories beside "
            f"them: name one directory, or set the option basePath. directories=`{', '.join(some[:3])}` count=`{len(some)}`",
        )
    names = {tuple(column_of(column).lower() for column in columns): leaf for leaf, columns in with_columns.items()}
    if len(names) > 1:
        some = sorted(names.values())
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"Spark refuses a source whose directories have different columns. directories=`{', '.join(some[:3])}`",
        )
    return Directories(with_columns, True)


def column_of(directory: str) -> str:
    """The name of the column of a directory such as ``day=1``."""
    return unquote(directory.partition("=")[0])


def _parsed(leaf: str, bases: Collection[str]) -> tuple[tuple[str, ...], str] | None:
    """The columns in a directory's path, and the directory below which they stand; None for one that Spark leaves out."""
    columns: list[str] = []
    at = leaf
    while True:
        parent, _, name = at.rpartition("/")
        if name.lower() == "_temporary":
            return None
        if at in bases:
            break
        if "=" in name:
            if name.startswith("=") or (name.endswith("=") and name.count("=") == 1):
                raise InvalidError(
                    Reason.INVALID_REQUEST, f"Spark refuses a directory with an empty column or value. directory=`{leaf}`"
                )
            columns.insert(0, name)
        elif columns:
            break
        if not parent:
            break
        at = parent
    return (tuple(columns), at) if columns else ((), leaf)
