"""What every generated message can do: it is read from bytes, and becomes bytes, at once or in steps.

A message has the functions of the directions that the product uses: `_read` of a request, `_write` of an answer. Messages that
Headgate's own clients speak, too, have the other one in the version `CARRIED` alone (`_write_carried`, `_read_carried`). Tests
and the simulation add what is missing (`tests/support/messages.py`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from headgate.broker.runtime.steps import Steps, finish
from headgate.broker.wire.kafka.primitives import PARSE_ERRORS, Buffer, check_version, malformed


class Message:
    """The base of all messages. `VERSIONS`: the first and the last one. `FLEXIBLE_FROM`: the first with KIP-482's encoding."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]]
    FLEXIBLE_FROM: ClassVar[int | None] = None
    CARRIED: ClassVar[int | None] = None
    """The version that Headgate's own clients speak; None: they do not."""
    _read: ClassVar[Any]
    """Bytes, position and version; returns the message, and the position behind it, in steps."""
    _write: ClassVar[Any]
    """Bytes, message and version; appends the message to the bytes, in steps."""
    _read_carried: ClassVar[Any]
    _write_carried: ClassVar[Any]

    @classmethod
    def decoding(cls, buf: Buffer, pos: int, version: int) -> Steps[tuple[Self, int]]:
        """`decode` in steps."""
        check_version(cls.__name__, version, *cls.VERSIONS)
        try:
            found: tuple[Self, int] = yield from cls._read(buf, pos, version)
            return found
        except PARSE_ERRORS as error:
            raise malformed(cls.__name__, version, error) from error

    @classmethod
    def decode(cls, buf: Buffer, pos: int, version: int) -> tuple[Self, int]:
        """The message at `pos` and the position behind it. Raises DecodeError, whatever the bytes are."""
        return finish(cls.decoding(buf, pos, version))

    @classmethod
    def decode_carried(cls, buf: Buffer, pos: int) -> Self:
        """`decode` of an answer to a Headgate client."""
        assert cls.CARRIED is not None
        try:
            return finish(cls._read_carried(buf, pos, cls.CARRIED))[0]  # type: ignore[no-any-return]
        except PARSE_ERRORS as error:
            raise malformed(cls.__name__, cls.CARRIED, error) from error

    def encode(self, version: int) -> bytes:
        """The message as bytes. Raises ValueError where that version cannot carry it."""
        out = bytearray()
        finish(self.encoding(out, version))
        return bytes(out)

    def encoding(self, out: bytearray, version: int) -> Steps[None]:
        """`encode` in steps, behind what `out` holds already."""
        check_version(type(self).__name__, version, *self.VERSIONS)
        yield from type(self)._write(out, self, version)

    def encode_carried(self) -> bytes:
        """`encode` of a request of a Headgate client."""
        assert self.CARRIED is not None
        out = bytearray()
        finish(type(self)._write_carried(out, self, self.CARRIED))
        return bytes(out)
