"""`headgate quota`: its commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json

app = typer.Typer(help="Limit how much clients may produce, fetch and ask for.", rich_markup_mode=None)
NAMES = "producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage, connection_creation_rate (with --ip)"

User = Annotated[str | None, typer.Option("--user", metavar="USER", help="Clients of this user; `default`: all others.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Clients with this id; `default`: all others.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="IP", help="New connections from this address; `default`: all others.")]


@app.command("set")
def quota_set(
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help=f"{NAMES}.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
) -> None:
    """Set quotas: `headgate quota set producer_byte_rate=10MiB --user alice`. They hold in the whole cluster."""
    from headgate.broker.cli import quota

    output.check_reachable(cluster)
    output.run(quota.set_quotas(cluster, quota.entity(user, client_id, ip, quota.limits(values))))


@app.command("remove")
def quota_remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help=f"{NAMES}.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
) -> None:
    """Remove quotas."""
    from headgate.broker.cli import quota

    output.check_reachable(cluster)
    output.run(quota.remove_quotas(cluster, quota.entity(user, client_id, ip, dict.fromkeys(names, 0.0))))


@app.command("list")
def quota_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the quotas. `headgate status` shows whose clients wait."""
    from headgate.broker.cli import quota

    output.check_reachable(cluster)
    output.run(quota.list_quotas(cluster, json))
