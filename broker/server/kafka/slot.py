"""The place of one answer among the answers of a connection. It does no I/O and knows no event loop."""

from __future__ import annotations

from headgate.broker.log.batch import Buffer


class Slot:
    """The place of one answer. `data` is None until the answer is ready; `cost` is its share of the bytes in flight.

    `size` is the number of bytes that the connection counts as held for its client: the size of the answer, or 0 for an
    answer to a produce request, which is small. `in_pieces`: the answer may be written in several turns of the loop.
    `written_at` is the arrival time of a produce request's records; None for other requests.
    """

    __slots__ = ("cost", "data", "in_pieces", "size", "written_at")

    def __init__(self, cost: int) -> None:
        self.data: list[Buffer] | None = None
        self.cost = cost
        self.size = 0
        self.in_pieces = False
        self.written_at: float | None = None

    def first(self, size: int) -> list[Buffer]:
        """The first `size` bytes of the answer, which stay in it; the answer must be longer."""
        return self._divide(size)[0]

    def cut(self, size: int) -> list[Buffer]:
        """Take the first `size` bytes of the answer; the answer must be longer."""
        part, self.data = self._divide(size)
        self.size -= size
        return part

    def _divide(self, size: int) -> tuple[list[Buffer], list[Buffer]]:
        assert size < self.size
        data = self.data
        assert data is not None
        at = 0
        while len(data[at]) <= size:
            size -= len(data[at])
            at += 1
        part = memoryview(data[at])
        return [*data[:at], part[:size]], [part[size:], *data[at + 1 :]]
