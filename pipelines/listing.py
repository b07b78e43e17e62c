"""The files that Spark reads from a path, listed without Spark: for checks, plans, sensors, and stand-ins of a bucket's objects.

`list_files` is the only place that lists a source. Its rules are Spark's (`spark_paths`), and a test compares it with Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.fs

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.spark_paths import (
    METADATA_LOG,
    bucket_of,
    directories,
    expanded,
    is_hidden,
    is_pattern,
    key_of,
    local_path,
    matcher,
)

fs: Any = pyarrow.fs
LISTING_OPTIONS = frozenset(("basepath", "recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter"))
"""Options of Spark's readers that change the files or the columns of the path, and not the rows; in lower case."""
SAID_MAX = 20
"""Directories that one message names; a person reads it."""
FILES_MAX = 100_000
"""More files at a path are a mistake in the path, more often than a source."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows. `columns`: directories of its path that are columns, such as ``day=2026-01-01``.

    Two files are compared only if the same call listed them: S3 servers round times in a listing in another way than in an answer
    about one object.
    """

    path: str
    size_bytes: int
    modified_ns: int
    columns: tuple[str, ...] = ()

    @property
    def modified(self) -> datetime:
        """The time of the last write."""
        return datetime.fromtimestamp(self.modified_ns / 1e9, UTC)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files at a path, by path. `is_there`: something exists at the path, perhaps without files.

    `left_out`: directories with files that Spark does not read, because their names are no columns.
    """

    files: tuple[DataFile, ...] = ()
    is_there: bool = False
    left_out: tuple[str, ...] = ()
    log: bool = False
    """True if the files are those in the log of a stream's sink."""

    @property
    def is_empty(self) -> bool:
        """True if the path is there and nothing at it has rows: an empty day."""
        return self.is_there and not self.files and not self.left_out

    def check_read(self, path: str) -> None:
        """Raise InvalidError when Spark reads none of the files, because of the directories in which they lie."""
        if self.left_out and not self.files:
            raise InvalidError(
                Reason.INVALID_CONFIG,
                "all files lie in directories below the path, which Spark does not read unless their names are columns (`day=1`): "
                'the option `recursiveFileLookup: "true"` reads them. '
                f"directories=`{', '.join(self.left_out[:SAID_MAX])}` path=`{path}`",
            )


def list_files(system: Any, base: str, options: Mapping[str, str]) -> Listing:
    """List the files of a source.

    Args:
        system: a file system of Arrow's. base: the path there, without a slash at its end; on S3 ``bucket/key``.
        options: the reader's, of which those that choose files count.

    Raises:
        InvalidError: a pattern that is none, directories that Spark refuses, too many files. OSError: the file system fails.
    """
    known = {name.lower(): value for name, value in options.items()}
    is_glob = is_pattern(base)
    roots = _globbed(system, base) if is_glob else [info for info in system.get_file_info([base]) if info.type in _THERE]
    if not roots:
        return Listing()
    if not is_glob and roots[0].type == fs.FileType.Directory and (logged := _logged(system, base)) is not None:
        return Listing(_chosen(logged, known), True, log=True)
    leaves = _leaves(system, roots)
    if known.get("recursivefilelookup", "false").lower() == "true":
        return Listing(_chosen([_file(info) for some in leaves.values() for info in some], known), True)
    paths = {root.path: root for root in roots}
    bases = {path if info.type == fs.FileType.Directory else _parent(path) for path, info in paths.items()}
    if "basepath" in known:
        bases = {_inside(known["basepath"])}
    if system.type_name == "local":
        _check_names(file for files in leaves.values() for file in files)
    read = directories(leaves, bases, paths)
    found = [_file(info, columns) for leaf, columns in read.columns.items() for info in leaves.get(leaf, ())]
    if not read.by_column:
        lone = {file.path: file for files in leaves.values() for file in files if file.path in paths}
        found = list({file.path: file for file in (*found, *map(_file, lone.values()))}.values())
    seen = {file.path for file in found}
    left_out = sorted(leaf for leaf, files in leaves.items() if any(file.size and file.path not in seen for file in files))
    return Listing(_chosen(found, known), True, tuple(left_out))


def _check_names(files: Iterable[Any]) -> None:
    """Raise InvalidError for a local file that Spark cannot open: the name of its checksum would be no path of Hadoop's."""
    for info in files:
        if ":" in info.base_name and info.size:
            raise InvalidError(
                Reason.INVALID_REQUEST, f"Spark opens no local file with a colon in its name: rename it. file=`{info.path}`"
            )


_THERE = (fs.FileType.File, fs.FileType.Directory)


def _leaves(system: Any, roots: Sequence[Any]) -> dict[str, list[Any]]:
    """The files below the roots by their directories, without hidden ones."""
    found: dict[str, dict[str, Any]] = {}
    count = 0
    for root in roots:
        if root.type == fs.FileType.File:
            inside = [root]
            skip = len(_parent(root.path))
        else:
            inside = system.get_file_info(fs.FileSelector(root.path, recursive=True, allow_not_found=True))
            skip = len(root.path)
        for info in inside:
            names = str(info.path)[skip:].strip("/").split("/")
            if info.type != fs.FileType.File or any(map(is_hidden, names[:-1])):
                continue
            if not is_hidden(names[-1]):
                found.setdefault(_parent(info.path), {})[info.path] = info
                count += 1
        if count > FILES_MAX:
            raise InvalidError(Reason.INVALID_CONFIG, f"the source has too many files. files=`{count}` max=`{FILES_MAX}`")
    return {leaf: list(files.values()) for leaf, files in found.items()}


