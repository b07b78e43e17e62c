"""The work of `headgate user` and `headgate acl`."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from headgate.broker.cli import output
from headgate.broker.client.access_admin import AccessAdmin, Acl
from headgate.broker.cluster.acl import spelled
from headgate.broker.runtime import secret_files
from headgate.broker.runtime.errors import InvalidError, Reason


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


async def create_user(cluster: str, name: str, password: str, superuser: bool) -> None:
    async with AccessAdmin(cluster) as admin:
        await admin.create_user(name, password, superuser=superuser)
    output.print_line(f"user {name} created{', may do everything' if superuser else ''}")


async def set_password(cluster: str, name: str, password: str) -> None:
    async with AccessAdmin(cluster) as admin:
        await admin.set_password(name, password)
    output.print_line(f"password of {name} changed")


async def delete_user(cluster: str, name: str) -> None:
    async with AccessAdmin(cluster) as admin:
        await admin.delete_user(name)
    output.print_line(f"user {name} deleted")


async def list_users(cluster: str, json: bool) -> None:
    async with AccessAdmin(cluster) as admin:
        users = await admin.users()
    if json:
        output.print_json([asdict(user) for user in users])
        return
    rows = [(user.name, "yes" if user.superuser else "", ", ".join(user.mechanisms), _day(user.created_ms)) for user in users]
    output.print_table(("user", "superuser", "logs in by", "created"), rows)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d") if ms else ""


async def add_acls(cluster: str, permission: str, principal: str, operations: str, resource: str, name: str, host: str) -> None:
    """Add a rule for each operation. A name that ends with `*` is a prefix."""
    name, pattern = spelled(resource, name)
    acls = [
        Acl(
            resource=resource,
            name=name,
            pattern=pattern,
            principal=principal,
            host=host,
            operation=operation.strip(),
            permission=permission,
        )
        for operation in operations.split(",")
        if operation.strip()
    ]
    async with AccessAdmin(cluster) as admin:
        await admin.add_acls(acls)
    _print(acls, False)


def chosen(resource: str, name: str, principal: str) -> Acl:
    """A filter."""
    return Acl(resource=resource, name=name, principal=principal)


def filter_or_all(resource: str, name: str, principal: str, every: bool) -> Acl:
    """A filter. Raises InvalidError for an empty one, unless all rules are meant."""
    if every == bool(resource or name or principal):
        raise InvalidError(Reason.INVALID_REQUEST, "give --resource, --name or --principal, or --all for all rules")
    return chosen(resource, name, principal)


async def list_acls(cluster: str, wanted: Acl, json: bool) -> None:
    async with AccessAdmin(cluster) as admin:
        _print(await admin.acls(wanted), json)


async def remove_acls(cluster: str, wanted: Acl, json: bool) -> None:
    async with AccessAdmin(cluster) as admin:
        _print(await admin.remove_acls(wanted), json)


def _print(acls: Sequence[Acl], json: bool) -> None:
    if json:
        output.print_json([asdict(acl) for acl in acls])
        return
    rows = [
        (
            acl.permission,
            acl.principal,
            acl.operation,
            acl.resource,
            acl.name + ("*" if acl.pattern == "prefixed" else ""),
            "" if acl.host == "*" else acl.host,
        )
        for acl in acls
    ]
    output.print_table(("rule", "principal", "operation", "resource", "name", "from"), rows)
