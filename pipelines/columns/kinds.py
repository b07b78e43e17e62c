"""Columns of files in the Arrow types of Spark's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headgate.pipelines.columns import headers
from headgate.pipelines.columns.expressions import arrow_type
from headgate.pipelines.iceberg_columns import is_uuid

UUID_CHARS = 36
_HEX = np.frombuffer(b"".join(b"%02x" % number for number in range(256)), np.uint8).reshape(256, 2)
_AT = [place for place in range(UUID_CHARS) if place not in (8, 13, 18, 23)]
"""Places of the hexadecimal digits in the text of a UUID."""


def of_kind(column: Any, kind: str) -> Any:
    """The column in the Arrow type of Spark's, UUIDs as text. Pairs keep theirs: the expressions read them by their fields."""
    if headers.fields_of(kind):
        return column
    return (_uuid_texts(column) if is_uuid(column.type) else column).cast(arrow_type(kind))


def _uuid_texts(column: Any) -> Any:
    arrow: Any = pa
    stored = column.storage
    content = b"".join(one or bytes(16) for one in stored.to_pylist()) if stored.null_count else bytes(stored.buffers()[1])
    begin = 0 if stored.null_count else stored.offset * 16
    numbers = np.frombuffer(content, np.uint8, len(stored) * 16, begin)
    text = np.full((len(stored), UUID_CHARS), ord("-"), np.uint8)
    text[:, _AT] = _HEX[numbers].reshape(len(stored), 32)
    places = np.arange(0, (len(stored) + 1) * UUID_CHARS, UUID_CHARS, dtype=np.int32)
    texts = arrow.StringArray.from_buffers(len(stored), arrow.py_buffer(places), arrow.py_buffer(text))
    if not stored.null_count:
        return texts
    return arrow.compute.if_else(stored.is_valid(), texts, None)
