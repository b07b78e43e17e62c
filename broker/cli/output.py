"""Output of commands: tables for a person at a terminal, tab-separated lines or JSON for a program, errors on one line."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.broker.cli import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from headgate.broker.client.address import Security, parse
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError, in_words

if TYPE_CHECKING:
    from rich.table import Table

_T = TypeVar("_T")

EXIT_FAILED = 1
EXIT_USAGE = 2
CONNECT_S = 12.0
"""Longest wait for a connection: one round trip of TCP, with up to 5 s of delay each way."""
ANSWER_S = 3.0
"""Wait for the first answer, before the user is told that the command waits `SILENCE_S` more."""
SILENCE_S = 20.0
"""Longest wait for an answer then: a broker may be busy or far away, but a stopped one never answers."""
WIDE_COLUMNS = 100_000
"""Width of a terminal on which any table fits: a console measures no table as wider than itself."""
HTTP2_SETTINGS = b"\x04"
HTTP2_FRAME_HEAD_BYTES = 9
TLS_ALERT = b"\x15\x03"
"""The first bytes of the answer of a port with TLS to a client without TLS."""
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + HTTP2_SETTINGS + bytes(5)
"""The first bytes of an HTTP/2 client, and its own empty SETTINGS frame."""

_HINTS = {
    Reason.UNKNOWN_TOPIC: "`headgate topic list` shows the topics, `headgate topic create` makes one",
    Reason.GROUP_ID_NOT_FOUND: "`headgate group list` shows the groups",
    Reason.NON_EMPTY_GROUP: "`headgate group describe` shows its members; one that died is dropped when its session ends",
    Reason.TOPIC_EXISTS: "`headgate topic describe` shows it; --if-not-exists makes this no error",
    Reason.OFFSET_OUT_OF_RANGE: "`headgate topic describe` shows the offsets that can be read",
    Reason.INVALID_CONFIG: "`headgate topic describe TOPIC --all` lists the settings",
    Reason.MESSAGE_TOO_LARGE: "`headgate topic alter NAME --set max.message.bytes=...` allows larger records",
    Reason.NOT_AUTHENTICATED: "log in with an address such as 'tls://HOST:9095?ca=ca.pem&user=NAME&password_file=FILE'",
    Reason.NOT_AUTHORIZED: "`headgate acl allow PRINCIPAL OPERATION RESOURCE NAME`, by an administrator, allows it",
    Reason.STORE_FULL: "free some space in the store",
    Reason.STORE_UNAVAILABLE: "the broker's log says why the store does not answer",
}


class ReaderLeft(Exception):
    """The reader of our output has gone (`headgate consume ... | head`): the command ends without an error."""


class SomeFailedError(Exception):
    """The action failed for some of several names; it succeeded for the others."""

    def __init__(self, errors: Sequence[InvalidError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors


async def each(names: Sequence[str], work: Callable[[str], Awaitable[_T]]) -> tuple[list[_T], list[InvalidError]]:
    """Do the same for several names. A wrong name does not stop the names behind it.

    Returns:
        The results of the successful names, and the errors of the others: for `tell_of`.
    """
    found: list[_T] = []
    errors: list[InvalidError] = []
    for name in names:
        try:
            found.append(await work(name))
        except InvalidError as error:
            errors.append(error)
    return found, errors


def tell_of(errors: Sequence[InvalidError]) -> None:
    """End the command with these errors, if there are any. Raises SomeFailedError."""
    if errors:
        raise SomeFailedError(errors)


async def delete_each(kind: str, names: Sequence[str], delete: Callable[[str], Awaitable[object]]) -> None:
    """Delete things of a kind, with a line for each. Raises SomeFailedError."""

    async def delete_one(name: str) -> None:
        await delete(name)
        print_line(f"{kind} {name} deleted")

    _, errors = await each(names, delete_one)
    tell_of(errors)


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's asynchronous part. Ctrl-C cancels it, and it may clean up.

    Raises ReaderLeft, HeadgateError, KeyboardInterrupt.
    """
    try:
        return asyncio.run(work)
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error  # the command cancelled itself, on SIGTERM
    except BrokenPipeError as error:
        raise ReaderLeft from error  # not under its own name: typer would make it an exit with code 1


