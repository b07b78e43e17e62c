"""The division of a topic's pieces: files that Spark's own Parquet reader may read, and the rest for the data source.

Pure. A file is divided off only if its footer proves that Spark reads the same records from it as the data source does. Otherwise
`NotShared` says why, and the data source reads the file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from headgate.broker.client.gate_admin import FileRef
from headgate.broker.log.crc import crc32c
from headgate.broker.log.parquet import ExtentFile
from headgate.pipelines.reads import Piece
from headgate.pipelines.spark_parquet import Unit, has_julian_times, time_unit

STORED = ("timestamp", "key", "value", "headers")
"""The columns of a file that Spark reads. The others are computed."""

_CODECS = frozenset(("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"))
_ENCODINGS = frozenset(
    (
        "PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY",
        "DELTA_BYTE_ARRAY",
    )
)  # fmt: skip
"""Encodings that Spark's vectorized reader knows."""
_HEADER_PATHS = {"headers.list.element.key": "STRING", "headers.list.element.value": "NONE"}
"""The form in which Arrow and Spark write headers: path and logical type."""
_PATTERN = re.compile(r"[\\*?\[\]{}]")
"""Characters with which Spark takes a path for a pattern."""


class NotShared(Exception):
    """Spark's Parquet reader may not read the same records from a file as the data source."""


@dataclass(frozen=True, slots=True)
class NativeFile:
    """Rows [first_row, end_row) of a file that Spark reads at `url`."""

    url: str
    piece: Piece
    unit: Unit
    rows: int

    @property
    def base_offset(self) -> int:
        """Offset of the file's first row, which may be outside the piece."""
        assert self.piece.file is not None
        return self.piece.file.base_offset

    @property
    def first_row(self) -> int:
        return self.piece.start - self.base_offset

    @property
    def end_row(self) -> int:
        return self.piece.end - self.base_offset

    @property
    def is_whole(self) -> bool:
        return self.first_row == 0 and self.end_row == self.rows


def candidates(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces whose file Spark may read: those of files that appear once.

    Spark tells the rows of a file by its path, so a file at two places of a topic would be ambiguous.
    """
    files = [piece for piece in pieces if piece.file is not None]
    count = Counter(piece.file.path for piece in files if piece.file is not None)
    return [piece for piece in files if piece.file is not None and count[piece.file.path] == 1]


def store_of(store_url: str, s3a_endpoint: Callable[[str], str | None]) -> str:
    """The address at which Spark reads a store: ``file:/path`` or ``s3a://bucket/prefix``.

    Args:
        s3a_endpoint: the endpoint that the session's S3A has for a bucket, "" for AWS's own; None when the session has no S3A.

    Raises:
        NotShared: Spark cannot reach the store, or would look for it elsewhere.
    """
    parts = urlsplit(store_url)
    if parts.scheme == "s3":
        found = s3a_endpoint(parts.netloc)
        if found is None:
            raise NotShared("the session has no S3A: add the package org.apache.hadoop:hadoop-aws of Spark's Hadoop version")
        wanted = parse_qs(parts.query).get("endpoint", [""])[0]
        if _endpoint(wanted) != _endpoint(found):
            raise NotShared(f"the session's S3A has another endpoint. fs.s3a.endpoint=`{found}` store=`{store_url}`")
        return f"s3a://{parts.netloc}{parts.path.rstrip('/')}"
    if not store_url.startswith("/"):
        raise NotShared(f"spark cannot reach this store. store=`{store_url}`")
    return f"file:{store_url.rstrip('/')}"


def _endpoint(text: str) -> str:
    """An endpoint in a form that can be compared: without scheme for a host name; "" for AWS itself."""
    host = text.removeprefix("https://").rstrip("/")
    return "" if host.endswith("amazonaws.com") else host


def url_of(store: str, file: FileRef) -> str:
    """The address of a file for Spark. Raises NotShared when Spark would take the path for a pattern or for a hidden file."""
    url = f"{store}/{file.path}"
    if _PATTERN.search(url):
        raise NotShared("spark takes the path for a pattern")
    if file.path.rpartition("/")[2].startswith(("_", ".")):
        raise NotShared("spark takes the file for a hidden one")
    return url


def readable_url(store_url: str) -> str:
    """The address of a store for `open_readable`."""
    return store_url if "://" in store_url else f"file://{quote(store_url)}"


def unit_of(file: ExtentFile, reference: FileRef, columns: Collection[str]) -> Unit:
    """The unit of a file's times, if Spark reads these columns of the file as the data source does.

    Raises:
        NotShared: that is not proved.
    """
    if crc32c(file.footer) != reference.footer_crc32c or file.rows != reference.rows:
        raise NotShared("the file is not the one that was committed")
    names = [name.lower() for name in file.metadata.schema.to_arrow_schema().names]
    if len(set(names)) != len(names):
        raise NotShared("two columns differ only in case, and spark ignores the case")
    if has_julian_times(file.metadata.metadata):
        raise NotShared("times are of the Julian calendar")
    schema = file.metadata.schema
    leaves = {schema.column(index).path: schema.column(index) for index in range(len(schema))}
    unit = _unit(leaves["timestamp"])
    for name in ("key", "value"):
        if name in columns and not _is_bytes(leaves.get(name), ("NONE", "STRING")):
            raise NotShared(f"column `{name}` is neither binary nor text")
    if "headers" in columns and "headers" in names:
        found = {path: leaf for path, leaf in leaves.items() if path.split(".", 1)[0] == "headers"}
        shared = found.keys() == _HEADER_PATHS.keys() and all(
            _is_bytes(found[path], (kind,)) for path, kind in _HEADER_PATHS.items()
        )
        if not shared:
            raise NotShared("column `headers` has another form")
    wanted = [index for index in range(len(schema)) if schema.column(index).path.split(".", 1)[0] in {"timestamp", *columns}]
    for group in (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)):
        for chunk in (group.column(index) for index in wanted):
            if chunk.compression not in _CODECS or not _ENCODINGS.issuperset(chunk.encodings):
                raise NotShared(f"compression or encoding is unknown to spark. column=`{chunk.path_in_schema}`")
    return unit


def _unit(leaf: Any) -> Unit:
    kind = json.loads(leaf.logical_type.to_json())
    unit = time_unit(leaf.logical_type)
    if leaf.physical_type != "INT64" or kind.get("Type") != "Timestamp" or not kind.get("isAdjustedToUTC") or unit is None:
        raise NotShared("column `timestamp` is no UTC time in microseconds or milliseconds")
    return unit


def _is_bytes(leaf: Any, kinds: Sequence[str]) -> bool:
    return leaf is not None and leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type in kinds
