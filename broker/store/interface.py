"""The store: the one seam for durable I/O.

A store holds immutable-or-replaced *objects* under string *keys* (``a/b/c``: no leading slash, no empty, ``.`` or ``..`` parts,
bytes of ``[A-Za-z0-9._=-]`` and ``/``, lengths as in keys.py). A key is never the directory of another, such as ``a`` of
``a/b``: memory and directories refuse that with InvalidError, S3 cannot tell. Every implementation guarantees:

- **put_if_absent is the only coordination primitive.** Of any number of concurrent calls for one key, in any number of
  processes, at most one returns True, and after it returned True every `get` anywhere returns exactly its bytes until `delete`.
  False means that the key exists. An error
  means *unknown*: the object may or may not be there.
- A returned `put` or `put_if_absent` is **durable**: it survives the loss of the process and, as far as the medium can tell, of
  the machine.
- Read after write, for `get`, `get_range`, `get_ranges` and `list` alike. No partial object is ever visible.
- `list` returns keys in byte order. `delete` of a missing object is not an error.

It does not guarantee:

- renames, appends, conditional replacement, or times that agree between machines;
- that an operation which raised `RetryError` or was cancelled had no effect, or will have none *later*: a request that timed out
  may still be under way. `put_if_absent` is safe against that. A key that is written by `put` should therefore get one content
  only, or contents of which any may come last;
- that `data` is no longer read after a cancelled call: keep it unchanged until `close`;
- that a `delete` survives the loss of the machine: the object may be there again;
- that a listing of several requests shows one instant. It contains every key that existed throughout.

Errors: `InvalidError(NOT_FOUND)` from `get`, `get_range` and `get_ranges`, `InvalidError(INVALID_REQUEST)` for an illegal key,
prefix or range; `RetryError(STORE_UNAVAILABLE | STORE_FULL)` when a retry may help; `FatalError(STORE_MISCONFIGURED)` when it will
not (no such bucket, no permission, vanished directory); `ClosedError` after `close`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview
Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Parts of one object: (start, length) in bytes, ascending, without an overlap."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing. `modified_ms`: the store's own clock, ms since the epoch; good for ages, never for order."""

    key: str
    size_bytes: int
    modified_ms: int


class Store(Protocol):
    """Objects under keys. The module's docstring has the guarantees."""

    @property
    def url(self) -> str:
        """The store's address in the user's form, without credentials."""
        ...

    @property
    def appender(self) -> Appender | None:
        """The optional append capability, or None when objects can only be written whole (S3)."""
        ...

    @property
    def read_unit_bytes(self) -> int:
        """Bytes that arrive in about the time of one request. Reading fewer is no quicker, so readers read whole units and share
        them. 0: small reads are quick, because the operating system keeps what was read. Stores with an appender return 0: kept
        units of a growing object would be too short."""
        ...

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        """Create an object. True: this call created it. False: the key exists."""
        ...

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Create or replace an object."""
        ...

    async def get(self, key: str) -> bytes:
        """The whole object. Raises InvalidError(NOT_FOUND)."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only at the object's end. Raises InvalidError(NOT_FOUND)."""
        ...

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        """The bytes of ranges (start, length) of one object, one behind the other; fewer only if the object ends before them.

        The ranges must ascend without an overlap. One call costs less than `get_range` for each of them. The answer may be a view
        of memory that other calls use once no view of it is left. Raises InvalidError(NOT_FOUND).
        """
        ...

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        """Up to `limit` objects with keys that begin with `prefix` and sort after `start_after`, in key order."""
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; removing a missing one is fine."""
        ...

    async def close(self) -> None:
        """Close threads and sockets. The store must not be used afterwards."""
        ...


class Readable(Protocol):
    """Objects that are only read: of a foreign place, or of a store."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only at the object's end. Raises InvalidError(NOT_FOUND)."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Files(Protocol):
    """The optional capability of stores that keep objects as files."""

    async def open_file(self, key: str) -> int | None:
        """A descriptor of an object, for another process to read from; None without a file. The caller closes it.

        Raises the errors of `Store.get_range`.
        """
        ...


@runtime_checkable
class Keeps(Protocol):
    """The optional capability of stores that keep an object which lies elsewhere, without its bytes passing the caller."""

    async def keep(self, key: str, source: str, *, copy: bool) -> bool:
        """Create an object from a file or an object outside of the store; durable at the return.

        Args:
            key: no object has it, nor had it.
            source: an absolute path for a directory, ``s3://bucket/key`` for a bucket.
            copy: False: without a copy: the object and the source then share their bytes, and the source's owner can write over
                them.

        Returns:
            True: the object is there. False: the store cannot do it in this way, and nothing was created.

        Raises InvalidError(NOT_FOUND) without the source, and the errors of `Store.put`.
        """
        ...


class Appender(Protocol):
    """Files that grow in place: the fast path of a local WAL. Every call blocks; call it from a thread of your own."""

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        """A new file under `key` of `size_bytes` zero bytes, and itself durable (name and length).

        With `filled` zeros are written, which makes small writes quicker; without it the room is only allocated. The size is
        rounded up to the file's alignment. The file may be written past it, which is slower. Raises
        RetryError(STORE_FULL | STORE_UNAVAILABLE), FatalError(STORE_MISCONFIGURED), InvalidError if it exists.
        """
        ...

    def exists(self, key: str) -> bool:
        """True if an object exists under `key`: the fence check, after every write."""
        ...


class AppendFile(Protocol):
    """One growing file, written by one thread."""

    @property
    def alignment_bytes(self) -> int:
        """Positions, lengths and buffer addresses of `write` must be multiples of this (4096 for O_DIRECT, else 1)."""
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers`, one behind the other, at `position`; durable at return according to `wal.fsync`.

        When `alignment_bytes` > 1 there is exactly one buffer. After an error the same call may be repeated; the bytes of the
        range are undefined until one call succeeds. Raises RetryError, FatalError.
        """
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to its sealed length, durably."""
        ...

    def close(self) -> None:
        """Close the descriptor; the file stays readable through `get_range`."""
        ...
