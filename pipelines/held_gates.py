"""The gates of one run: opened, renewed until the run ends, and released when it fails. No other module renews or releases them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from headgate.broker.client.gate_admin import Gate, Place
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.connection import Connection, Repeated

BEATS_PER_TTL = 3
"""Renewals in one time to live: one or two may be lost."""
RELEASE_S = 5.0
"""Longest time that a run which fails or is cancelled waits for the release of its gates, in seconds."""


class HeldGate:
    """An open gate that its run renews. `lost`: the error that says that another client filled, released or reopened it."""

    def __init__(self, gate: Gate, renewing: Repeated) -> None:
        self.gate = gate
        self._renewing = renewing

    @property
    def lost(self) -> InvalidError | None:
        error = self._renewing.error
        return error if isinstance(error, InvalidError) else None

    def stop(self) -> None:
        self._renewing.stop()


class HeldGates:
    """The open gates of one run. A context manager: its end stops all renewals; an error releases the run's own gates.

    Args:
        owner: name of the run. A gate that exists already has another owner: the run renews it, and never releases it.
        most_s: longest time of renewals, in seconds, so that a run that hangs does not keep readers waiting for ever.
        say: receives failed renewals and releases. Called from the connection's thread, too.
    """

    def __init__(self, connection: Connection, owner: str, say: Callable[[str], None], most_s: float = math.inf) -> None:
        self.owner = owner
        self._connection = connection
        self.say = say
        self._until_s = time.monotonic() + most_s
        self._held: dict[tuple[str, str], HeldGate] = {}
        """By topic and gate."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for held in self._held.values():
            held.stop()
        own = [held.gate for held in self._held.values() if held.gate.owner == self.owner]
        if error is not None and own:
            self._connection.call(self._release_all(own))

    def open(
        self, topic: str, gate_id: str, rows: Sequence[int], *, place: Place, ttl_ms: int, definition: str, lost: Callable[[], None]
    ) -> HeldGate:
        """Open a gate, or join the open gate of the same id and definition, and renew it from now on.

        Args:
            rows: number of rows of each partition.
            ttl_ms: time that the gate outlives a dead run.
            lost: called from the connection's thread when the gate turns out to be lost.

        Raises:
            InvalidError: GATE_CONFLICT when the gate exists with other rows or another definition.
        """
        admin = self._connection.gates
        self.drop(topic, gate_id)
        gate = self._connection.call(
            admin.open(topic, rows, gate_id=gate_id, place=place, ttl_ms=ttl_ms, definition=definition, owner=self.owner)
        )

        async def renew() -> None:
            if time.monotonic() > self._until_s:
                self.say(f"gate {gate_id} is not renewed any more: the run took longer than it may")
                held.stop()
                return
            try:
                renewed = await admin.renew(topic, gate_id, ttl_ms)
                if renewed.owner != gate.owner:
                    raise InvalidError(Reason.GATE_CONFLICT, f"the gate was opened again. gate=`{gate_id}`")
            except InvalidError:
                lost()
                raise
            except HeadgateError as error:
                self.say(f"gate {gate_id} was not renewed, trying again: {error.message}")

        held = HeldGate(gate, self._connection.every(ttl_ms / 1000 / BEATS_PER_TTL, renew))
        self._held[topic, gate_id] = held
        return held

    def drop(self, topic: str, gate_id: str) -> None:
        """Stop renewing a gate, and do not release it later: it is filled."""
        held = self._held.pop((topic, gate_id), None)
        if held is not None:
            held.stop()

    async def _release_all(self, gates: Sequence[Gate]) -> None:
        """Release gates, so that readers need not wait until they expire."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await asyncio.gather(*map(self._release, gates))
        except TimeoutError:
            self.say(f"the cluster does not answer: gates that are not released will expire. gates=`{len(gates)}`")

    async def _release(self, gate: Gate) -> None:
        """Release a gate. The run's own error matters more than a failure here."""
        try:
            await self._connection.gates.release(gate.topic, gate.id, owner=self.owner)
        except InvalidError:
            return  # filled meanwhile, or released and opened by another run
        except HeadgateError as error:
            self.say(f"gate {gate.id} could not be released, it will expire: {error.message}")
