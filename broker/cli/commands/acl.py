"""``headgate acl``: rules about what users may do."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json
from headgate.broker.client.access_admin import AccessAdmin, Acl
from headgate.broker.cluster.acl import spelled
from headgate.broker.runtime.errors import InvalidError, Reason

app = typer.Typer(rich_markup_mode=None)
RESOURCES = "topic, group, cluster, transactional_id, gate, file, capacity or broker"
OPERATIONS = (
    "read, write, create, delete, alter, describe, cluster_action, describe_configs, alter_configs, idempotent_write or all"
)

Principal = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:NAME, or User:* for everyone.")]
Operations = Annotated[str, typer.Argument(metavar="OPERATION", help=f"{OPERATIONS}; several separated by commas.")]
Resource = Annotated[str, typer.Argument(metavar="RESOURCE", help=f"{RESOURCES}.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name; * is every one, and `clicks*` every one that begins with `clicks`.")
]
Host = Annotated[str, typer.Option("--host", help="Address or network (10.0.0.0/8) that the client comes from; * is any.")]
ResourceFilter = Annotated[str, typer.Option("--resource", metavar="RESOURCE", help=f"Only rules about: {RESOURCES}.")]
NameFilter = Annotated[str, typer.Option("--name", metavar="NAME", help="Only rules with exactly this name.")]
PrincipalFilter = Annotated[str, typer.Option("--principal", metavar="PRINCIPAL", help="Only rules of this principal.")]


@command(app, "allow")
def allow(
    principal: Principal,
    operations: Operations,
    resource: Resource,
    name: Name,
    cluster: Cluster = DEFAULT_CLUSTER,
    host: Host = "*",
) -> Coroutine[Any, Any, None]:
    """Allow operations: `headgate acl allow User:alice read,describe topic clicks`."""
    return _add(cluster, "allow", principal, operations, resource, name, host)


@command(app, "deny")
def deny(
    principal: Principal,
    operations: Operations,
    resource: Resource,
    name: Name,
    cluster: Cluster = DEFAULT_CLUSTER,
    host: Host = "*",
) -> Coroutine[Any, Any, None]:
    """Deny operations, whatever other rules allow."""
    return _add(cluster, "deny", principal, operations, resource, name, host)


async def _add(cluster: str, permission: str, principal: str, operations: str, resource: str, name: str, host: str) -> None:
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


@command(app, "list")
async def list_acls(
    cluster: Cluster = DEFAULT_CLUSTER,
    resource: ResourceFilter = "",
    name: NameFilter = "",
    principal: PrincipalFilter = "",
    json: Json = False,
) -> None:
    """List rules."""
    async with AccessAdmin(cluster) as admin:
        _print(await admin.acls(Acl(resource=resource, name=name, principal=principal)), json)


@command(app, "remove")
def remove_acls(
    cluster: Cluster = DEFAULT_CLUSTER,
    resource: ResourceFilter = "",
    name: NameFilter = "",
    principal: PrincipalFilter = "",
    every: Annotated[bool, typer.Option("--all", help="Remove all rules, without a filter.")] = False,
    json: Json = False,
) -> Coroutine[Any, Any, None]:
    """Remove rules, and print them."""
    if every == bool(resource or name or principal):
        raise InvalidError(Reason.INVALID_REQUEST, "give --resource, --name or --principal, or --all for all rules")

    async def work() -> None:
        async with AccessAdmin(cluster) as admin:
            _print(await admin.remove_acls(Acl(resource=resource, name=name, principal=principal)), json)

    return work()


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
