"""``headgate capacity``: reservations, and the desired number of brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
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
from headgate.broker.client.control import Control, DesiredBrokers, Reservation
from headgate.broker.runtime.errors import Reason, RetryError

LOOK_S = 0.1
app = typer.Typer(rich_markup_mode=None)


@command(app, "open")
def open_one(
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
) -> Coroutine[Any, Any, None]:
    """Reserve brokers until a time."""
    ttl_ms = duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)

    async def work() -> None:
        held_by = owner_name() if owner is None else owner
        async with Control(cluster) as control:
            made = await control.open_reservation(brokers, ttl_ms, owner=held_by, reservation_id=reservation_id, lanes=lanes)
        _show(made, "open", json)

    return work()


@command(app, "renew")
def renew(
    reservation: ReservationId,
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: NewTtl = None,
    json: Json = False,
) -> Coroutine[Any, Any, None]:
    """Start the time to live of a reservation again."""
    ttl_ms = None if ttl is None else duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)

    async def work() -> None:
        async with Control(cluster) as control:
            _show(await control.renew_reservation(reservation, ttl_ms), "renewed", json)

    return work()


@command(app, "release")
async def release(reservation: ReservationId, cluster: Cluster = DEFAULT_CLUSTER) -> None:
    """End a reservation."""
    async with Control(cluster) as control:
        released = await control.release_reservation(reservation)
    output.print_line(f"reservation {reservation} {'released' if released else 'was not open any more'}")


@command(app, "status")
def status(
    cluster: Cluster = DEFAULT_CLUSTER,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="Wait until enough brokers serve; fail after this time.")
    ] = "0",
    json: Json = False,
) -> Coroutine[Any, Any, None]:
    """Show the planned number of brokers, its reason, and the number of brokers that serve."""
    return _status(cluster, duration_ms("--wait", wait, high_ms=86_400_000), json)


async def _status(cluster: str, wait_ms: int, json: bool) -> None:
    """Show the desired number of brokers and the number that serve. Raises RetryError if too few serve `wait_ms` from now."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    async with Control(cluster) as control:
        desired = await control.desired_brokers()
        while desired.live_brokers < desired.brokers and loop.time() < deadline:
            await asyncio.sleep(LOOK_S)
            desired = await control.desired_brokers()
    if json:
        output.print_json(asdict(desired))
    else:
        _show_desired(desired)
    if wait_ms and desired.live_brokers < desired.brokers:
        raise RetryError(
            Reason.NOT_READY, f"there are fewer brokers than asked for. live=`{desired.live_brokers}` desired=`{desired.brokers}`"
        )


@command(app, "list")
async def list_all(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show the planned number of brokers, its reason, and the open reservations."""
    async with Control(cluster) as control:
        desired, reservations = await control.desired_brokers(), await control.reservations()
    if json:
        output.print_json({**asdict(desired), "reservations": [asdict(reservation) for reservation in reservations]})
        return
    _show_desired(desired)
    if reservations:
        output.print_table(
            ("reservation", "owner", "brokers", "lanes", "left", "ttl"),
            [
                (
                    reservation.id,
                    reservation.owner,
                    reservation.brokers,
                    reservation.lanes,
                    output.duration(reservation.left_ms),
                    output.duration(reservation.ttl_ms),
                )
                for reservation in reservations
            ],
            numeric=("brokers", "lanes"),
        )


def _show_desired(desired: DesiredBrokers) -> None:
    output.print_line(f"{output.plural(desired.brokers, 'broker')} desired, {desired.live_brokers:,} live")
    for reason in desired.reasons:
        output.print_line(f"  {reason}")


def _show(reservation: Reservation, what: str, json: bool) -> None:
    if json:
        output.print_json(asdict(reservation))
        return
    lanes = f" and {output.plural(reservation.lanes, 'lane')}" if reservation.lanes else ""
    held = f"{output.plural(reservation.brokers, 'broker')}{lanes}"
    output.print_line(f"reservation {reservation.id} {what}: {held} for {output.duration(reservation.left_ms)}")
