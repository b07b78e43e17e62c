"""File descriptors: raises the process's limit, divides the descriptors among the kinds of connections, and keeps a reserve."""

from __future__ import annotations

import resource
from contextlib import suppress

from headgate.broker.runtime.errors import InvalidError, Reason

LIMIT_MIN = 256
"""Below this limit a broker refuses to start. At the limit it needs about 40 descriptors itself, keeps `KEPT`, leaves a share
for gRPC and HTTP, and has 120 Kafka connections."""
KEPT = 32
"""Reserve for the log's chunks and for modules that are not imported yet: neither can be opened without a descriptor."""
GRPC_MAX = 1000
"""Most gRPC connections: each carries many calls, and takes some 50 kB."""
HTTP_MAX = 200
SHARE = 8
"""If descriptors are scarce, gRPC connections get one of so many, and HTTP connections another one; Kafka connections get the
rest."""
OTHERS_MAX = 2 * GRPC_MAX
"""Descriptors for gRPC, HTTP and the store, outside of the Kafka connections."""


def allow(connections_max: int) -> None:
    """Raise this process's limit, within its hard limit, to the number that so many connections need.

    The soft limit of a shell, often 1,024, protects programs that use select(2). No part of a broker uses it.

    Raises:
        InvalidError(INVALID_CONFIG): the limit stays below `LIMIT_MIN`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHERS_MAX
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A system may enforce a lower limit than it reports: then connections are refused sooner.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    limit = _limit()
    if limit is not None and limit < LIMIT_MIN:
        raise InvalidError(
            Reason.INVALID_CONFIG,
            f"too few file descriptors for a broker that serves: raise `ulimit -Hn`. limit=`{limit}` least=`{LIMIT_MIN}`",
        )


def share(most: int) -> int:
    """The number of connections that one kind may have, at most `most`."""
    limit = _limit()
    return most if limit is None else min(most, limit // SHARE)


def scarce(descriptor: int) -> bool:
    """Whether a connection with this descriptor must be refused. A new descriptor is the lowest free number: so many are in use.

    gRPC's share stays free: gRPC accepts connections without asking.
    """
    limit = _limit()
    return limit is not None and descriptor >= limit - KEPT - share(GRPC_MAX)


def _limit() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
