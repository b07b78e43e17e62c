"""``headgate capacity``: reservations, and the desired number of brokers."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from headgate.broker.cli import output
from headgate.broker.client.control import Control, DesiredBrokers, Reservation
from headgate.broker.runtime.errors import Reason, RetryError

LOOK_S = 0.1


async def open_one(cluster: str, brokers: int, lanes: int, ttl_ms: int, owner: str, reservation_id: str, json: bool) -> None:
    """Open a reservation, or renew the one with that id."""
    async with Control(cluster) as control:
        made = await control.open_reservation(brokers, ttl_ms, owner=owner, reservation_id=reservation_id, lanes=lanes)
    _show(made, "open", json)


async def renew(cluster: str, reservation_id: str, ttl_ms: int | None, json: bool) -> None:
    """Start a reservation's time to live again."""
    async with Control(cluster) as control:
        _show(await control.renew_reservation(reservation_id, ttl_ms), "renewed", json)


async def release(cluster: str, reservation_id: str) -> None:
    """End a reservation."""
    async with Control(cluster) as control:
        released = await control.release_reservation(reservation_id)
    output.print_line(f"reservation {reservation_id} {'released' if released else 'was not open any more'}")


async def status(cluster: str, wait_ms: int, json: bool) -> None:
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


async def list_all(cluster: str, json: bool) -> None:
    """The desired number with its reasons, and the open reservations."""
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
