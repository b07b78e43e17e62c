"""Whether a flood can adopt the source's files, as far as footers tell: before brokers start."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.pipelines.columns.adoption import NotAdoptedError, adoptable
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.plain import plain_source
from headgate.pipelines.columns.task_division import Limits
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan
from headgate.pipelines.ways import BY_SOURCE, REWRITE, must_adopt


def adoption_note(flood: Flood, spans: Sequence[TimeSpan]) -> list[str]:
    """What a plan says of the way in which the topic gets its files. Only the flood's count can tell how row groups overlap.

    Args:
        spans: the partitions with files. The first one is looked at.

    Raises InvalidError if the files must be adopted, and cannot; FatalError, RetryError if the source cannot be read.
    """
    if flood.files == REWRITE or not spans:
        return []
    try:
        source = plain_source(job_of(flood, spans[0], cluster="", partitions=1), Limits())
        if source is not None:
            adoptable(source, by_source=flood.order == BY_SOURCE)
    except (UnlikeError, NotAdoptedError) as error:
        must_adopt(flood.files, flood.order, str(error))
        return [f"the source's files are not adopted: {error}"]
    return ["the topic adopts the source's files, of which only keys and times are read, if little of them overlaps in time"]
