"""The meaning of an operating system's error for the caller of a store: one table for all file operations."""

from __future__ import annotations

import errno
from typing import NoReturn

from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason, RetryError

# The disk is full for now: freeing space cures it. EFBIG is a full disk too, for a process with a file size limit.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# An operator must act, and the process must not continue as if nothing had happened:
#   EROFS   the kernel makes a failing disk read-only; it stays so until an operator remounts it.
#   EACCES  and EPERM: waiting does not change permissions; EPERM is also link(2) on a file system without hard links.
#   ENOTDIR ELOOP: the path of the store's directory is not a directory, or a symlink.
#   EXDEV   another file system is mounted inside the store: link(2) and rename(2) cannot reach it.
#   EINVAL, EOPNOTSUPP, ENOSYS: the file system lacks an operation that the store needs.
_MISCONFIGURED = {
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "the operation is not permitted here; the file system must support hard links",
    errno.ENOTDIR: "a file stands where a directory should be",
    errno.ELOOP: "a symlink stands inside the store; it may be one as a whole, but hold none",
    errno.EXDEV: "another file system is mounted inside the store; a store is one file system",
    errno.EINVAL: "the file system does not support what the store needs",
    errno.EOPNOTSUPP: "the file system does not support what the store needs",
    errno.ENOSYS: "the file system does not support what the store needs",
}


def store_error(error: OSError, what: str, where: str) -> HeadgateError:
    """The product's error for an OSError.

    All other errors may heal (EIO of a network disk, ESTALE, EMFILE, ENOMEM) and become RetryError; the caller's own deadline
    bounds the retries.

    Args:
        what: the failed action, as the beginning of a sentence.
        where: the path or key.
    """
    code = error.errno if error.errno is not None else 0
    detail = f"path=`{where}` error=`{errno.errorcode.get(code, str(code))}`"
    if code in _FULL:
        return RetryError(Reason.STORE_FULL, f"{what} failed: no space is left. {detail}")
    if code in _MISCONFIGURED:
        return FatalError(Reason.STORE_MISCONFIGURED, f"{what} failed: {_MISCONFIGURED[code]}. {detail}")
    return RetryError(Reason.STORE_UNAVAILABLE, f"{what} failed. {detail}")


def raise_store_error(error: OSError, what: str, where: str) -> NoReturn:
    """`store_error`, raised from the OSError."""
    raise store_error(error, what, where) from error
