"""What clients wrote to one partition and read from it. The leader places segments by it."""

from __future__ import annotations


class Traffic:
    """Counts since the segment was opened on this broker. `requests`: appends, and fetches that returned records. `changes`: of the
    counts, by which a reader of many of them passes those that rest."""

    __slots__ = ("bytes_in", "bytes_out", "changes", "requests")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.requests = 0
        self.changes = 0

    def appended(self, size_bytes: int, requests: int) -> None:
        self.bytes_in += size_bytes
        self.requests += requests
        self.changes += 1

    def fetched(self, size_bytes: int, requests: int = 1) -> None:
        """Count the records of an answer. `requests`: number of fetches that it answers."""
        self.bytes_out += size_bytes
        self.requests += requests
        self.changes += 1

    def counts(self) -> tuple[int, int, int]:
        """(bytes in, bytes out, requests)."""
        return self.bytes_in, self.bytes_out, self.requests
