"""Sources on S3 without S3A: Spark sees local files that stand in for the objects of a bucket, and tasks read the objects.

A stand-in has the path, the size and the time of its object, and no content, except for what Spark reads to learn the columns. So
Spark itself chooses the files, reads the columns in their paths and resolves the flood's expressions, as it would do on the bucket.
No row is ever read from a stand-in: rows that need Spark need the package of S3A.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.files import Access, access_of, footer_of, local_path, opened, place_of, refused, system
from headgate.pipelines.identity import FILE_FORMATS
from headgate.pipelines.listing import DataFile, Listing, list_files
from headgate.pipelines.session import is_local
from headgate.pipelines.spark_paths import bucket_of, key_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 16
"""Objects that are read at the same time."""
HEAD_BYTES = 64 << 10
"""The beginning of each text, in which Spark finds the names of columns."""
COPIED_BYTES_MAX = 256 << 20
"""A source of text whose types Spark finds by reading all of it is copied up to this size."""
_FORMATS = frozenset(("parquet", "csv", "json"))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Bucket:
    """A bucket that stands in a directory. `root`: the directory that stands for all buckets."""

    name: str
    root: str
    access: Access

    def object_of(self, path: str) -> str:
        """The URL of the object that a local path stands for."""
        return f"s3://{path.removeprefix(f'{self.root}/')}"

    def in_words(self, text: str) -> str:
        """A text with the names of objects in place of those of the files that stand for them."""
        return re.sub(rf"(?:file:/*)?{re.escape(self.root)}/", "s3://", text)


def hadoop_settings(spark: SparkSession) -> Any:
    """The settings of Hadoop in a session: an object of Java's, which `get`, `set` and `unset` change."""
    context: Any = spark.sparkContext
    return context._jsc.hadoopConfiguration()


def access(spark: SparkSession, bucket: str) -> Access:
    """The access to a bucket with the settings of this session. Raises UnlikeError when only S3A has it."""
    settings = hadoop_settings(spark)

    def setting(name: str) -> str:
        if name.endswith((".key", ".token")):
            # Also from Hadoop's stores of credentials.
            found = settings.getPassword(name)
            return "" if found is None else "".join(found)
        return str(settings.get(name) or "")

    found = access_of(bucket, setting, dict(os.environ))
    if found is None:
        raise UnlikeError("the settings of S3A name a source of credentials, or an encryption, of its own")
    return found


def stand_in(spark: SparkSession, source: str, format: str, options: Mapping[str, str]) -> tuple[str, Bucket]:
    """The local path that stands for a source on S3, and its bucket. The files stay until the bucket is collected.

    Raises:
        UnlikeError: only S3A can show this source. InvalidError: there is no such bucket or file. FatalError: no credentials, or
        not allowed. RetryError: S3 does not answer.
    """
    kind = format.lower()
    known = {name.lower(): value for name, value in options.items()}
    if kind not in _FORMATS or known.keys() & {"path", "paths", "basepath", "mergeschema"}:
        raise UnlikeError(f"Spark lists such a source on S3 itself. format=`{format}`")
    if not is_local(str(spark.sparkContext.master)):
        raise UnlikeError("executors elsewhere do not see the driver's files")
    name = bucket_of(source)
    key = key_of(source)
    try:
        made = Bucket(name, tempfile.mkdtemp(prefix="headgate-s3-"), access(spark, name))
        weakref.finalize(made, shutil.rmtree, made.root, ignore_errors=True)
        found = _listed(made, key, options)
        if not found.files:
            raise InvalidError(Reason.NOT_FOUND, f"source cannot be read: there is nothing at this path. source=`{source}`")
        if found.log:
            raise UnlikeError("a stream's sink has a log of the files, with their places in the bucket")
        objects = list(found.files)
        whole = kind == "json" or known.get("inferschema", "false").lower() == "true"
        total = sum(object_.size_bytes for object_ in objects)
        if whole and total > COPIED_BYTES_MAX:
            raise UnlikeError(
                f"Spark finds the types of text by reading all of it, here {total >> 20} MiB, and the driver copies "
                f"{COPIED_BYTES_MAX >> 20} MiB at most"
            )
        _make(made, objects)
        local = os.path.join(made.root, name, key)
        if kind == "parquet":
            # Spark takes the schema of the first file.
            listed = spark.read.format("binaryFile").options(**dict(options)).load(local).inputFiles()
            first = min(map(local_path, listed), default=None)
            objects = [object_ for object_ in objects if os.path.join(made.root, object_.path) == first]
        with ThreadPoolExecutor(THREADS, "headgate-s3") as pool:
            list(pool.map(lambda data_file: _fill(made, data_file, kind, whole=whole), objects))
    except (OSError, ValueError) as error:
        raise refused(error, source) from error
    return local, made


