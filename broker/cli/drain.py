"""``headgate drain``: take all segments from a broker before it is ended or examined."""

from __future__ import annotations

from dataclasses import asdict

from headgate.broker.cli import output
from headgate.broker.cli.orders import ordering


async def drain(cluster: str, broker_id: int, json: bool) -> None:
    """Move all segments away from a broker. Prints their new brokers."""
    async with ordering(cluster, "drain") as control:
        segments = await control.drain(broker_id)
    if json:
        output.print_json([asdict(segment) for segment in segments])
        return
    brokers = sorted({segment.broker_id for segment in segments})
    where = (
        f"{output.plural(len(segments), 'segment')} went to {', '.join(f'broker {broker}' for broker in brokers)}"
        if segments
        else "it led nothing"
    )
    output.print_line(f"broker {broker_id} drained: {where}; it gets none until it is started again")
