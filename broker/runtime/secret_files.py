"""Secrets on this machine: files with passwords, tokens and keys, which other users may not read, and core files."""

from __future__ import annotations

import os
import resource
import stat

from headgate.broker.runtime.errors import InvalidError, Reason


def check(path: str) -> None:
    """Raise InvalidError(INVALID_CONFIG) for a file of this user that others may read. A missing file is the reader's matter.

    A file that this user cannot change is accepted: secrets that an orchestrator mounts (Kubernetes, Docker) are often readable to
    all users of their container, which has one.
    """
    try:
        real = os.path.realpath(path)
        found = os.stat(real)
        if found.st_uid != os.geteuid() or os.statvfs(real).f_flag & os.ST_RDONLY or not _is_open(real, found.st_mode):
            return
    except OSError:
        return
    raise InvalidError(
        Reason.INVALID_CONFIG,
        f"every user of this machine may read the secret in this file: run `chmod o= {path}`. path=`{path}`",
    )


def _is_open(real: str, mode: int) -> bool:
    """Whether others may read a file: by its own mode, and by those of all directories above it."""
    if not mode & stat.S_IROTH:
        return False
    while (above := os.path.dirname(real)) != real:
        real = above
        if not os.stat(real).st_mode & stat.S_IXOTH:
            return False
    return True


def leave_no_core() -> None:
    """Let this process, and those that it starts, leave no core file: it would hold keys and passwords of the moment.

    The limit of one byte also keeps a core from a program in `core_pattern`, which the limit of 0 does not (core(5)). An operator
    may raise it for a process that runs: `prlimit --core=unlimited --pid PID`. PR_SET_DUMPABLE would also hide it from profilers.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard == resource.RLIM_INFINITY else min(1, hard), hard))
