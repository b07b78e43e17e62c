"""The lease: it names the broker that leads the cluster. No I/O.

The lease is a register in the store, with numbered versions. Its holder writes a new version every `ttl_ms` / 2. A broker that
wants to lead takes the lease by writing the next version, in one of these cases:

- there is no version, or the newest one was given up;
- the newest version is from an earlier run at the same address: two processes cannot listen there;
- the holder once served, and now its address refuses connections: the process is gone;
- the contender has seen the same version for a whole `ttl_ms` of its own attention (`liveness.Attention`), plus the time of some
  looks. If the store is slow, the holder's renewals are slow too. If the contender's own timers are late, the holder's renewals
  are late too, so the `ttl_ms` is stretched (`liveness.stretched`).

An unreadable newest version has a time-to-live of `UNREADABLE_TTL_MS`: its holder soon writes the next one.

The last two cases are guesses. A wrong guess loses nothing: if two brokers believe that they lead, only one of them can write
the manifest's next version, and the other learns from this that it does not lead. The wall clock plays no part: `Lease.at_ms` is
for retention.
"""

from __future__ import annotations

import msgspec

from headgate.broker.cluster.liveness import stretched
from headgate.broker.runtime.errors import CorruptError, FatalError, Reason

FORMAT_VERSION = 1
UNREADABLE_TTL_MS = 10_000
"""Time-to-live, in ms, of an unreadable version. Longer than the default. Taking the lease too early costs only a change of
leaders."""
LOOKS = 2
"""A contender waits longer than `ttl_ms` by this many times the duration of a look, because a renewal takes a few operations."""

YIELD_TIMEOUTS = 2
"""A broker that gave the lease back leaves the lead to others for this many time-outs of a member."""
YIELD_AGAIN_S = 60.0
"""Seconds after that time in which it does not give the lease back again. If no other broker took the lead meanwhile, all others
are really lost."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `holder`: an incarnation, "" if the lease was given up. `address`: its gRPC address, ``host:port``.

    `serving`: its gRPC port is open. `renewal` makes each version of a holder unique. `at_ms`: the holder's wall-clock time of
    this version; 0: unknown. From it, a starting broker learns for how long no broker ran. It has no meaning for the lease
    itself.
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
        """Decode a version. Raises CorruptError. FatalError: a newer Headgate leads, so this broker cannot read the version."""
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
"""Stands for a version that cannot be read. No broker can follow its holder."""


class Contender:
    """The knowledge of the lease on one broker that does not lead.

    Args:
        address: this broker's gRPC address, ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._version = -1
        self._since_s = 0.0
        self._look_s = 0.0
        self._stands_back_until_s = -YIELD_AGAIN_S
        """The monotonic time, in seconds, until which this broker leaves the lead to others."""

    def looked(self, took_s: float) -> None:
        """Note the duration of a look at the lease, in seconds. Recent looks weigh most in the average."""
        self._look_s = (self._look_s + took_s) / 2

    def may_take(self, version: int, lease: Lease | None, now_s: float, *, refused: bool = False, late_s: float = 0.0) -> bool:
        """True if the version after `version` may be written now.

        Args:
            version: the newest one. 0, and None for `lease`, if there is none.
            now_s: this process's attention, in seconds.
            refused: the holder's address has just refused a connection.
            late_s: recent lateness of this process's timers, in seconds.
        """
        if lease is None or not lease.holder or lease.address == self._address:
            return True
        if version != self._version:
            self._version, self._since_s = version, now_s
        if refused and lease.serving:
            return True
        return now_s - self._since_s >= stretched(lease.ttl_ms / 1000, late_s) + LOOKS * self._look_s

    def silent_s(self, now_s: float) -> float:
        """Seconds for which the newest version has existed, as seen by this contender."""
        return 0.0 if self._version < 0 else now_s - self._since_s

    def blind(self) -> None:
        """The store did not answer, so the holder's renewals are unknown: begin the wait again."""
        self._version = -1

    # -- after this broker gave the lease back, because all members fell silent together

    def yielded(self, now_s: float, timeout_s: float) -> None:
        """Note that this broker gave the lease back, at the monotonic time `now_s` in seconds.

        Args:
            timeout_s: seconds of silence after which a member is lost.
        """
        self._stands_back_until_s = now_s + YIELD_TIMEOUTS * timeout_s

    def followed(self) -> None:
        """Note that another broker leads, as intended. When this broker leads again, it may give the lease back again."""
        self._stands_back_until_s = -YIELD_AGAIN_S

    def stands_back(self, lease: Lease | None, now_s: float) -> bool:
        """True if this broker leaves a free lease to others."""
        return (lease is None or not lease.holder) and now_s < self._stands_back_until_s

    def may_yield(self, now_s: float) -> bool:
        """True if this broker gives the lease back when all members fall silent together."""
        return now_s >= self._stands_back_until_s + YIELD_AGAIN_S
