"""Errors of Headgate's source and sink, so that Spark shows their message in its first line instead of a traceback.

Spark passes on the text of a Python traceback, and shows its first lines. Python prints the cause of an error above the error, and
a cause without a traceback is its message alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headgate.broker.runtime.errors import HeadgateError

_Class = TypeVar("_Class", bound=type)


def message_first(kind: _Class) -> _Class:
    """A class whose methods that Spark calls raise errors with their message as the cause: a decorator."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _told(method))
    return kind


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            found = method(*args, **options)
        except HeadgateError as error:
            raise error from _bare(error)
        return _rows(found) if inspect.isgenerator(found) else found

    return call


def _rows(found: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from found
    except HeadgateError as error:
        raise error from _bare(error)


def _bare(error: HeadgateError) -> HeadgateError:
    """The same error without its traceback and causes: these are in the log of the process that had them."""
    return type(error).__new__(type(error), *error.args)
