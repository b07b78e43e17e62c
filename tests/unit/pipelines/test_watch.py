"""`headgate.pipelines.watch`: the watch of a Spark job. A mismatch means that a flood that ends prints a traceback."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.pipelines import watch
from headgate.pipelines.progress import Progress
from headgate.pipelines.watch import Watch


def test_a_session_that_ends_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`SparkContext.stop` of another thread, such as the handler of a signal, takes `_jsc` away between two looks."""
    monkeypatch.setattr(watch, "INTERVAL_S", 0.001)
    looks, enough = [0], threading.Event()

    class Context:
        @property
        def _jsc(self) -> None:
            looks[0] += 1
            if looks[0] == 3:
                enough.set()

    spark: Any = SimpleNamespace(_jsparkSession=object(), sparkContext=Context())
    told: list[Progress] = []
    with Watch(spark, "group", 10, told.append):
        assert enough.wait(30), "the watch ended with its first look"
    assert told == []
