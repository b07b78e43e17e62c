"""The command line for people: its groups of commands, and the errors of all commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from headgate.broker.cli import output
from headgate.broker.cli.commands import capacity, cluster, dagster, flood, gate, group, records, segment, store, topic, verify
from headgate.broker.cli.version import version_line
from headgate.broker.runtime.errors import HeadgateError, Reason

TRACEBACK = "HEADGATE_TRACEBACK"
"""Name of an environment variable: if it is set, an unexpected error is shown with its traceback, for a bug report."""

app = typer.Typer(
    help="Headgate: a message queue for floods. `headgate up` runs a local broker; point any Kafka client at 127.0.0.1:9092.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_GROUPS = {
    "topic": topic, "group": group, "segment": segment, "capacity": capacity, "gate": gate, "flood": flood,
    "store": store, "verify": verify,
}  # fmt: skip
"""By name: the module of a group of commands."""

for _module in (cluster, records, dagster):
    app.add_typer(_module.app)
for _name, _module in _GROUPS.items():
    app.add_typer(_module.app, name=_name)


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code; every error is one line on stderr."""
    _open_closed_streams()
    given = list(arguments)
    if not given or (len(given) == 1 and given[0] in _GROUPS):
        given.append("--help")
    command = " ".join(["headgate", *_command_words(given)])
    try:
        code = app(given, prog_name="headgate", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = command if context is None else context.command_path
        output.fail(f"{' '.join(error.format_message().split())} (see `{path} --help`)", path)
        return output.EXIT_USAGE
    except (HeadgateError, output.SomeFailedError) as error:
        _drop_closed_output()
        errors = error.errors if isinstance(error, output.SomeFailedError) else (error,)
        for one in errors:
            output.fail(output.error_line(one, command), command)
        return output.EXIT_USAGE if all(one.reason is Reason.INVALID_REQUEST for one in errors) else output.EXIT_FAILED
    except (typer.Abort, KeyboardInterrupt):
        _drop_closed_output()
        return output.EXIT_INTERRUPTED
    except (output.ReaderLeft, BrokenPipeError):
        _drop_closed_output()
        return 0
    except OSError as error:
        output.fail(str(error).lower(), command)
        return output.EXIT_FAILED
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and any(error.object in argument for argument in given):
            output.fail(f"an argument is not UTF-8. value=`{error.object}`", command)
            return output.EXIT_USAGE
        if os.environ.get(TRACEBACK):
            raise
        output.fail(f"unexpected error: {type(error).__name__}: {error} ({TRACEBACK}=1 shows where)", command)
        return output.EXIT_FAILED
    return code if isinstance(code, int) else 0


def _command_words(arguments: Sequence[str]) -> list[str]:
    words = [word for word in arguments[:2] if not word.startswith("-")]
    if words and words[0] in _GROUPS:
        return words[:2]
    return words[:1] if words and arguments[0] == words[0] else []


def _open_closed_streams() -> None:
    """Replace streams that the caller has closed (`<&-`) by /dev/null. Otherwise the next opened files would get their
    descriptors."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode))


def _drop_closed_output() -> None:
    """Discard unwritten output if the reader of stdout has gone: Python flushes stdout once more when it ends, and would fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(value: bool) -> None:
    if value:
        output.print_line(version_line())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit.")] = False,
) -> None:
    pass
