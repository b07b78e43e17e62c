"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from headgate.broker.cli import profiles
from headgate.broker.runtime.config import Settings, Value, parse_duration_ms
from headgate.broker.runtime.errors import InvalidError, Reason

DEFAULT_CLUSTER = "127.0.0.1:9095"
LONGEST_TTL_MS = 7 * 86_400_000
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
"""Largest numbers that requests can hold. The cluster decides which numbers are sensible."""


def chosen_cluster(context: typer.Context, value: str) -> str:
    """The cluster of a command: its option, the option before the command, --profile, HEADGATE_CLUSTER, the profile in use, or the
    default; the first that is given."""
    if context.resilient_parsing:  # completion: nothing is asked
        return value
    source = context.get_parameter_source("cluster")
    given = context.find_root().params
    if source is not None and source.name == "COMMANDLINE":
        return value
    if given.get("cluster"):
        return str(given["cluster"])
    if given.get("profile"):
        return profiles.load().cluster(str(given["profile"]))
    if source is not None and source.name == "ENVIRONMENT":
        return value
    known = profiles.load()
    return known.cluster(known.current) if known.current else value


Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar="HEADGATE_CLUSTER",
        metavar="HOST:GRPC_PORT",
        help="Any broker, or several separated by commas.",
        callback=chosen_cluster,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
GroupIds = Annotated[list[str], typer.Argument(metavar="GROUP...", help="One or more groups.")]
SegmentId = Annotated[
    int, typer.Argument(metavar="SEGMENT", min=0, max=INT64_MAX, help="The number that `headgate segment list` shows.")
]
ReservationId = Annotated[str, typer.Argument(metavar="RESERVATION", help="The id that `headgate capacity list` shows.")]
GateId = Annotated[str, typer.Argument(metavar="GATE", help="The id that `headgate gate list` shows.")]
NewTtl = Annotated[str | None, typer.Option("--ttl", metavar="DURATION", help="New time to live. Default: unchanged.")]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="One or more topics.")]


def given_settings(
    named: Mapping[str, str | None], others: Sequence[str] = (), defaults: Mapping[str, Value] | None = None
) -> Settings:
    """A broker's settings from options with names of settings, other arguments, and the environment.

    Raises InvalidError with INVALID_REQUEST: a wrong setting is a usage error here. A cluster may refuse a topic's setting although
    the command was right.
    """
    arguments = [part for name, value in named.items() if value is not None for part in (name, value)]
    try:
        return Settings.load([*arguments, *others], os.environ, defaults)
    except InvalidError as error:
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error


def owner_name() -> str:
    """The default owner of reservations: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def named_pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """The values of a repeated option ``NAME=VALUE``, by name. Raises InvalidError, also for a repeated name."""
    pairs: dict[str, str] = {}
    for name, value in split_pairs(option, given):
        if name in pairs:
            raise bad_option(option, f"{name}={value}", "each name once")
        pairs[name] = value
    return pairs


def split_pairs(option: str, given: Sequence[str] | None) -> list[tuple[str, str]]:
    """The names and values of a repeated option ``NAME=VALUE``, in their order. Raises InvalidError."""
    pairs: list[tuple[str, str]] = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise bad_option(option, text, "NAME=VALUE")
        pairs.append((name, value))
    return pairs


def duration_ms(option: str, text: str, high_ms: int) -> int:
    """The duration that an option gives, in ms. Raises InvalidError for another text and for a longer duration."""
    ms = parse_duration_ms(text)
    if ms is None or ms > high_ms:
        raise bad_option(option, text, f"a duration up to {high_ms // 1000}s, such as 500ms")
    return ms


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person at a terminal; end the command if the answer is no. `yes`: do not ask."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm(question, abort=True)


def separator_bytes(text: str | None) -> bytes | None:
    r"""The separator between key and value: the given text, with ``\t`` for a tab."""
    return None if text is None else os.fsencode(text.replace("\\t", "\t"))


def bad_option(option: str, value: str, expected: str) -> InvalidError:
    """The error for an option whose value is wrong."""
    return InvalidError(Reason.INVALID_REQUEST, f"option has a wrong value, expected {expected}. option=`{option}` value=`{value}`")
