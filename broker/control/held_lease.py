"""The lease during one term of this broker: renews it, notes in it that this broker serves, and gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from headgate.broker.cluster.lease import Lease
from headgate.broker.control.lease_register import LeaseRegister
from headgate.broker.runtime.errors import RetryError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

logger = get_logger("lease")


class HeldLease:
    """The lease during one term of this broker. Each renewal also extends this broker's own proof of lead (`engine/base/proof.py`).

    Args:
        current: the version that this broker has just written, and `version`, its number.
        written: called after each attempt to renew it: with True if the store has the new version, with False if the store did
            not answer.
        lost: called when another broker has written the next version.
    """

    def __init__(
        self,
        engine: Engine,
        register: LeaseRegister,
        current: Lease,
        version: int,
        *,
        written: Callable[[bool], None],
        lost: Callable[[], None],
    ) -> None:
        self.current = current
        self.is_given_back = False
        """True once this broker began to give it back. Then it is not renewed."""
        self._is_over = False
        """True once the term has ended. Then a renewal proves nothing any more."""
        self._engine = engine
        self._register = register
        self._version = version
        self._written = written
        self._lost = lost
        self._writing = asyncio.Lock()

    @property
    def store_ms(self) -> int:
        """The store's own time in wall-clock ms. 0: the store has no clock, or its time is unknown."""
        ahead_ms = self._register.ahead_ms
        return 0 if ahead_ms is None else self._engine.clock.now_ms() - ahead_ms

    @property
    def clock_ahead_ms(self) -> int | None:
        """Milliseconds by which this broker's clock was ahead of the store's at the last write. None: unknown."""
        return self._register.ahead_ms

    async def renew(self) -> None:
        """Renew the lease. If the store does not answer, wait: no other broker can take the lease meanwhile. Never returns."""
        clock = self._engine.clock
        pause_s = self.current.ttl_ms / 2000
        while True:
            await asyncio.sleep(pause_s)
            began_s = clock.monotonic()
            await self.write()
            pause_s = max(self.current.ttl_ms / 2000 - (clock.monotonic() - began_s), 0.0)

    async def write(self, *, serving: bool = False) -> None:
        """Write the next version.

        Args:
            serving: note that this broker's gRPC port is open. From then on, a broker that finds the port closed knows that this
                broker is gone. False: leave that note unchanged.
        """
        async with self._writing:
            while not self.is_given_back:
                lease = structs.replace(
                    self.current, renewal=self.current.renewal + 1, serving=serving or self.current.serving, at_ms=self._at_ms()
                )
                asked_s = self._engine.clock.monotonic()
                try:
                    if await self._register.write(self._version + 1, lease):
                        self._version += 1
                        self.current = lease
                        if self._register.ahead_ms is not None:
                            self._engine.clock.note("store", self._register.ahead_ms)
                        self._written(True)
                        if not self._is_over:
                            self._engine.proof.extend(asked_s, lease.ttl_ms)
                        return
                    version, found = await self._register.read()
                except RetryError as error:
                    logger.warning("lease_not_renewed", error=error.message)
                    self._written(False)
                    return
                if self._is_over or found is None or found.holder != self.current.holder or version <= self._version:
                    break
                # An earlier attempt has written it: its answer was lost, or its caller was cancelled. The time of that write is
                # unknown, so it extends no promise. The next version does.
                self._version, self.current = version, structs.replace(found, serving=found.serving or self.current.serving)
            else:
                return
        self._lost()

    async def give_back(self) -> None:
        """Give the lease back. Any broker that sees this may take it at once. Raises RetryError."""
        async with self._writing:
            self.is_given_back = True
            self._engine.proof.lapse()
            lease = Lease(
                holder="",
                broker_id=self.current.broker_id,
                address=self.current.address,
                ttl_ms=self.current.ttl_ms,
                at_ms=self._at_ms(),
            )
            await self._register.write(self._version + 1, lease)

    async def surrender(self) -> bool:
        """Give the lease back, because this broker is probably cut off from the others. Returns False if the store does not
        answer: then this broker keeps the lease and renews it."""
        try:
            await self.give_back()
        except RetryError as error:
            logger.warning("lease_not_given_up", error=error.message)
            self.is_given_back = False
            return False
        return True

    def end(self) -> None:
        """The term has ended. A renewal that the store answers later extends no promise."""
        self._is_over = True

    def _at_ms(self) -> int:
        """The value for `Lease.at_ms`. Until this broker has noted the time in which no broker ran, it is the previous version's
        value."""
        return self._engine.clock.now_ms() if self._engine.started else self.current.at_ms
