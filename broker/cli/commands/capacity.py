"""`headgate capacity`: its commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import (
    DEFAULT_CLUSTER,
    INT32_MAX,
    LONGEST_TTL_MS,
    Cluster,
    Json,
    NewTtl,
    ReservationId,
    duration_ms,
    owner_name,
)

app = typer.Typer(help="Reserve brokers: open, renew, release, list; show the planned number.", rich_markup_mode=None)


@app.command("open")
def capacity_open(
    brokers: Annotated[
        int, typer.Argument(metavar="BROKERS", max=INT32_MAX, help="Fewest brokers that the cluster should have, 1 to 64.")
    ],
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="DURATION", help="Time to live: the reservation ends after it, unless renewed.")
    ] = "15m",
    owner: Annotated[str | None, typer.Option("--owner", metavar="TEXT", help="Owner shown in lists. Default: user@host.")] = None,
    reservation_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="An existing id renews that reservation. Default: a new id.")
    ] = "",
    lanes: Annotated[
        int, typer.Option("--lanes", metavar="N", max=INT32_MAX, help="Lanes that brokers may start for readers of history.")
    ] = 0,
    json: Json = False,
) -> None:
    """Reserve brokers until a time."""
    from headgate.broker.cli import capacity

    ttl_ms = duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    owner = owner_name() if owner is None else owner
    output.run(capacity.open_one(cluster, brokers, lanes, ttl_ms, owner, reservation_id, json))


@app.command("renew")
def capacity_renew(
    reservation: ReservationId,
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: NewTtl = None,
    json: Json = False,
) -> None:
    """Start the time to live of a reservation again."""
    from headgate.broker.cli import capacity

    ttl_ms = None if ttl is None else duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    output.run(capacity.renew(cluster, reservation, ttl_ms, json))


@app.command("release")
def capacity_release(reservation: ReservationId, cluster: Cluster = DEFAULT_CLUSTER) -> None:
    """End a reservation."""
    from headgate.broker.cli import capacity

    output.check_reachable(cluster)
    output.run(capacity.release(cluster, reservation))


@app.command("status")
def capacity_status(
    cluster: Cluster = DEFAULT_CLUSTER,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="Wait until enough brokers serve; fail after this time.")
    ] = "0",
    json: Json = False,
) -> None:
    """Show the planned number of brokers, its reason, and the number of brokers that serve."""
    from headgate.broker.cli import capacity

    wait_ms = duration_ms("--wait", wait, high_ms=86_400_000)
    output.check_reachable(cluster)
    output.run(capacity.status(cluster, wait_ms, json))


@app.command("list")
def capacity_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show the planned number of brokers, its reason, and the open reservations."""
    from headgate.broker.cli import capacity

    output.check_reachable(cluster)
    output.run(capacity.list_all(cluster, json))
