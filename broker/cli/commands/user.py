"""``headgate user``: users and their passwords."""

from __future__ import annotations

import getpass
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json
from headgate.broker.client.access_admin import AccessAdmin
from headgate.broker.runtime import secret_files
from headgate.broker.runtime.errors import InvalidError, Reason

app = typer.Typer(rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
PasswordFile = Annotated[
    str | None, typer.Option("--password-file", metavar="FILE", help="File with the password; - is standard input. Default: ask.")
]


@app.command("create")
def create_user(
    name: Name,
    cluster: Cluster = DEFAULT_CLUSTER,
    password_file: PasswordFile = None,
    superuser: Annotated[bool, typer.Option("--superuser", help="May do everything.")] = False,
) -> None:
    """Create a user. It may do nothing until `headgate acl allow` or --superuser lets it."""
    output.check_reachable(cluster)
    password = new_password(password_file)

    async def create() -> None:
        async with AccessAdmin(cluster) as admin:
            await admin.create_user(name, password, superuser=superuser)
        output.print_line(f"user {name} created{', may do everything' if superuser else ''}")

    output.run(create())


@app.command("password")
def set_password(name: Name, cluster: Cluster = DEFAULT_CLUSTER, password_file: PasswordFile = None) -> None:
    """Change a user's password. Connections that exist stay logged in."""
    output.check_reachable(cluster)
    password = new_password(password_file)

    async def change() -> None:
        async with AccessAdmin(cluster) as admin:
            await admin.set_password(name, password)
        output.print_line(f"password of {name} changed")

    output.run(change())


@command(app, "delete")
async def delete_user(name: Name, cluster: Cluster = DEFAULT_CLUSTER) -> None:
    """Delete a user. Its rules stay: `headgate acl remove --principal User:NAME` removes them."""
    async with AccessAdmin(cluster) as admin:
        await admin.delete_user(name)
    output.print_line(f"user {name} deleted")


@command(app, "list")
async def list_users(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the users."""
    async with AccessAdmin(cluster) as admin:
        users = await admin.users()
    if json:
        output.print_json([asdict(user) for user in users])
        return
    rows = [(user.name, "yes" if user.superuser else "", ", ".join(user.mechanisms), _day(user.created_ms)) for user in users]
    output.print_table(("user", "superuser", "logs in by", "created"), rows)


def new_password(path: str | None) -> str:
    """The password in a file, on standard input (``-``), or typed twice. Raises InvalidError."""
    if path is None:
        if not sys.stdin.isatty():
            raise InvalidError(Reason.INVALID_REQUEST, "there is no terminal to ask for the password: use --password-file")
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise InvalidError(Reason.INVALID_REQUEST, "the passwords differ")
        return password
    try:
        if path == "-":
            return sys.stdin.readline().rstrip("\n")
        secret_files.check(path)
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"the password cannot be read. path=`{path}`") from error


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d") if ms else ""