def stand_in_files(spark: SparkSession, urls: Sequence[str]) -> tuple[list[str], Bucket]:
    """The local paths that stand for these objects, and their bucket. Their content is not needed: the reader has a schema.

    Raises:
        UnlikeError: only S3A can show them. Others as `stand_in`.
    """
    if not is_local(str(spark.sparkContext.master)):
        raise UnlikeError("executors elsewhere do not see the driver's files")
    keys = [url.partition("://")[2] for url in urls]
    names = {key.partition("/")[0] for key in keys}
    if len(names) > 1:
        raise UnlikeError(f"the files are in several buckets: {', '.join(sorted(names))}")
    (name,) = names
    try:
        made = Bucket(name, tempfile.mkdtemp(prefix="headgate-s3-"), access(spark, name))
        weakref.finalize(made, shutil.rmtree, made.root, ignore_errors=True)
        infos = system(made.access).get_file_info(keys)
        _make(made, [DataFile(str(info.path), int(info.size or 0), int(info.mtime_ns or 0)) for info in infos])
    except (OSError, ValueError) as error:
        raise refused(error, urls[0]) from error
    return [os.path.join(made.root, key) for key in keys], made


def _listed(bucket: Bucket, key: str, options: Mapping[str, str]) -> Listing:
    """The files at a path of a bucket. Raises as `list_files`; UnlikeError when there are too many of them for stand-ins."""
    try:
        return list_files(system(bucket.access), f"{bucket.name}/{key}".rstrip("/"), options)
    except InvalidError as error:
        if error.reason is not Reason.INVALID_CONFIG:
            raise
        raise UnlikeError(error.message) from error


def has_no_rows(spark: SparkSession, source: str, format: str, options: Mapping[str, str]) -> bool:
    """True if a path is there and no file at it has content: an empty day, of which Spark cannot tell the columns.

    Raises InvalidError when Spark reads none of the files there, because of the directories in which they lie.
    """
    if format.lower() not in FILE_FORMATS:
        return False
    try:
        place = place_of(source, partial(access, spark))
        if place is None:
            return False
        found = list_files(*place[:2], options)
    except (UnlikeError, OSError, ValueError):
        return False
    found.check_read(source)
    return found.is_empty


def _make(bucket: Bucket, objects: list[DataFile]) -> None:
    for object_ in objects:
        path = os.path.join(bucket.root, object_.path)
        if os.path.normpath(path) != path:
            raise UnlikeError(f"an object's key is no path of a file. key=`{object_.path}`")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.truncate(object_.size_bytes)
        except OSError as error:
            raise UnlikeError(f"an object's key is no path of a file: {error.strerror} key=`{object_.path}`") from error
        os.utime(path, ns=(object_.modified_ns, object_.modified_ns))


def _fill(bucket: Bucket, data_file: DataFile, kind: str, *, whole: bool) -> None:
    """Copy the part of an object that Spark reads to learn the columns."""
    handle, state = opened(data_file.path, bucket.access)
    with handle, open(os.path.join(bucket.root, data_file.path), "r+b") as file:
        begin, size = 0, state.size_bytes if whole else min(HEAD_BYTES, state.size_bytes)
        if kind == "parquet":
            try:
                size = len(footer_of(handle, state.size_bytes))
            except InvalidError:
                return  # not of this format, as Spark finds out
            begin = state.size_bytes - size
        file.seek(begin)
        file.write(handle.read_at(size, begin))
        file.truncate(state.size_bytes)
