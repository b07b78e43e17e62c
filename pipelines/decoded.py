"""Keys and values in a schema registry's frame, as the text of their JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import pyarrow as pa

from headgate.broker.schemas.decoder import Decoder
from headgate.pipelines.reads import Wanted, Work, read

MESSAGES = ("key", "value")
"""The columns that may be framed."""

_decoder = lru_cache(8)(Decoder.of)
"""One decoder for all tasks of a process: it keeps the schemas."""


def read_decoded(work: Work, wanted: Wanted, registry: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of one task; with a registry, decoded. Raises HeadgateError."""
    batches = read(work, wanted)
    return batches if registry is None else decoded(batches, registry)


def decoded(batches: Iterable[pa.RecordBatch], registry: str) -> Iterator[pa.RecordBatch]:
    """The batches with key and value as text: JSON, if they are framed, text that they are, and null for other bytes.

    Raises RetryError, FatalError of the registry.
    """
    decoder = _decoder(registry)
    for batch in batches:
        for at, name in enumerate(batch.schema.names):
            if name in MESSAGES:
                texts = pa.array(map(decoder.shown, batch.column(at).to_pylist()), pa.string())
                batch = batch.set_column(at, name, texts)
        yield batch
