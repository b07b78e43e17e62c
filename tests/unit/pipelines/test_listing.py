"""The files that Spark reads from a path, by a table: what is below a directory, the path, the reader's options, and the files.

Each file holds its own path. The same table is given to our listing and, in one session, to Spark, which is the judge. A mismatch
means that a plan counts other rows than a flood loads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.fs as pafs
import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.listing import list_files
from headgate.pipelines.rows import WITHOUT_CHECKSUMS
from headgate.pipelines.spark_paths import column_of, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = "refused"
GONE = "gone"


class Case(NamedTuple):
    """`tree`: files; one with `:0` at its end is empty, one with a slash is a directory. `files`: those that Spark reads. `bucket`:
    they are objects, which have no files with checksums beside them."""

    name: str
    tree: str
    path: str
    files: str
    options: dict[str, str] = {}  # noqa: RUF012  never changed
    columns: str = ""
    bucket: bool = False


CASES = [
    Case("a directory", "d/a d/b", "d", "d/a d/b"),
    Case("hidden entries", "d/a d/_SUCCESS d/.a.crc d/_x/b d/.y/b d/_temporary/0/b d/c._COPYING_", "d", "d/a"),
    Case("summaries of Parquet", "d/a d/_metadata d/_common_metadata", "d", "d/a"),
    Case("a file without bytes", "d/a d/b:0", "d", "d/a"),
    Case("a hidden directory by its name", "_d/a", "_d", "_d/a"),
    Case("a hidden file by its name", "d/_a", "d/_a", ""),
    Case("one file", "d/a d/b", "d/a", "d/a"),
    Case("a slash at the end", "d/a", "d/", "d/a"),
    Case("two slashes", "d/s/a", "d//s", "d/s/a"),
    Case("a detour", "d/s/a", "d/t/../s", "d/s/a"),
    Case("nothing is escaped", "d ä#%41/a%20b?", "d ä#%41", "d ä#%41/a%20b?"),
    Case("not there", "d/a", "e", GONE),
    # An empty day.
    Case("an empty directory", "d/", "d", ""),
    Case("only the mark of success", "d/_SUCCESS", "d", ""),
    Case("only a file without bytes", "d/a:0", "d", ""),
    # Directories below.
    Case("a directory below", "d/a d/s/b", "d", "d/a"),
    Case("only a directory below", "d/s/a", "d", ""),
    Case("columns", "d/a=1/x d/a=2/b=3/y:0 d/_temporary/0/a=1/y d/.a=2/z", "d", REFUSED),
    Case("a column", "d/a=1/x d/a=2/y d/_temporary/0/a=1/y d/.a=2/z d/_SUCCESS", "d", "d/a=1/x d/a=2/y", columns="a"),
    Case("two columns", "d/a=1/b=2/x d/a=1/b=3/y", "d", "d/a=1/b=2/x d/a=1/b=3/y", columns="a b"),
    Case("a column that begins with _", "d/_b=1/x d/_b=2/_c=y", "d", "d/_b=1/x d/_b=2/_c=y", columns="_b"),
    Case("a column in two cases", "d/a=1/x d/A=2/y", "d", "d/a=1/x d/A=2/y", columns="a"),
    Case("an escaped column", "d/a%3Ab=1/x", "d", "d/a%3Ab=1/x", columns="a:b"),
    Case("a column without value", "d/a=__HIVE_DEFAULT_PARTITION__/x d/a=1/y", "d",
         "d/a=__HIVE_DEFAULT_PARTITION__/x d/a=1/y", columns="a"),
    Case("below a column", "d/a=1/x d/a=1/s/y d/a=1/_h/z", "d", "d/a=1/x d/a=1/s/y", columns="a"),
    Case("a column below a directory", "d/s/a=1/x", "d", "d/s/a=1/x", columns="a"),
    Case("a file beside columns", "d/a=1/x d/y", "d", "d/a=1/x", columns="a"),
    Case("a column below two directories", "d/s/a=1/x d/t/a=1/x", "d", REFUSED),
    Case("a directory beside columns", "d/a=1/x d/s/y", "d", REFUSED),
    Case("other columns", "d/a=1/x d/b=2/y", "d", REFUSED),
    Case("columns at other depths", "d/a=1/x d/a=1/b=2/y", "d", REFUSED),
    Case("a column without text", "d/a=/x", "d", REFUSED),
    Case("a column without name", "d/=1/x", "d", REFUSED),
    Case("the column in the path itself", "d/a=1/x d/a=2/y", "d/a=1", "d/a=1/x"),
    # Patterns.
    Case("braces", "d/eu/x d/us/y d/uk/z", "d/{eu,us}", "d/eu/x d/us/y"),
    Case("braces across a slash", "d/eu/1/x d/us/2/y d/uk/z", "d/{eu/1,us/2}", "d/eu/1/x d/us/2/y"),
    Case("braces in braces", "d/eu/x d/us/y d/uk/z", "d/{eu,u{s,k}}", "d/eu/x d/us/y d/uk/z"),
    Case("a set", "d/1/x d/2/y d/3/z", "d/[1-2]", "d/1/x d/2/y"),
    Case("all but a set", "d/1/x d/2/y d/3/z", "d/[^1]", "d/2/y d/3/z"),
    Case("all but a set, !", "d/1/x d/2/y d/3/z", "d/[!1]", "d/2/y d/3/z"),
    Case("one character", "d/1/x d/22/y", "d/?", "d/1/x"),
    Case("dots and signs", "d/a.b+(1)/x d/aXb+(1)/y", "d/a.b+(1)*", "d/a.b+(1)/x"),
    Case("files by a pattern", "d/a.txt d/b.csv", "d/*.txt", "d/a.txt"),
    Case("no slash in a star", "d/a/b/x d/a/y", "d/*", "d/a/y"),
    Case("a name after a star", "d/a/x/1 d/b/x/2 d/c/y/3 d/e", "d/*/x", "d/a/x/1 d/b/x/2"),
    Case("an escaped star", "d/a*b/x d/acb/y", "d/a\\*b", "d/a*b/x"),
    Case("brackets are a pattern", "d/a[1]/x d/a1/y", "d/a[1]", "d/a1/y"),
    Case("hidden directories of a pattern", "d/a/x d/_SUCCESS d/_t/q d/.h/q d/z", "d/*", "d/a/x d/_t/q d/.h/q d/z"),
    Case("columns of a pattern", "d/a=1/x d/a=2/y", "d/a=*", "d/a=1/x d/a=2/y"),
    Case("columns below a pattern", "d/r1/a=1/x d/r2/a=2/y", "d/*", REFUSED),
    Case("a pattern in a pattern", "d/s/a d/b", "{d,d/s}", "d/s/a d/b"),
    Case("a pattern without files", "d/s/ d/t/", "d/*", ""),
    Case("a pattern that matches nothing", "d/a", "d/9*", GONE),
    Case("a pattern that does not close", "d/a", "d/{a", REFUSED),
    Case("a set that does not close", "d/a", "d/[a", REFUSED),
    Case("a path twice", "d/a/x", "{d/a,d/*}", REFUSED),
    Case("a file twice", "d/a d/b", "d/{a,b}*", "d/a d/b"),
    # Hadoop takes a name with a colon for a URL.
    Case("a colon in a directory", "d/12:00/x", "d/12:00", "d/12:00/x"),
    Case("a colon in the value of a column", "d/a=1:2/x", "d", "d/a=1:2/x", columns="a"),
    Case("a colon in a file's name", "d/a:b d/c", "d", REFUSED),
    Case("a colon in a pattern", "d/12:00/x", "d/12:0*", REFUSED),
    Case("a colon in front of a pattern", "d/12:00/x", "d/12:00/*", REFUSED),
    Case("a colon behind a pattern", "d/a/12:00/x", "d/*/12:00", REFUSED),
    Case("a colon that a pattern meets", "d/12:00/x d/a/y", "d/a*", REFUSED),
    Case("a colon that a pattern passes over", "d/1:0 d/a/x", "d/*/x", "d/a/x"),
    Case("a colon in an object's name", "d/a:b d/c", "d", "d/a:b d/c", bucket=True),
    Case("an object with a colon by its name", "d/a:b d/c", "d/a:b", "d/a:b", bucket=True),
    Case("objects with colons in a directory with one", "d/12:00/a:b", "d/12:00", "d/12:00/a:b", bucket=True),
    Case("objects with colons below columns", "d/x=1:2/a:b d/x=2/c", "d", "d/x=1:2/a:b d/x=2/c", columns="x", bucket=True),
    Case("an object with a colon that a pattern meets", "d/a:b d/c", "d/*", REFUSED, bucket=True),
    Case("an object with a colon that a pattern passes over", "d/a:b d/s/x", "d/*/x", "d/s/x", bucket=True),
    Case("objects with colons, recursive", "d/s/a:b d/c", "d", "d/s/a:b d/c", {"recursiveFileLookup": "true"}, bucket=True),
    Case("objects with colons by name", "d/a:b d/c", "d", "d/a:b", {"pathGlobFilter": "a:*"}, bucket=True),
    # Options of the reader.
    Case("recursive", "d/a d/s/b d/a=1/c d/_h/x d/s/_h", "d", "d/a d/s/b d/a=1/c", {"recursiveFileLookup": "true"}),
    Case("by name", "d/a.txt d/b.csv d/s/c.txt", "d", "d/a.txt", {"pathGlobFilter": "*.txt"}),
    Case("by names", "d/a.txt d/b.csv d/c.x", "d", "d/a.txt d/b.csv", {"PATHGLOBFILTER": "*.{txt,csv}"}),
    Case("by name, with columns", "d/a=1/a.txt d/a=1/b.csv", "d", "d/a=1/a.txt", {"pathGlobFilter": "*.txt"}, "a"),
    Case("a base", "d/a=1/x d/a=2/y", "d/a=1", "d/a=1/x", {"basePath": "ROOT/d"}, "a"),
    Case("a base of a pattern", "d/a=1/x d/a=2/y", "d/a=*", "d/a=1/x d/a=2/y", {"basePath": "ROOT/d/"}, "a"),
    Case("newer than", "d/a", "d", "", {"modifiedAfter": "2100-01-01T00:00:00"}),
    Case("older than", "d/a", "d", "d/a", {"modifiedBefore": "2100-01-01T00:00:00"}),
    # The log of a stream's sink.
    Case("a sink's log", "d/a d/b d/_spark_metadata/0", "d", "d/a"),
    Case("a sink's log without entries", "d/a d/_spark_metadata/", "d", ""),
]  # fmt: skip
IDS = [one.name for one in CASES]


def make(case: Case, root: Path) -> tuple[str, dict[str, str]]:
    """The files of a case below a directory. Returns the path and the options."""
    for entry in case.tree.split(" ") if "ä" not in case.tree else [case.tree]:
        name = entry.removesuffix(":0")
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if "_spark_metadata" in name:
            size = (root / "d/a").stat().st_size
            entry = {"path": (root / "d/a").as_uri(), "size": size, "isDir": False, "modificationTime": 1, "blockReplication": 1,
                     "blockSize": 1, "action": "add"}  # fmt: skip
            path.write_text(f"v1\n{json.dumps(entry)}")
        else:
            path.write_text("" if entry.endswith(":0") else f"{name}\n")
    return f"{root}/{case.path}", {name: value.replace("ROOT", str(root)) for name, value in case.options.items()}


def wanted(case: Case) -> list[str] | str:
    if case.files in (REFUSED, GONE):
        return case.files
    return sorted([case.files] if "ä" in case.files else case.files.split())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_files_of_a_path(case: Case, tmp_path: Path) -> None:
    path, options = make(case, tmp_path)
    local = pafs.LocalFileSystem()
    objects = pafs.SubTreeFileSystem("/", local)
    try:
        found = list_files(objects if case.bucket else local, str(local_path(path)).lstrip("/" * case.bucket), options)
    except InvalidError:
        assert wanted(case) == REFUSED
        return
    files = [Path("/", one.path).relative_to(tmp_path) for one in found.files]
    assert (sorted(map(str, files)) if found.is_there else GONE) == wanted(case)
    columns = {tuple(column_of(directory) for directory in one.columns) for one in found.files}
    assert case.columns.split() in [list(one) for one in columns] or not found.files


def test_spark_reads_the_same_files(spark: SparkSession, tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    judged: dict[str, object] = {}
    for number, case in enumerate(CASES):
        path, options = make(case, tmp_path / str(number))
        try:
            frame = spark.read.options(**options, **(WITHOUT_CHECKSUMS if case.bucket else {})).text(path)
            # Of a column in two cases Spark takes the name from any of its directories.
            columns = [name.lower() for name in frame.columns[1:]]
            found = sorted(row.value for row in frame.select("value").collect())
            # Rows that Spark reads twice are refused.
            judged[case.name] = (found, columns) if len(found) == len(set(found)) else REFUSED
        except (PySparkException, Py4JJavaError) as error:
            judged[case.name] = GONE if "PATH_NOT_FOUND" in str(error) else REFUSED
    expected = [wanted(case) for case in CASES]
    ours = {
        case.name: files if isinstance(files, str) else (files, case.columns.split() if files else judged[case.name][1])  # type: ignore[index]
        for case, files in zip(CASES, expected, strict=True)
    }
    assert judged == ours
