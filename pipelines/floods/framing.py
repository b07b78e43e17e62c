"""Whether the columns of a flood's source fit the schema of its frame: before brokers start."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import ROW, Node
from headgate.pipelines.columns.framed import framed
from headgate.pipelines.columns.plain import plain_source
from headgate.pipelines.columns.task_division import Limits
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan


def framing_note(flood: Flood, spans: Sequence[TimeSpan]) -> list[str]:
    """What a plan says of the schema that decides keys and values.

    Args:
        spans: the partitions with files. The first one is looked at.

    Raises InvalidError if the columns do not fit, with all mistakes; RetryError, FatalError of the registry.
    """
    if (flood.key_frame is None and flood.value_frame is None) or not spans:
        return []
    try:
        source = plain_source(job_of(flood, spans[0], cluster="", partitions=1), Limits())
    except UnlikeError as error:
        return [f"the columns are compared with the registry's schema when the flood runs, because Spark reads them: {error}"]
    if source is None:
        return []
    made = framed(source, key=flood.key_frame, value=flood.value_frame).query
    found = []
    for name, framing in (("key", flood.key_frame), ("value", flood.value_frame)):
        node = made.outputs[name]
        if framing is None:
            continue
        left = _left(node, made.source)
        found.append(
            f"each {name} has the {framing.format} schema {node.value.schema.id} of `{framing.subject}` in its frame{left}"
        )
    return found


def _left(node: Node, columns: dict[str, str]) -> str:
    if node.value.is_key:
        return ""
    left = [name for name in columns if name != ROW and name not in node.value.columns]
    return f"; the schema has no field for {', '.join(left)}" if left else ""
