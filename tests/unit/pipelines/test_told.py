"""The text that Spark shows for an error of the source or the sink. A mismatch means that its first line is a traceback's."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator

import pytest
from pyspark.util import handle_worker_exception

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.told import message_first


@message_first
class Source:
    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise InvalidError(Reason.INVALID_REQUEST, "no such option. option=`x`")

    def plan(self) -> int:
        try:
            raise OSError("refused")
        except OSError as error:
            raise RetryError(Reason.INTERNAL, "no broker answers. cluster=`c`") from error

    def read(self) -> Iterator[int]:
        yield 1
        raise InvalidError(Reason.NOT_FOUND, "a file is not there. file=`f`")


def test_the_first_line_is_the_message() -> None:
    for call, message in (
        (lambda: Source(fails=True), "no such option. option=`x`"),
        (lambda: Source().plan(), "no broker answers. cluster=`c`"),
        (lambda: list(Source().read()), "a file is not there. file=`f`"),
    ):
        with pytest.raises(HeadgateError) as raised:
            call()
        assert raised.value.message == message
        text = io.BytesIO()
        try:
            raise raised.value
        except HeadgateError as error:
            handle_worker_exception(error, text, hide_traceback=False)
        shown = text.getvalue()[8:].decode()
        assert shown.startswith(f"{type(raised.value).__module__}.{type(raised.value).__qualname__}: {message}\n"), shown
        assert "Traceback" in shown
    assert next(iter(pickle.loads(pickle.dumps(Source())).read())) == 1
