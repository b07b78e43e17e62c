"""File descriptors: as many as are allowed, shared out among what is opened by others, and some that no connection takes."""

from __future__ import annotations

import resource
from contextlib import suppress

from headgate.broker.runtime.errors import InvalidError, Reason

LIMIT_MIN = 256
"""With fewer a broker refuses to start: it needs about 40 itself, keeps `KEPT`, leaves gRPC and HTTP their share, and has 120 Kafka
connections then."""
KEPT = 32
"""For the log's chunks, and for modules that are still to be loaded: without a descriptor neither can be opened."""
GRPC_MAX = 1000
"""gRPC connections: each carries many calls, and has some 50 kB."""
HTTP_MAX = 200
SHARE = 8
"""Where descriptors are few, one in so many may be a gRPC connection, and another one HTTP: Kafka's clients get the rest."""
OTHERS_MAX = 2 * GRPC_MAX
"""For what is not a Kafka connection: gRPC, HTTP, the store."""


def allow(connections_max: int) -> None:
    """Raise this process's limit, as far as it may, to what so many connections need.

    A shell's soft limit, often 1,024, is there for programs that use select(2): nothing here does.

    Raises:
        InvalidError(INVALID_CONFIG): the limit stays below `LIMIT_MIN`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHERS_MAX
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A system may have a lower limit than it says: then connections are refused sooner.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    limit = _limit()
    if limit is not None and limit < LIMIT_MIN:
        raise InvalidError(
            Reason.INVALID_CONFIG,
            f"too few file descriptors for a broker that serves: raise `ulimit -Hn`. limit=`{limit}` least=`{LIMIT_MIN}`",
        )


def share(most: int) -> int:
    """How many connections of a kind there may be, at most `most`."""
    limit = _limit()
    return most if limit is None else min(most, limit // SHARE)


def scarce(descriptor: int) -> bool:
    """Whether a connection that was given this number must be refused. The lowest free one is given out: as many are in use.

    What gRPC may have is left to it: it takes connections without asking.
    """
    limit = _limit()
    return limit is not None and descriptor >= limit - KEPT - share(GRPC_MAX)


def _limit() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
