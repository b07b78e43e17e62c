"""The count of a source on columns, kept for a later step: it holds as long as the source and the flood's query are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headgate.pipelines.columns.plan import Stretch
from headgate.pipelines.columns.tasks import Counted, Spec

NUMBERS_MAX = 4_000_000
"""Numbers of a count that is kept: one for each partition and piece of work, and two for each sample. More are counted again."""


@dataclass(frozen=True, slots=True)
class KeptCount:
    """A count by tasks. `of`: see `digest`. `spreads`: some rows have no key, so values were read too."""

    of: str
    spreads: bool
    counted: tuple[Counted, ...]

    def to_json(self) -> dict[str, Any]:
        """The count as plain values."""
        return asdict(self)

    @classmethod
    def read(cls, data: Mapping[str, Any] | None) -> KeptCount | None:
        """The count that `to_json` wrote; None for anything else."""
        try:
            return None if data is None else cls._read(data)
        except (KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> KeptCount:
        counted = [
            Counted(**{**one, "samples": [(int(part), int(time)) for part, time in one["samples"]]}) for one in data["counted"]
        ]
        return cls(str(data["of"]), bool(data["spreads"]), tuple(counted))

    @property
    def is_small(self) -> bool:
        """True when the count is worth keeping."""
        return sum(len(one.rows) + 2 * len(one.samples) for one in self.counted) <= NUMBERS_MAX


def digest(spec: Spec, stretches: Iterable[Stretch]) -> str:
    """A digest of all that decides a count: the query, the files as they are (size, time, footer), and the division among tasks."""
    found = hashlib.sha256(repr(spec).encode())
    for one in stretches:
        for piece in one.pieces:
            found.update(repr((one.number, piece)).encode())
    return found.hexdigest()
