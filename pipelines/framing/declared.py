"""Frames as a flood declares them. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.schemas.registry import Format, Registry

FORMATS = get_args(Format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How the keys or the values of a flood are framed, as declared.

    Args:
        subject: in the registry; its newest schema decides.
        register: the schema of the source's columns is registered, and decides.
    """

    format: Format
    registry: str
    subject: str
    register: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidError(Reason.INVALID_REQUEST, f"a format is {', '.join(FORMATS)}. format=`{self.format}`")
        if not self.subject:
            raise InvalidError(Reason.INVALID_REQUEST, "a framed message has a subject in the registry")
        Registry(self.registry)

    @property
    def identity(self) -> list[object]:
        """What of it decides the records. The same registry has several URLs."""
        return [self.format, self.subject]
