"""Errors of the data source, shown by Spark as their sentence: `sentences`.

Spark runs a Python data source in processes of its own, and shows what they raise with the whole traceback in front; the sentence
is its last line. Such a process formats one error and ends. So it is told, just before an error of ours leaves our code, to leave
the traceback out. Other errors keep theirs, and so do the functions of users.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, GeneratorType
from typing import Any, TypeVar

from headgate.broker.runtime.errors import HeadgateError

HIDE = "SPARK_HIDE_TRACEBACK"
"""Environment variable that PySpark reads while it formats the error of a worker."""

_C = TypeVar("_C", bound=type[Any])


def sentences(cls: _C) -> _C:
    """Class decorator: errors of ours that leave a public method of this class, or its construction, are shown without a
    traceback."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _wrapped(method))
    return cls


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with _plain():
            found = method(*arguments, **named)
        return _rows(found) if isinstance(found, GeneratorType) else found

    return call


def _rows(found: Iterator[Any]) -> Iterator[Any]:
    with _plain():
        yield from found


@contextmanager
def _plain() -> Iterator[None]:
    try:
        yield
    except HeadgateError:
        if is_worker():
            os.environ[HIDE] = "1"
        raise


def is_worker() -> bool:
    """True in a process that Spark started for Python code. The driver and its children would pass the variable on to workers."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = "" if spec is None else str(spec.name)
    return name.startswith("pyspark.") and not name.startswith("pyspark.shell")