def check_reachable(cluster: str) -> None:
    """Find out quickly whether a gRPC server answers, instead of retrying until a time-out.

    Raises:
        RetryError: no process listens at any of the addresses, or the listening one does not answer.
        InvalidError: not an address, not the address of a gRPC server, or TLS fails.
    """
    parsed = parse(cluster)
    reasons: list[str] = []
    silent: dict[socket.socket, str] = {}
    with ExitStack() as opened:
        for address in parsed.brokers:
            host, _, port = address.rpartition(":")
            try:
                connection = opened.enter_context(socket.create_connection((host.strip("[]"), int(port)), CONNECT_S))
            except (socket.gaierror, UnicodeError) as error:
                # Python encodes a name that no name service can know, such as one with an empty part.
                why = str(getattr(error, "strerror", None) or "not a name").lower()
                reasons.append(f"the host `{host}` is not found ({why})")
                continue
            except OSError as error:
                reasons.append("no broker listens there: " + in_words(error))
                continue
            try:
                if parsed.security is not None:
                    connection = opened.enter_context(_with_tls(connection, host.strip("[]"), parsed.security, address))
                connection.settimeout(ANSWER_S)
                answer = _first_answer(connection)
            except TimeoutError:
                silent[connection] = address
                continue
            if answer[:2] == TLS_ALERT:
                raise InvalidError(Reason.INVALID_REQUEST, f"what listens there speaks TLS: write tls://. cluster=`{cluster}`")
            if not answer:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    "what listens there closes the connection without an answer: a broker that starts, ends or has too many "
                    "connections, one that speaks TLS (tls://), or no gRPC port, which is 9095 unless you chose another. "
                    f"cluster=`{cluster}`",
                )
            if answer[3:4] != HTTP2_SETTINGS:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"what listens there is no gRPC port, which is 9095 unless you chose another. cluster=`{cluster}`",
                )
            return
        if not silent:
            raise RetryError(Reason.CLOSED, f"{reasons[0]}. cluster=`{cluster}`")
        fail(f"{', '.join(silent.values())} takes the connection and says nothing: waiting {SILENCE_S:g} s more")
        if not select.select(list(silent), [], [], SILENCE_S)[0]:
            raise RetryError(
                Reason.NOT_READY, f"a broker listens there and does not answer: it is stopped, or far too busy. cluster=`{cluster}`"
            )


def _with_tls(connection: socket.socket, host: str, security: Security, address: str) -> ssl.SSLSocket:
    """The connection with TLS. Raises InvalidError with the fault of a certificate."""
    try:
        return security.context().wrap_socket(connection, server_hostname=host)
    except ssl.SSLError as error:
        text = getattr(error, "verify_message", "").rstrip(".") or (error.reason or str(error)).lower().replace("_", " ")
        raise InvalidError(Reason.INVALID_REQUEST, f"TLS with the broker fails: {text}. address=`{address}`") from error


def _first_answer(connection: socket.socket) -> bytes:
    """The server's first bytes; for HTTP/2 a SETTINGS frame (RFC 9113, section 3.4). Raises TimeoutError."""
    try:
        connection.sendall(HTTP2_PREFACE)
        return connection.recv(HTTP2_FRAME_HEAD_BYTES)
    except TimeoutError:
        raise
    except OSError:
        return b""


def error_line(error: HeadgateError, command: str) -> str:
    """The error and its remedy, on one line."""
    hint = _HINTS.get(error.reason) if error.reason is not Reason.INVALID_CONFIG or " topic" in command else None
    if error.reason is Reason.UNKNOWN_TOPIC and " partition=`" in error.message:
        hint = "`headgate topic describe` shows the partitions"
    if error.reason in (Reason.CLOSED, Reason.TIMED_OUT):
        hint = "start one with `headgate up`, or give its address with --cluster HOST:GRPC_PORT or HEADGATE_CLUSTER"
    return " ".join(error.message.split()) + (f" ({hint})" if hint else "")


def escaped(text: str, keep: str = "") -> str:
    """Text without control characters except those of `keep`: any client can choose names, and they must not control a terminal."""
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def fail(text: str, command: str = "headgate") -> None:
    """Print one line to stderr."""
    sys.stderr.write(escaped(f"{command}: {text}") + "\n")
    sys.stderr.flush()


def tell_outage(command: str, error: RetryError | None) -> None:
    """Report on stderr that no broker answers any more, or (None) that one answers again: `on_outage` of a command's client."""
    if error is None:
        fail("a broker answers again", command)
    else:
        fail(f"no broker answers, still trying: {' '.join(error.message.split())}", command)


def print_line(text: str = "") -> None:
    """Print one line to stdout."""
    sys.stdout.write(escaped(text) + "\n")


def print_json(value: object) -> None:
    """Print a value as JSON: indented for a person, on one line for a program."""
    sys.stdout.write(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False) + "\n")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    numeric: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a table: drawn on a terminal, otherwise tab-separated behind a line of column names.

    Args:
        numeric: columns that are aligned to the right.
        optional: columns that a narrow terminal does not show, the least important first.
    """
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            sys.stdout.write("\t".join(escaped(str(cell)) for cell in row) + "\n")
        return
    from rich.console import Console

    console, wide = Console(), Console(width=WIDE_COLUMNS)
    left_out: set[str] = set()
    for name in (*optional, None):
        kept = [number for number, column in enumerate(columns) if column not in left_out]
        table = drawn_table(
            [columns[number] for number in kept], [[row[number] for number in kept] for row in rows], title=title, numeric=numeric
        )
        if name is None or wide.measure(table).maximum <= console.width:
            break
        left_out.add(name)
    console.print(table)


def drawn_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", numeric: Sequence[str] = ()) -> Table:
    """The table as drawn on a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(str(cell))) for cell in row))
    return table


def size(count: int | float) -> str:
    """Bytes for a person: ``1.5 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(ms: int) -> str:
    """A time for a person: ``3d 4h``, ``12.3 s``."""
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m {int(seconds % 60)}s"


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2 records``, ``1,234 records``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
