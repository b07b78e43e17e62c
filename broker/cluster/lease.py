"""The lease: who leads the cluster. No I/O.

The lease is a register in the store, a version after another. Its holder writes a new one every `ttl_ms` / 2. Whoever wants to lead
takes it by writing the next version

- when there is none, or the newest one was given up;
- when its own newest version is from an earlier run at the same address: two processes cannot listen there;
- when the holder once served, and now its address refuses connections: the process is gone;
- when it has seen the same version for a whole `ttl_ms` of its own attention (`liveness.Attention`), and for some looks: where the
  store takes long to answer, the holder's renewals take long too. Where the contender's own timers are late, the holder's renewals
  are late too: the `ttl_ms` is stretched (`liveness.stretched`).

Where the newest version cannot be read that is so with a time of our own: whoever holds it writes the next one soon.

The last two are guesses. Nothing is lost where one is wrong: of two who believe that they lead only one can write the manifest's
next version, and the other knows from then on. The wall clock is never asked: `Lease.at_ms` is for retention.
"""

from __future__ import annotations

import msgspec

from headgate.broker.cluster.liveness import stretched
from headgate.broker.runtime.errors import CorruptError, FatalError, Reason

FORMAT_VERSION = 1
UNREADABLE_TTL_MS = 10_000
"""Of a version that does not tell: more than the default. If it is taken too soon, that costs a change of leaders, and no more."""
LOOKS = 2
"""A renewal is a few operations; so many looks' time it is waited for beside the `ttl_ms`."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `holder` is an incarnation, "" where the lease was given up; `address` its gRPC door, ``host:port``.

    `serving`: the door is open. `renewal` makes each version of a holder differ from all others of it. `at_ms`: the holder's time
    when it wrote this version; 0: not said. It tells a broker that starts for how long none ran, and nothing about the lease.
    """

    format: int = FORMAT_VERSION
    holder: str
    broker_id: int
    address: str
    ttl_ms: int
    serving: bool = False
    renewal: int = 0
    at_ms: int = 0

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Lease:
        """Raises CorruptError. FatalError: a newer Headgate leads, and what it writes is not for us."""
        try:
            version = msgspec.json.decode(data, type=_Format).format
            if version > FORMAT_VERSION:
                raise FatalError(
                    Reason.STORE_MISCONFIGURED,
                    f"the cluster is led by a newer Headgate: upgrade this broker. format=`{version}` known=`{FORMAT_VERSION}`",
                )
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptError(Reason.CORRUPT_STORE, f"lease cannot be read. error=`{error}`") from error


class _Format(msgspec.Struct, frozen=True):
    format: int


UNREADABLE = Lease(holder="?", broker_id=-1, address="", ttl_ms=UNREADABLE_TTL_MS)
"""Stands for a version that cannot be read: held by nobody whom one could follow."""


class Contender:
    """What one broker that does not lead knows of the lease.

    Args:
        address: its own, ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._version = -1
        self._since_s = 0.0
        self._look_s = 0.0

    def looked(self, took_s: float) -> None:
        """A look at the lease took so long. The average of the last few counts."""
        self._look_s = (self._look_s + took_s) / 2

    def may_take(self, version: int, lease: Lease | None, now_s: float, *, refused: bool = False, late_s: float = 0.0) -> bool:
        """Whether the version after `version` may be written now.

        Args:
            version: the newest; 0 and None for `lease` where there is none.
            now_s: this process's attention.
            refused: the holder's address has just refused a connection.
            late_s: how late this process's timers were lately.
        """
        if lease is None or not lease.holder or lease.address == self._address:
            return True
        if version != self._version:
            self._version, self._since_s = version, now_s
        if refused and lease.serving:
            return True
        return now_s - self._since_s >= stretched(lease.ttl_ms / 1000, late_s) + LOOKS * self._look_s

    def silent_s(self, now_s: float) -> float:
        """For how long the newest version has stood, as far as this contender saw."""
        return 0.0 if self._version < 0 else now_s - self._since_s

    def blind(self) -> None:
        """The store did not answer: what the holder did meanwhile is not known, so the waiting begins again."""
        self._version = -1