def _globbed(system: Any, pattern: str) -> list[Any]:
    """What matches a pattern, part by part: `*` does not match a slash, and matches hidden names, as in Hadoop."""
    found: dict[str, Any] = {}
    for one in expanded(pattern):
        parts = one.split("/")
        _check_colons(parts)
        fixed = next((place for place, part in enumerate(parts) if is_pattern(part)), len(parts))
        at = ["/".join(parts[:fixed])]
        for part in parts[fixed:]:
            if not is_pattern(part):
                at = [f"{directory}/{part}" for directory in at]
                continue
            name = matcher(part)
            children = [child for directory in at for child in _children(system, directory)]
            # Above its last part a pattern passes files over.
            _check_colons(info.base_name for info in children if part is parts[-1] or info.type == fs.FileType.Directory)
            at = [child.path for child in children if name.fullmatch(child.base_name) is not None]
        there = {info.path: info for info in system.get_file_info(at) if info.type in _THERE}
        if twice := sorted(found.keys() & there.keys()):
            raise InvalidError(
                Reason.INVALID_REQUEST, f"the pattern names a path twice, and Spark would read its rows twice. path=`{twice[0]}`"
            )
        found |= there
    return [found[path] for path in sorted(found)]


def _check_colons(names: Iterable[str]) -> None:
    """Raise InvalidError for a name that Hadoop takes for a URL: it refuses a pattern with such a name, and one that meets such a
    name, also where it does not match."""
    for name in names:
        if ":" in name:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                "Spark reads no pattern that has a colon in it, or meets a name with a colon: give the paths without a pattern, or "
                f"rename. name=`{name}`",
            )


def _children(system: Any, directory: str) -> list[Any]:
    (info,) = system.get_file_info([directory or "/"])
    return [] if info.type != fs.FileType.Directory else list(system.get_file_info(fs.FileSelector(directory or "/")))


def _logged(system: Any, base: str) -> list[DataFile] | None:
    """The files that a stream's sink has committed below a directory; None without its log."""
    directory = f"{base}/{METADATA_LOG}"
    logs = {info.base_name: info for info in _children(system, directory)}
    if not logs and system.get_file_info([directory])[0].type != fs.FileType.Directory:
        return None
    numbers = {int(name.partition(".")[0]): name for name in logs if name.removesuffix(".compact").isdecimal()}
    compact = max((number for number, name in numbers.items() if name.endswith(".compact")), default=-1)
    found: dict[str, DataFile] = {}
    for number in sorted(number for number in numbers if number >= compact):
        for entry in _entries(system, logs[numbers[number]].path):
            path = _inside(entry["path"])
            if entry["action"] == "delete":
                found.pop(path, None)
            elif not entry["isDir"]:
                found[path] = DataFile(path, int(entry["size"]), int(entry["modificationTime"]) * 1_000_000)
    return list(found.values())


def _entries(system: Any, path: str) -> Iterator[dict[str, Any]]:
    with system.open_input_stream(path) as file:
        lines = file.read().decode().splitlines()
    try:
        yield from map(json.loads, lines[1:])  # the first line is the version
    except ValueError as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"the log of a stream's sink cannot be read: {error}. file=`{path}`") from error


def _chosen(files: Sequence[DataFile], options: Mapping[str, str]) -> tuple[DataFile, ...]:
    """The files with content that the reader's options choose, by path."""
    name = matcher(options["pathglobfilter"]) if "pathglobfilter" in options else None
    zone = options.get("timezone", "UTC")
    after, before = (_limit_ns(options.get(option), option, zone) for option in ("modifiedafter", "modifiedbefore"))
    return tuple(
        sorted(
            (
                file for file in files
                if file.size_bytes
                and (name is None or name.fullmatch(file.path.rpartition("/")[2]) is not None)
                and (after is None or file.modified_ns > after)
                and (before is None or file.modified_ns < before)
            ),
            key=lambda info: info.path,
        )
    )  # fmt: skip


def _limit_ns(text: str | None, option: str, zone: str) -> int | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return int(found.replace(tzinfo=found.tzinfo or ZoneInfo(zone)).timestamp()) * 10**9
    except (ValueError, KeyError) as error:
        raise InvalidError(Reason.INVALID_CONFIG, f"expected a time such as 2026-01-31T00:00:00. {option}=`{text}`") from error


def _inside(path: str) -> str:
    """A path as its file system has it, without a scheme."""
    local = local_path(path)
    if local is not None:
        return local
    bucket = bucket_of(path)
    return f"{bucket}/{key_of(path)}".rstrip("/") if bucket else path.partition("://")[2]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _file(info: Any, columns: tuple[str, ...] = ()) -> DataFile:
    return DataFile(str(info.path), int(info.size or 0), int(info.mtime_ns or 0), columns)
