"""The command line for people: its groups of commands, and the errors of all commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated

import typer
import typer.completion
import typer.core
import typer.main
from typer.exceptions import TyperException

from headgate.broker.cli import output, plain_help
from headgate.broker.cli.command import Later
from headgate.broker.cli.options import bad_option
from headgate.broker.cli.version import version_line
from headgate.broker.runtime.errors import HeadgateError, Reason

TRACEBACK = "HEADGATE_TRACEBACK"
"""Name of an environment variable: if it is set, an unexpected error is shown with its traceback, for a bug report."""

COMPLETE = "_HEADGATE_COMPLETE"
"""Name of the environment variable with which a shell asks for completions; typer's name for a program called headgate."""

app = typer.Typer(
    help="Headgate: a message queue for floods. `headgate up` runs a local broker; point any Kafka client at 127.0.0.1:9092.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_COMMANDS = {
    "cluster": {
        "up": "Run a local cluster until Ctrl-C.",
        "init": "Make a new cluster in an empty store, and print its id.",
        "broker": "Run one broker process: fleets start this command.",
        "health": "Ask the broker of this machine whether it serves clients, for health checks.",
    },
    "status": {"status": "Show the cluster: its brokers, segments and topics, their traffic, and the leader's latest decisions."},
    "drain": {"drain": "Move all segments of a broker to the others, and give it none until it is started again."},
    "produce": {"produce": "Write one record per line, from files or standard input."},
    "consume": {"consume": "Print records as they arrive, until Ctrl-C."},
    "sql": {"sql": "Query topics with SQL: each topic is a table."},
    "dagster": {
        "demo": "Show a flood of real flights: Dagster, Spark, brokers from 1 to 3 to 1, live traffic throughout.",
        "ui": "Run Dagster's page and daemon for your floods until Ctrl-C.",
    },
}
"""By module in broker/cli/commands/: the commands in it, with the first sentence of each."""
_GROUPS = {
    "topic": "Create, list, describe, alter and delete topics.",
    "group": "List, describe, reset and delete consumer groups.",
    "segment": "List segments; split, merge and move them by hand.",
    "capacity": "Reserve brokers: open, renew, release, list; show the planned number.",
    "gate": "Gates, for history by reference: open, fill, renew, release, list, describe.",
    "flood": "Bring history into a topic by reference, with Spark; prove that it is there.",
    "user": "Create, list and delete users, and change passwords.",
    "acl": "Say who may do what: Kafka's ACLs, and the same for gates, files and capacity.",
    "quota": "Limit how much clients may produce and fetch.",
    "store": "Look into a store: is it whole, who uses it, and what goes next. Changes nothing; brokers may run.",
    "profile": "Name clusters, and choose the one that commands use.",
}
"""Groups of commands, each a module in broker/cli/commands/ of the same name."""


@cache
def command() -> typer.core.TyperGroup:
    """The command `headgate`, with all others. Their modules are not imported yet."""
    root = typer.main.get_group(app)
    for module, texts in (*_COMMANDS.items(), *((name, {name: text}) for name, text in _GROUPS.items())):
        for name, text in texts.items():
            root.add_command(Later(name, module, text))
    plain_help.plain(root)
    return root


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code; every error is one line on stderr."""
    _open_closed_streams()
    given = _cluster_first(list(arguments))
    if not given or (len(given) == 1 and given[0] in _GROUPS):
        given.append("--help")
    words = " ".join(["headgate", *_command_words(given)])
    if COMPLETE in os.environ:
        typer.completion.get_completion_inspect_parameters()  # teaches typer the shells
    try:
        code = command()(given, prog_name="headgate", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = words if context is None else context.command_path
        output.fail(f"{' '.join(error.format_message().split())} (see `{path} --help`)", path)
        return output.EXIT_USAGE
    except (HeadgateError, output.SomeFailedError) as error:
        _drop_closed_output()
        errors = error.errors if isinstance(error, output.SomeFailedError) else (error,)
        for line in errors:
            output.fail(output.error_line(line, words), words)
        return output.EXIT_USAGE if all(error.reason is Reason.INVALID_REQUEST for error in errors) else output.EXIT_FAILED
    except (typer.Abort, KeyboardInterrupt):
        _drop_closed_output()
        return output.EXIT_INTERRUPTED
    except (output.ReaderLeft, BrokenPipeError):
        _drop_closed_output()
        return 0
    except OSError as error:
        output.fail(str(error).lower(), words)
        return output.EXIT_FAILED
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and any(error.object in argument for argument in given):
            output.fail(f"an argument is not UTF-8. value=`{error.object}`", words)
            return output.EXIT_USAGE
        if os.environ.get(TRACEBACK):
            raise
        output.fail(f"unexpected error: {type(error).__name__}: {error} ({TRACEBACK}=1 shows where)", words)
        return output.EXIT_FAILED
    return code if isinstance(code, int) else 0


def _cluster_first(arguments: list[str]) -> list[str]:
    """Move --cluster and --profile from between the two words of a command to its front: `headgate topic --cluster X list`."""
    if len(arguments) > 1 and arguments[0] in _GROUPS and arguments[1].partition("=")[0] in ("--cluster", "--profile"):
        count = 1 if "=" in arguments[1] else 2
        return [*arguments[1 : 1 + count], arguments[0], *arguments[1 + count :]]
    return arguments


def _command_words(arguments: Sequence[str]) -> list[str]:
    while arguments and arguments[0].partition("=")[0] in ("--cluster", "--profile"):
        arguments = arguments[1 if "=" in arguments[0] else 2 :]
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
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="HOST:GRPC_PORT", help="The cluster of the command; also behind the command.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", envvar="HEADGATE_PROFILE", metavar="NAME", help="The cluster of a profile (`headgate profile`)."),
    ] = None,
) -> None:
    pass


@app.command()
def completion(context: typer.Context, shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell.")]) -> None:
    """Print the completion script of a shell. For bash: add `eval "$(headgate completion bash)"` to ~/.bashrc."""
    if shell not in ("bash", "zsh", "fish"):
        raise bad_option("shell", shell, "bash, zsh or fish")
    typer.completion.show_callback(context, context.command.params[0], shell)
