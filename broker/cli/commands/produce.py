"""``headgate produce``: one record per line."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, TopicName, bad_option, separator_bytes, split_pairs
from headgate.broker.cli.record_format import Headers, parse_json
from headgate.broker.client import Admin, Delivery, Producer
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, in_words

COMMAND = "headgate produce"
READ_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
"""A longer line is an error: no record can be that large, and the line would only fill the memory."""
INTERRUPTED_S = 5.0
"""Time that the brokers have to ack the lines before Ctrl-C, or before an invalid line."""
STANDARD_INPUT = "-"

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class Format:
    """The rules that make a record from a line.

    `key_separator`: the bytes between key and value; None: no key. `null_value`: the value that is written as null (a
    tombstone). `headers` and `partition`: for every record.
    """

    key_separator: bytes | None
    null_value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    json: bool = False

    def record(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None, Headers, int | None]:
        """(key, value, headers, time in ms or None) of the line. Raises InvalidError."""
        if self.json:
            key, value, headers, timestamp_ms = parse_json(line, number)
            return key, value, headers + self.headers, timestamp_ms
        return *self.split(line, number), self.headers, None

    def split(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        """(key, value) of the line. Raises InvalidError if the key separator is missing."""
        key, value = None, line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                raise InvalidError(
                    Reason.INVALID_RECORD,
                    f"line has no key separator. line=`{number}` separator=`{self.key_separator.decode(errors='replace')}`",
                )
        return key, None if value == self.null_value else value


class Tally:
    """Outcome of the records. The first refused record is reported at once; the others are still written."""

    def __init__(self) -> None:
        self.sent = 0
        self.written = 0
        self._told = False

    def watch(self, delivery: asyncio.Future[Delivery], line: int) -> None:
        """Count the record of a line that was sent, and later that it is durable."""
        self.sent += 1
        delivery.add_done_callback(partial(self._done, line))

    def _done(self, line: int, delivery: asyncio.Future[Delivery]) -> None:
        if delivery.cancelled():
            return
        error = delivery.exception()
        if error is None:
            self.written += 1
        elif isinstance(error, HeadgateError) and error.reason is not Reason.CLOSED and not self._told:
            # CLOSED: the command was interrupted, and reports the number of written records at its end.
            self._told = True
            output.fail(f"a record was refused: {output.error_line(error, COMMAND)} line=`{line}`", COMMAND)


@command(app, "produce")
def produce(
    topic: TopicName,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Files to read; - and the default: standard input.")
    ] = None,
    cluster: Cluster = DEFAULT_CLUSTER,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="A line is KEY<TEXT>VALUE; \\t is a tab.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for every record; may be repeated.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: chosen by key; without a key in turn.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    null_value: Annotated[
        str | None, typer.Option("--null-value", metavar="TEXT", help="A line with this value is written as a tombstone.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="A line is a JSON object as `consume --json` prints it: key, value, headers, timestamp_ms."),
    ] = False,
) -> Coroutine[Any, Any, int]:
    """Write one record per line, from files or standard input. Counts the records that are durable."""
    if compression not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise bad_option("--compression", compression, "none, gzip, snappy, lz4 or zstd")
    headers = tuple((name, os.fsencode(value)) for name, value in split_pairs("--header", header))
    separator = separator_bytes(key_separator)
    if separator == b"":
        raise bad_option("--key-separator", "", "at least one character")
    if json and (separator is not None or null_value is not None):
        raise InvalidError(Reason.INVALID_REQUEST, "--json has key and null itself: give no --key-separator and no --null-value")
    line_format = Format(separator, None if null_value is None else os.fsencode(null_value), headers, partition, json)
    return _produce_lines(cluster, topic, files or [], line_format, compression)


async def _produce_lines(cluster: str, topic: str, files: Sequence[Path], line_format: Format, compression: str) -> int:
    """Write every line of the files, or of standard input, and report the number on stderr.

    Returns the exit code: 1 if records were refused.
    """
    paths = [str(path) for path in files] or [STANDARD_INPUT]
    sources = [_open(path) for path in paths]
    # SIGTERM, like Ctrl-C, ends the reading; lines read before are still written.
    task = asyncio.current_task()
    assert task is not None, "this is a coroutine"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    tally = Tally()
    bar, advance = _progress(sources)
    try:
        with bar:
            outage = partial(output.tell_outage, "produce")
            async with Producer(cluster, compression=compression, linger_ms=20, on_outage=outage) as producer:
                try:
                    await _send_all(producer, topic, sources, line_format, tally, advance)
                except (asyncio.CancelledError, InvalidError):
                    # Every line before the end of the reading is written, at any point of the reading.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(INTERRUPTED_S):
                            await producer.flush()
                    raise
                await producer.flush()
        if not tally.sent:
            async with Admin(cluster) as admin:
                await admin.describe_topic(topic)  # an empty input has shown no wrong name yet
    finally:
        for source in sources:
            if source != 0:
                os.close(source)
        if tally.sent:
            of_all = "" if tally.written == tally.sent else f" of {tally.sent:,}"
            output.fail(f"{tally.written:,}{of_all} {'record' if tally.sent == 1 else 'records'} written to {topic}", "produce")
    return 0 if tally.written == tally.sent else output.EXIT_FAILED


async def _send_all(
    producer: Producer, topic: str, sources: Sequence[int], line_format: Format, tally: Tally, advance: Callable[[int], None]
) -> None:
    read_bytes = 0
    for source in sources:
        number = 0
        async for lines in _lines(source):
            for line in lines:
                number += 1
                key, value, headers, timestamp_ms = line_format.record(line.removesuffix(b"\r"), number)
                delivery = await producer.send(
                    topic, value, key=key, headers=headers, partition=line_format.partition, timestamp_ms=timestamp_ms
                )
                tally.watch(delivery, number)
                read_bytes += len(line) + 1
            advance(read_bytes)


def _open(path: str) -> int:
    if path == STANDARD_INPUT:
        return 0
    try:
        if Path(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"file cannot be read: {in_words(error)}. path=`{path}`") from error


async def _lines(source: int) -> AsyncIterator[list[bytes]]:
    """The lines of a file without their ends, as many at a time as are available."""
    loop = asyncio.get_running_loop()
    # Ordinary files are always readable, and the event loop refuses to wait for them.
    mode = os.fstat(source).st_mode
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(source)
    rest: list[bytes] = []
    rest_bytes = 0
    while True:
        if waits:
            await _readable(loop, source)
        piece = os.read(source, READ_BYTES)
        if not piece:
            break
        *lines, last = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*rest, lines[0]])
            rest, rest_bytes = [], 0
            yield lines
        if last:
            rest.append(last)
            rest_bytes += len(last)
            if rest_bytes > LINE_BYTES_MAX:
                raise InvalidError(Reason.MESSAGE_TOO_LARGE, f"line is too long for a record. size_bytes_max=`{LINE_BYTES_MAX}`")
    if rest:
        yield [b"".join(rest)]


async def _readable(loop: asyncio.AbstractEventLoop, source: int) -> None:
    """Wait until the input is readable, or at its end."""
    ready = loop.create_future()
    loop.add_reader(source, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(source)


def _progress(sources: Sequence[int]) -> tuple[AbstractContextManager[object], Callable[[int], None]]:
    """A bar on stderr, if stderr is a terminal and the input is not; and the function that moves it to a number of bytes."""
    if not sys.stderr.isatty() or any(os.isatty(source) for source in sources):
        return nullcontext(), lambda done: None
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    modes = [os.fstat(source) for source in sources]
    total = sum(mode.st_size for mode in modes) if all(stat.S_ISREG(mode.st_mode) for mode in modes) else None
    bar = Progress(
        TextColumn("produce"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
    task = bar.add_task("produce", total=total)
    return bar, lambda done: bar.update(task, completed=done)
