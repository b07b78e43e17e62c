"""`headgate user`: its commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json

app = typer.Typer(help="Create, list and delete users, and change passwords.", rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
PasswordFile = Annotated[
    str | None, typer.Option("--password-file", metavar="FILE", help="File with the password; - is standard input. Default: ask.")
]


@app.command("create")
def user_create(
    name: Name,
    cluster: Cluster = DEFAULT_CLUSTER,
    password_file: PasswordFile = None,
    superuser: Annotated[bool, typer.Option("--superuser", help="May do everything.")] = False,
) -> None:
    """Create a user. It may do nothing until `headgate acl allow` or --superuser lets it."""
    from headgate.broker.cli import access

    output.check_reachable(cluster)
    output.run(access.create_user(cluster, name, access.new_password(password_file), superuser))


@app.command("password")
def user_password(name: Name, cluster: Cluster = DEFAULT_CLUSTER, password_file: PasswordFile = None) -> None:
    """Change a user's password. Connections that exist stay logged in."""
    from headgate.broker.cli import access

    output.check_reachable(cluster)
    output.run(access.set_password(cluster, name, access.new_password(password_file)))


@app.command("delete")
def user_delete(name: Name, cluster: Cluster = DEFAULT_CLUSTER) -> None:
    """Delete a user. Its rules stay: `headgate acl remove --principal User:NAME` removes them."""
    from headgate.broker.cli import access

    output.check_reachable(cluster)
    output.run(access.delete_user(cluster, name))


@app.command("list")
def user_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the users."""
    from headgate.broker.cli import access

    output.check_reachable(cluster)
    output.run(access.list_users(cluster, json))
