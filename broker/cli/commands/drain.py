"""``headgate drain``: take all segments from a broker before it is ended or examined."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, INT32_MAX, Cluster, Json
from headgate.broker.cli.orders import ordering

app = typer.Typer(rich_markup_mode=None)


@command(app, "drain")
async def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=INT32_MAX, help="The number that `headgate status` shows.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> None:
    """Move all segments of a broker to the others, and give it none until it is started again.

    A broker that gets SIGTERM does this by itself.
    """
    async with ordering(cluster, "drain") as control:
        segments = await control.drain(broker)
    if json:
        output.print_json([asdict(segment) for segment in segments])
        return
    brokers = sorted({segment.broker_id for segment in segments})
    where = (
        f"{output.plural(len(segments), 'segment')} went to {', '.join(f'broker {number}' for number in brokers)}"
        if segments
        else "it led nothing"
    )
    output.print_line(f"broker {broker} drained: {where}; it gets none until it is started again")
