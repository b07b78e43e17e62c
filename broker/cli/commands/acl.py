"""`headgate acl`: its commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json

app = typer.Typer(help="Say who may do what: Kafka's ACLs, and the same for gates, files and capacity.", rich_markup_mode=None)
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


@app.command("allow")
def acl_allow(
    principal: Principal,
    operations: Operations,
    resource: Resource,
    name: Name,
    cluster: Cluster = DEFAULT_CLUSTER,
    host: Host = "*",
) -> None:
    """Allow operations: `headgate acl allow User:alice read,describe topic clicks`."""
    from headgate.broker.cli import access

    output.check_reachable(cluster)
    output.run(access.add_acls(cluster, "allow", principal, operations, resource, name, host))


@app.command("deny")
def acl_deny(
    principal: Principal,
    operations: Operations,
    resource: Resource,
    name: Name,
    cluster: Cluster = DEFAULT_CLUSTER,
    host: Host = "*",
) -> None:
    """Deny operations, whatever other rules allow."""
    from headgate.broker.cli import access

    output.check_reachable(cluster)
    output.run(access.add_acls(cluster, "deny", principal, operations, resource, name, host))


@app.command("list")
def acl_list(
    cluster: Cluster = DEFAULT_CLUSTER,
    resource: ResourceFilter = "",
    name: NameFilter = "",
    principal: PrincipalFilter = "",
    json: Json = False,
) -> None:
    """List rules."""
    from headgate.broker.cli import access

    output.check_reachable(cluster)
    output.run(access.list_acls(cluster, access.chosen(resource, name, principal), json))


@app.command("remove")
def acl_remove(
    cluster: Cluster = DEFAULT_CLUSTER,
    resource: ResourceFilter = "",
    name: NameFilter = "",
    principal: PrincipalFilter = "",
    every: Annotated[bool, typer.Option("--all", help="Remove all rules, without a filter.")] = False,
    json: Json = False,
) -> None:
    """Remove rules, and print them."""
    from headgate.broker.cli import access

    wanted = access.filter_or_all(resource, name, principal, every)
    output.check_reachable(cluster)
    output.run(access.remove_acls(cluster, wanted, json))
