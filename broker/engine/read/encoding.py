"""Encodes row groups of Parquet files to batches, in separate processes with low priority.

Arrow and numpy hold the interpreter's lock for a third of this work. In a thread, the work would delay the event loop; a thread
with a higher nice value would delay it even longer. A separate process can give way to all others (`runtime/scheduling.py`); if it
starves for that, one with a nice value does its work. A broken file may crash a library; then only that process ends, not the
broker.

Both ends of the socket between broker and process are here. A request is a header, the regions of shared memory that are free
again, the file's footer, and either the bytes of one row group or a descriptor of the file; or a unit of adopted files, with the
same for each of its files. The answer says where the batches are in shared memory (`shared_memory.py`), or is an error text about
the bytes. There is one request at a time. A process ends when the other end of its socket is closed. So it never outlives its
broker, also after a crash of the broker.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from headgate.broker.engine.read.shared_memory import REGIONS_MAX, Answer, Reader, Writer, new_memory
from headgate.broker.log.compression import Codec
from headgate.broker.log.recipe import UNIT_FILES_MAX, UnitBytes
from headgate.broker.runtime import children
from headgate.broker.runtime.errors import ClosedError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.modules import without_pandas
from headgate.broker.runtime.scheduling import Turns, give_way

if TYPE_CHECKING:
    from subprocess import Popen

    from headgate.broker.log.parquet import ExtentFile, RowGroup

logger = get_logger("history")

BATCH_BYTES_MAX = 1 << 20
"""Largest encoded batch, in bytes before compression: the default of consumers for one partition (`max.partition.fetch.bytes`)."""
NICENESS = 10
"""Nice value of an encoder process that does not give way: it gets a tenth of a CPU beside a process that uses all of it."""
STARVED_S = 1.0
"""Seconds after which a broker looks whether a process that gives way starves. Most of its work takes less than a tenth of that."""
BEGIN_S = 2.0
"""Longest wait for a process that begins, in seconds. If it takes longer, another one begins beside it."""
HURRIED_S = 60.0
"""Seconds after such a case in which no process gives way."""
SILENCE_S = 300
"""Seconds without an answer after which a process is killed. The largest row group takes seconds, also with a tenth of a CPU."""
MEMORY_BYTES = 128 << 20
"""Freed memory that a process keeps for its next row group. It keeps four times what the largest ones of our own writers take."""
FILES_KEPT = 4
"""Parsed footers that a process keeps. Readers read several partitions in turns."""
READ_BYTES = 128 << 10
"""Bytes of a file that are read at a time. Many kernels complete a read before they let another process run: a read of 3 MB took
most of a millisecond."""

GIVES_WAY, NICE = "gives-way", "nice"
"""Kinds of processes."""

_REQUEST = struct.Struct("<?III")
"""True for a unit, false for a row group; bytes of the free regions' numbers, of the description, and of the columns (0: the
request has descriptors)."""
_GROUP = struct.Struct("<QqqiiBIQ")
"""Size of the file, base offset, end offset (-1: not given), leader epoch, index of the row group, codec, first row, largest number
of bytes of the answer. The footer follows."""
_ANSWER = struct.Struct("<?I")
"""True for an `Answer`, false for an error text; size in bytes. Descriptors come with it."""
_TIMEVAL = struct.Struct("@ll")


@dataclass(frozen=True, slots=True)
class RowGroupBytes:
    """A row group to encode, or a part of it.

    Args:
        file: the file of the row group; `index` counts its `groups`.
        size_bytes: size of that file.
        source: the row group's bytes, or a descriptor of the file, which the caller closes.
        base_offset: offset of the row group's first row.
        first_row: first row to encode, counted in the row group.
        bytes_max: bytes of all batches together. Encoding stops before it is exceeded, but not before the first batch.
        end_offset: for a folded file: the batches of the row group together cover [base_offset, end_offset).
    """

    file: ExtentFile
    size_bytes: int
    index: int
    source: bytes | memoryview | int
    base_offset: int
    leader_epoch: int
    codec: Codec
    first_row: int = 0
    bytes_max: int = sys.maxsize
    end_offset: int | None = None


UnitSource: TypeAlias = Sequence[int] | bytes | memoryview
"""A descriptor of each file of a unit, which the caller closes; or the bytes of all ranges of all files, one behind the other."""


def encode_unit(unit: UnitBytes, source: UnitSource) -> Iterator[memoryview]:
    """The wanted rows of a unit of adopted files as batches. Raises as `log.adopted.encode_unit`."""
    from headgate.broker.log import adopted

    return adopted.encode_unit(unit, list(columns_of(unit, source)))


def columns_of(unit: UnitBytes, source: UnitSource) -> Iterator[list[list[tuple[int, memoryview]]]]:
    """Of each file the columns of its row groups."""
    at = 0
    for number, file in enumerate(unit.files):
        groups = []
        for ranges in file.ranges:
            parts = []
            for position, size in ranges:
                if isinstance(source, bytes | memoryview):
                    parts.append((position, memoryview(source)[at : at + size]))
                    at += size
                else:
                    parts.append((position, _read(source[number], position, size)))
            groups.append(parts)
        if not isinstance(source, bytes | memoryview):
            # After the reads: what was written during one shows.
            check_unchanged(source[number], file.size_bytes, file.modified_ns)
        yield groups


def check_unchanged(descriptor: int, size_bytes: int, modified_ns: int) -> None:
    """Raise InvalidError(CORRUPT_MESSAGE) if the owner of an adopted file has written over it."""
    now = os.fstat(descriptor)
    if now.st_size != size_bytes or (modified_ns and now.st_mtime_ns != modified_ns):
        raise InvalidError(Reason.CORRUPT_MESSAGE, "an adopted file was written over after it was counted")


def encode(group: RowGroupBytes) -> Iterator[memoryview]:
    """The rows as batches, each in its own memory. Slow: run it in a thread or a process.

    A row group may expand to far more bytes than it has in the file. So this bounds the bytes in memory: `bytes_max` and a few
    rows more.

    Raises:
        InvalidError: the bytes contradict the footer.
    """
    from headgate.broker.log.column_encoder import encode_batches
    from headgate.broker.log.parquet import read_some

    place = group.file.groups[group.index]
    data = _bytes_of(group.source, place) if isinstance(group.source, int) else group.source
    rows = read_some(group.file, place, data, group.first_row, group.bytes_max)
    batches = encode_batches(
        rows,
        group.base_offset + group.first_row,
        leader_epoch=group.leader_epoch,
        compression=group.codec,
        batch_bytes_max=BATCH_BYTES_MAX,
        end_offset=group.end_offset,
    )
    return _within(batches, group.bytes_max)


def _within(batches: Iterator[memoryview], bytes_max: int) -> Iterator[memoryview]:
    """The first batch, and all further ones that fit into `bytes_max` together."""
    size = 0
    for batch in batches:
        if size and size + len(batch) > bytes_max:
            return
        size += len(batch)
        yield batch
        # The next batch is made in the same memory.
        del batch


def _bytes_of(descriptor: int, place: RowGroup) -> memoryview:
    return _read(descriptor, place.start, place.end - place.start)


def _read(descriptor: int, position: int, size: int) -> memoryview:
    data: memoryview = new_memory(size).data
    at = 0
    while at < len(data):
        count = os.preadv(descriptor, [data[at : at + READ_BYTES]], position + at)
        if not count:
            raise InvalidError(Reason.CORRUPT_MESSAGE, "is cut off")
        at += count
    return data


class Encoders:
    """Encoder processes, at most one for each thread that is in `encode`. Any thread may call all methods; `encode` blocks."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        """Its waiters wait for a process that has begun."""
        self._hurried_until_s = -HURRIED_S
        self._idle: list[_EncoderProcess] = []
        self._busy: set[_EncoderProcess] = set()
        self._closed = False

    def encode(self, group: RowGroupBytes) -> list[memoryview]:
        """The rows as batches, each in its own memory.

        Raises:
            InvalidError: the bytes contradict the footer. RetryError: the process ended. ClosedError.
        """
        return self._ask(lambda process: process.encode(group))

    def encode_unit(self, unit: UnitBytes, source: UnitSource) -> list[memoryview]:
        """As `encode_unit` of the module. Raises as `encode`."""
        return self._ask(lambda process: process.encode_unit(unit, source))

    def warm(self) -> None:
        """Start a process if there is none. It imports its libraries while the caller prepares its first request."""
        if not self.pids:
            self._give_back(self._take(), answered=True)

    def _ask(self, question: Callable[[_EncoderProcess], list[memoryview]]) -> list[memoryview]:
        try:
            return self._try(question)
        except _StarvedError:
            logger.info("encoder_starved", seconds=STARVED_S, hint="history is encoded beside other work for a minute")
            with self._lock:
                self._hurried_until_s = time.monotonic() + HURRIED_S
            return self._try(question)

    def _try(self, question: Callable[[_EncoderProcess], list[memoryview]]) -> list[memoryview]:
        process = self._take()
        # After an incomplete answer, the socket may still contain bytes. So only a process that gave a complete answer is used
        # again.
        answered = False
        try:
            batches = question(process)
            answered = True
            return batches
        except InvalidError:
            answered = True
            raise
        finally:
            self._give_back(process, answered)

    def _take(self) -> _EncoderProcess:
        children.collect()
        with self._lock:
            # A beginning takes most of a second of a core: one at a time, and none for what the one that begins does soon.
            self._lock.wait_for(self._is_at_rest, BEGIN_S)
            if self._closed:
                raise ClosedError(Reason.CLOSED, "the encoders were closed")
            gives_way = time.monotonic() >= self._hurried_until_s
            process = self._idle.pop() if self._idle else _EncoderProcess(gives_way)
            if not process.lives() or process.gives_way != gives_way:
                # The process ended while it was idle, or is of the other kind.
                process.end()
                process = _EncoderProcess(gives_way)
            self._busy.add(process)
            return process

    def _is_at_rest(self) -> bool:
        """True if a process is idle, or none begins."""
        return self._closed or bool(self._idle) or all(process.has_answered for process in self._busy)

    def _give_back(self, process: _EncoderProcess, answered: bool) -> None:
        with self._lock:
            self._busy.remove(process)
            self._lock.notify_all()
            if answered and not self._closed:
                self._idle.append(process)
                return
        process.end()

    def rest(self) -> None:
        """End all idle processes. The next request starts a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def close(self) -> None:
        """End all processes. Running work fails."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            for process in self._busy:
                process.interrupt()
        self.rest()

    @property
    def pids(self) -> list[int]:
        """The ids of all processes."""
        with self._lock:
            return [process.pid for process in (*self._idle, *self._busy)]


class _StarvedError(Exception):
    """A process that gives way gets no processor."""


class _EncoderProcess:
    """The broker's end of one process.

    Args:
        gives_way: all other processes get the processor first.
    """

    def __init__(self, gives_way: bool) -> None:
        kind = GIVES_WAY if gives_way else NICE
        try:
            process, ours = children.start("headgate.broker.engine.read.encoding", kind, environment=children.keeping(MEMORY_BYTES))
        except OSError as error:
            raise RetryError(Reason.OVERLOADED, f"no process to encode history could be begun: {error}") from error
        self._process: Popen[bytes] = process
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(SILENCE_S, 0))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(SILENCE_S, 0))
        self._socket = ours
        self._memory = Reader()
        self.gives_way = gives_way
        self.has_answered = False
        self._interrupted = False
        self._patience_s = children.KILLED_S
        self.pid = self._process.pid

    def encode(self, group: RowGroupBytes) -> list[memoryview]:
        footer = group.file.footer
        head = _GROUP.pack(
            group.size_bytes, group.base_offset, -1 if group.end_offset is None else group.end_offset, group.leader_epoch,
            group.index, group.codec, group.first_row, group.bytes_max,
        )  # fmt: skip
        return self._ask(False, head + footer, group.source if not isinstance(group.source, int) else [group.source])

    def encode_unit(self, unit: UnitBytes, source: UnitSource) -> list[memoryview]:
        return self._ask(True, msgspec.msgpack.encode(unit), source)

    def _ask(self, is_unit: bool, description: bytes, source: UnitSource) -> list[memoryview]:
        descriptors, data = ([], source) if isinstance(source, bytes | memoryview) else (source, b"")
        freed = msgspec.msgpack.encode(self._memory.freed())
        try:
            socket.send_fds(self._socket, [_REQUEST.pack(is_unit, len(freed), len(description), len(data))], descriptors)
            self._socket.sendall(freed + description)
            self._socket.sendall(data)
            if self.gives_way:
                self._wait()
            head, regions, _, _ = socket.recv_fds(self._socket, _ANSWER.size, REGIONS_MAX, socket.MSG_WAITALL)
            if not head:
                raise ConnectionResetError("the other end was closed")
            well, size = _ANSWER.unpack(head)
            self.has_answered = True
            answer = receive(self._socket, size)
            if not well:
                raise InvalidError(Reason.CORRUPT_MESSAGE, str(answer, "utf-8"))
            return self._memory.read(msgspec.msgpack.decode(answer, type=Answer), regions)
        except OSError as error:
            if self._interrupted:
                raise ClosedError(Reason.CLOSED, "the encoders were closed") from error
            silent = isinstance(error, BlockingIOError)
            what = f"said nothing for {SILENCE_S} s" if silent else f"ended: {self.kill()}"
            logger.error("encoder_ended", pid=self.pid, reason=what)
            raise RetryError(Reason.STORE_UNAVAILABLE, f"a process that encoded history {what}") from error

    def _wait(self) -> None:
        """Wait for the answer. Raises _StarvedError."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        began_s = now_s = time.monotonic()
        turns = Turns(self.pid, began_s)
        while now_s - began_s < SILENCE_S and not poll.poll(STARVED_S * 1000):
            now_s = time.monotonic()
            if turns.starves(now_s):
                self._patience_s = 0.0  # it also ends only when it gets the processor
                raise _StarvedError

    def lives(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """End the process while it works, because its answer is not needed any more."""
        self._interrupted = True
        self.kill()

    def kill(self) -> str:
        """Kill the process if it still runs. Returns how it ended. A thread that waits for its answer gets an error."""
        return children.kill(self._process, self._patience_s)

    def end(self) -> None:
        self._socket.close()
        self.kill()


def receive(end: socket.socket, size: int) -> memoryview:
    """Receive `size` bytes.

    Raises:
        ConnectionResetError: the other end was closed. BlockingIOError: no bytes arrived in time.
    """
    data: memoryview = new_memory(size).data
    at = 0
    while at < size:
        count = end.recv_into(data[at:], 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionResetError("the other end was closed")
        at += count
    return data.toreadonly()


# The following runs in the process.


def serve(end: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    from headgate.broker.log.parquet import read_footer

    parse = lru_cache(FILES_KEPT)(read_footer)
    memory = Writer()
    # A broker that is killed closes its end at any point of the work.
    with end, suppress(ConnectionError):
        while True:
            request, descriptors, _, _ = socket.recv_fds(end, _REQUEST.size, UNIT_FILES_MAX, socket.MSG_WAITALL)
            if not request:
                return
            is_unit, freed_bytes, description_bytes, data_bytes = _REQUEST.unpack(request)
            memory.free(msgspec.msgpack.decode(receive(end, freed_bytes), type=list[int]))
            description, data = bytes(receive(end, description_bytes)), receive(end, data_bytes)
            try:
                try:
                    if is_unit:
                        unit = msgspec.msgpack.decode(description, type=UnitBytes)
                        batches = encode_unit(unit, data if data_bytes else descriptors)
                    else:
                        batches = encode(_group_of(description, data if data_bytes else descriptors[0], parse))
                    answer, regions = memory.write(batches)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
            except InvalidError as error:
                message = error.message.encode()
                end.sendall(_ANSWER.pack(False, len(message)))
                end.sendall(message)
            else:
                where = msgspec.msgpack.encode(answer)
                socket.send_fds(end, [_ANSWER.pack(True, len(where))], regions)
                end.sendall(where)


def _group_of(description: bytes, source: memoryview | int, parse: Callable[[bytes, int], ExtentFile]) -> RowGroupBytes:
    size_bytes, base, end_offset, epoch, index, codec, first, bytes_max = _GROUP.unpack_from(description)
    file = parse(description[_GROUP.size :], size_bytes)
    behind = None if end_offset < 0 else end_offset
    return RowGroupBytes(file, size_bytes, index, source, base, epoch, Codec(codec), first, bytes_max, behind)


def main() -> None:
    """Encode for the broker at the other end of a socket. Arguments: the socket's descriptor, and GIVES_WAY or NICE."""
    # A terminal and a supervisor signal whole process groups. The broker may still need this process for its last answers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    without_pandas()
    # Its imports take most of a second of a core, at the same time on each broker when a gate opens: they give way as well. A
    # process that replaces one that starved imports first, for its reader has waited already.
    if sys.argv[2] == GIVES_WAY:
        give_way()
    for name in ("headgate.broker.log.column_encoder", "headgate.broker.log.adopted"):
        import_module(name)
    os.nice(NICENESS)
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
