"""File descriptors: as many as are allowed, and some that connections never take."""

from __future__ import annotations

import resource
from contextlib import suppress

KEPT = 32
"""For the log's chunks, and for modules that are still to be loaded: without a descriptor neither can be opened."""
OTHERS_MAX = 1024
"""For what is not a Kafka connection: gRPC, HTTP, the store."""


def allow(connections_max: int) -> None:
    """Raise this process's limit, as far as it may, to what so many connections need.

    A shell's soft limit, often 1,024, is there for programs that use select(2): nothing here does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHERS_MAX
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A system may have a lower limit than it says: then connections are refused sooner.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def scarce(descriptor: int) -> bool:
    """Whether a connection that was given this number must be refused. The lowest free one is given out: as many are in use."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and descriptor >= limit - KEPT
