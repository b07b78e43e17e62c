"""What an answer that lasts must know of its connection."""

from __future__ import annotations

from starlette.types import Receive


async def wait_gone(receive: Receive) -> None:
    """Wait until the browser has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
