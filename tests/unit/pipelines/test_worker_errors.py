"""What Spark shows of an error that its data source raises, by the code of PySpark's workers themselves. No Spark."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from pyspark.sql.types import StructType
from pyspark.util import handle_worker_exception

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.source import HeadgateDataSource
from headgate.pipelines.worker_errors import HIDE, sentences

SENTENCE = "headgate.broker.runtime.errors.InvalidError: the topic does not exist. topic=`x`"


@sentences
class Reader:
    def __init__(self, topic: str) -> None:
        if topic == "x":
            raise InvalidError(Reason.UNKNOWN_TOPIC, "the topic does not exist. topic=`x`")

    @classmethod
    def name(cls) -> str:
        return "reader"

    def partitions(self) -> list[int]:
        return [int("seven")]

    def read(self) -> Iterator[int]:
        yield 1
        Reader("x")


@pytest.mark.parametrize(
    ("main", "act", "said"),
    [
        ("pyspark.daemon", lambda: Reader("x"), SENTENCE),
        ("pyspark.sql.worker.plan_data_source_read", lambda: list(Reader("y").read()), SENTENCE),
        ("pyspark.daemon", lambda: Reader("y").partitions(), "Traceback"),
        ("users.program", lambda: Reader("x"), "Traceback"),
        (None, lambda: Reader("x"), "Traceback"),
    ],
    ids=["construction", "rows", "an error that is not ours", "the driver", "a notebook"],
)
def test_spark_shows_the_sentence(monkeypatch: pytest.MonkeyPatch, main: str | None, act: Callable[[], object], said: str) -> None:
    module = ModuleType("__main__")
    module.__spec__ = ModuleSpec(main, None) if main is not None else None
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setenv(HIDE, "")
    shown = io.BytesIO()
    with pytest.raises((InvalidError, ValueError)) as found:
        act()
    try:
        raise found.value
    except (InvalidError, ValueError) as error:
        handle_worker_exception(error, shown)
    assert shown.getvalue()[8:].decode().startswith(said)
    assert Reader.name() == "reader"


def test_a_stream_that_cannot_be_says_so_when_it_is_asked() -> None:
    """PySpark's process for a stream shows another error if the construction of its reader fails."""
    source = HeadgateDataSource({"subscribe": "x", "endingoffsets": "latest"})
    reader = source.streamReader(StructType())
    with pytest.raises(InvalidError, match="a streaming read has no such option"):
        reader.initialOffset()
