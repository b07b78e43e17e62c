"""The registrations of tables in a catalog of the user's, with a catalog that fails, and with one of PyIceberg in a file.

A failing catalog may cost one line of the log, and no table; a table of another owner stays as it is.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from headgate.broker.control import table_catalog
from headgate.broker.control.catalog_process import Forget, Register, Request
from headgate.broker.control.catalog_work import do, serve
from headgate.broker.control.table_catalog import FAILURES_MAX, TableCatalog

PREFIX = "file:///store/"


class Fake:
    """A worker whose requests fail as `errors` says, by table."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.done: list[Request] = []
        self.asked = 0

    async def do(self, request: Request) -> str:
        self.asked += 1
        name = request.name if isinstance(request, Register) else ""
        error = self.errors.get(name, self.errors.get("*", ""))
        if not error:
            self.done.append(request)
        return error

    async def close(self) -> None:
        pass


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **fields: object) -> None:
        self.events.append(event)

    info = warning


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(table_catalog, "logger", made)
    return made


async def test_a_failing_catalog_is_reported_once_and_gets_everything_later(log: Log) -> None:
    worker = Fake()
    catalog = TableCatalog(worker, "lake", PREFIX)
    worker.errors["*"] = "no answer"
    for number in range(10):
        catalog.show(f"t{number}", "m1")
    for _ in range(3):
        assert not await catalog.run_once()
    assert log.events == ["table_catalog_failed"] and worker.asked == 3 * FAILURES_MAX
    catalog.show("t3", "m2")
    worker.errors.clear()
    assert await catalog.run_once()
    assert {(one.name, one.metadata) for one in worker.done if isinstance(one, Register)} == {
        (f"t{number}", "m2" if number == 3 else "m1") for number in range(10)
    }
    assert log.events == ["table_catalog_failed", "table_catalog_works_again"]
    asked = worker.asked
    catalog.show("t3", "m2")
    assert await catalog.run_once() and worker.asked == asked, "nothing new"


async def test_a_table_that_is_refused_does_not_stop_the_others(log: Log) -> None:
    worker = Fake()
    catalog = TableCatalog(worker, "lake", PREFIX)
    for name in "abcdefgh":
        catalog.show(name, "m1")
    worker.errors = dict.fromkeys("abcd", "another table has this name")
    for _ in range(3):
        assert not await catalog.run_once()
    assert {one.name for one in worker.done if isinstance(one, Register)} == set("efgh")
    for name in "abcd":
        catalog.forget(name)
    assert await catalog.run_once()
    assert worker.done[-1] == Forget("lake", list("efgh"), PREFIX)


def metadata_of(place: Path, name: str) -> str:
    """A table's metadata, as some catalog wrote it."""
    other: Any = load_catalog("other", type="sql", uri=f"sqlite:///{place}/{name}.db", warehouse=f"file://{place}/{name}")
    other.create_namespace_if_not_exists("x")
    schema = Schema(NestedField(1, "offset", LongType(), required=True))
    return str(other.create_table(("x", "t"), schema).metadata_location)


def test_tables_in_a_catalog_of_pyiceberg(tmp_path: Path) -> None:
    first, second, foreign = (metadata_of(tmp_path, name) for name in ("store-1", "store-2", "foreign"))
    prefix = f"file://{tmp_path}/store-"
    catalog: Any = load_catalog("mine", type="sql", uri=f"sqlite:///{tmp_path}/mine.db", warehouse=f"file://{tmp_path}/mine")

    def tables() -> dict[str, str]:
        return {name: catalog.load_table(("lake", name)).metadata_location for _, name in catalog.list_tables("lake")}

    do(catalog, Forget("lake", [], prefix))  # no namespace yet
    for metadata in (first, first, second):
        do(catalog, Register("lake", "clicks", metadata, prefix))
        assert tables() == {"clicks": metadata}
    catalog.register_table(("lake", "theirs"), foreign)
    with pytest.raises(ValueError, match="another table of this name"):
        do(catalog, Register("lake", "theirs", first, prefix))
    do(catalog, Register("lake", "orders", first, prefix))
    do(catalog, Forget("lake", ["clicks"], prefix))
    assert tables() == {"clicks": second, "theirs": foreign}


def test_the_process_answers_each_request_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.BytesIO(
        b"".join(msgspec.json.encode(one) + b"\n" for one in (Forget("lake", [], PREFIX), Register("n", "t", "m", "p")))
    )
    answers = io.BytesIO()
    serve("no-such-catalog", lines, answers)
    texts = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert len(texts) == 2 and all("URI missing" in text or "no-such-catalog" in text for text in texts), texts
