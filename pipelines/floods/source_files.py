"""The files of a flood's source, listed without Spark by the rules of `headgate.pipelines.listing`; with messages for people."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs

from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.columns.files import access_by_environment, place_of
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import SAID_MAX
from headgate.pipelines.floods.source_columns import nearest
from headgate.pipelines.iceberg import read_table
from headgate.pipelines.iceberg_columns import Reading
from headgate.pipelines.listing import FILES_MAX, DataFile, Listing, list_files
from headgate.pipelines.spark_paths import scheme_of


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source as they were listed. `path`: for messages. `files`: empty for an empty day, which is no mistake.

    `left_out`: directories with files that Spark does not read.
    """

    system: Any
    path: str
    files: tuple[DataFile, ...]
    left_out: tuple[str, ...] = ()
    named: tuple[str, ...] | None = None
    """The data files of a table; None for a path."""
    columns: Any = None
    """The columns of a table, `pa.Schema`; None for a path, whose files have them."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """How each file of a table is read, by its path."""
    base: str = ""
    options: tuple[tuple[str, str], ...] = ()

    def check_unchanged(self) -> None:
        """List again. Raises RetryError when a file was written or removed meanwhile, or the files cannot be listed."""
        # The same call as before: a listing of S3 and a look at one object may tell other times of it.
        try:
            now = (
                list_files(self.system, self.base, dict(self.options)).files
                if self.named is None
                else _stated(self.system, self.named)
            )
        except OSError as error:
            raise refused(error, self.path) from error
        before, after = ({info.path: info for info in some} for some in (self.files, now))
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        if changed:
            sizes = [some[changed[0]].size_bytes if changed[0] in some else None for some in (before, after)]
            raise RetryError(
                Reason.NOT_FOUND,
                "the source changed while it was planned: plan again when its files are complete. "
                f"file=`{changed[0]}` size=`{sizes[0]}` now=`{sizes[1]}`",
            )


def find_files(flood: Flood, path: str) -> SourceFiles:
    """The files at one path of a flood's source.

    Raises:
        InvalidError: nothing exists at the path, Spark refuses its directories, or reads none of the files there. FatalError: no
            credentials, or not allowed. RetryError: the file system does not answer.
    """
    if flood.source.is_table:
        return _of_table(flood, path)
    options = flood.source.options
    try:
        files, base, shown = _place(path)
        found: Listing = list_files(files, base, options)
        if not found.is_there:
            text = f"the source is not there{_beside(files, base) or '.'} flood=`{flood.name}` path=`{shown}`"
            if not scheme_of(path) and not os.path.isabs(path):
                text += f" source=`{path}` (a relative path begins in the directory where the command or Dagster was started)"
            raise InvalidError(Reason.NOT_FOUND, text)
    except ValueError as error:
        raise InvalidError(Reason.INVALID_CONFIG, f"the source's path is not one: {short(error)}. path=`{path}`") from error
    except OSError as error:
        raise refused(error, path) from error
    found.check_read(shown)
    return SourceFiles(files, shown, found.files, found.left_out, base=base, options=tuple(options.items()))


def _place(path: str) -> tuple[Any, str, str]:
    """The file system of a path, the path there, and the path for messages. Raises ValueError, OSError."""
    if (place := place_of(path, access_by_environment)) is not None:
        files, base, access = place
        # Messages have the absolute path: the working directory of Dagster's processes is not the user's.
        return files, base, base if access is None else path
    found, base = pafs.FileSystem.from_uri(path)
    return found, base.rstrip("/"), path


def _of_table(flood: Flood, source: str) -> SourceFiles:
    """The data files of a table, under the name of its snapshot."""
    snapshot = read_table(source, flood.source.options)
    if not snapshot.files:
        return SourceFiles(pafs.LocalFileSystem(), snapshot.name, (), named=())
    urls = [file.path.replace("s3a://", "s3://", 1) for file in snapshot.files]
    try:
        remote = "://" in urls[0]
        # Of the bucket alone: the rest of a location is not encoded, as that of a URL would be.
        files: Any = pafs.FileSystem.from_uri("/".join(urls[0].split("/", 3)[:3]))[0] if remote else pafs.LocalFileSystem()
        paths = tuple(url.partition("://")[2] for url in urls) if remote else tuple(urls)
        found = _stated(files, paths)
    except OSError as error:
        raise refused(error, snapshot.name) from error
    if missing := sorted(set(paths) - {info.path for info in found}):
        raise InvalidError(
            Reason.NOT_FOUND,
            f"data files of the table are not there. table=`{snapshot.name}` file=`{missing[0]}` files=`{len(missing)}`",
        )
    readings = {path: file.reading for path, file in zip(paths, snapshot.files, strict=True)}
    return SourceFiles(files, snapshot.name, found, named=paths, columns=snapshot.columns, readings=readings)


def _stated(files: Any, paths: tuple[str, ...]) -> tuple[DataFile, ...]:
    """Those of these files that exist."""
    found = files.get_file_info(list(paths))
    return tuple(
        DataFile(str(info.path), int(info.size or 0), int(info.mtime_ns or 0)) for info in found if info.type == pafs.FileType.File
    )


def _beside(files: Any, base: str) -> str:
    """A hint at what stands beside a path that does not exist: files of other days, or a name like its own."""
    parent, name = os.path.split(base)
    if not parent or files.get_file_info([parent])[0].type != pafs.FileType.Directory:
        return ""
    names = [info.base_name for info in files.get_file_info(pafs.FileSelector(parent))[:FILES_MAX]]
    if any(char.isdigit() for char in name) and any(_shape(other) == _shape(name) for other in names):
        return (
            ", but files of other times are beside it: leave this one out if it has no rows, or make an empty directory of its "
            "name; load it later if its files are still to come."
        )
    return nearest(base, names)


def _shape(name: str) -> str:
    """A name with each digit as 0."""
    return re.sub(r"\d", "0", name)


_DAMAGED = ("deserializ", "decompress", "corrupt", "unexpected end of stream")
"""Words of Arrow about a file whose bytes are no Parquet: another attempt finds the same."""


def short(error: Exception) -> str:
    """An error's message on one line."""
    return " ".join(str(error).split())[:300]


def refused(error: OSError, path: str) -> HeadgateError:
    """The error for a source that its file system does not give out."""
    text = short(error)
    lowered = text.lower()
    if any(
        word in lowered for word in ("credential", "access_denied", "access denied", "forbidden", "permission", "no response body")
    ):
        return FatalError(
            Reason.STORE_MISCONFIGURED, f"the source may not be read: are there credentials for it? {text} path=`{path}`"
        )
    if isinstance(error, FileNotFoundError) or "no_such_bucket" in lowered:
        return InvalidError(Reason.NOT_FOUND, f"the source is not there. path=`{path}`")
    if any(word in lowered for word in _DAMAGED):
        return InvalidError(Reason.INVALID_CONFIG, f"a file of the source is damaged: {text.rstrip('.')}. path=`{path}`")
    return RetryError(Reason.STORE_UNAVAILABLE, f"the source cannot be read now: {text} path=`{path}`")


def unread_note(found: SourceFiles) -> str | None:
    """A note about directories that Spark does not read; None without any."""
    if not found.left_out:
        return None
    return (
        "files are left out, because Spark reads no directories below a path unless their names are columns (`day=1`), and no "
        f'files beside such columns: the option `recursiveFileLookup: "true"` reads all. '
        f"directories=`{', '.join(found.left_out[:SAID_MAX])}` count=`{len(found.left_out)}`"
    )
