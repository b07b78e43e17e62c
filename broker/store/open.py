"""`open_store`: makes a store from a user's URL or path."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.store.interface import Readable, Store
from headgate.broker.store.local_append import Fsync

FSYNC_INTERVAL_MS = 100
PRIVATE_URLS = frozenset({"memory:", "null:"})
"""Stores that only their own process can see, and that end with it."""


def open_store(url: str, *, fsync: Fsync = "always", fsync_interval_ms: int = FSYNC_INTERVAL_MS, required_key: str = "") -> Store:
    """The store at a URL: `/path`, `path`, `file:///path`, `file:path`, `s3://bucket/prefix`, `memory:` or `null:`. A relative
    path counts from the current directory.

    A directory is created and tested now, which blocks for some milliseconds. A bucket is tested by the first operation, and a
    failed request is retried for some seconds. A directory's errors are raised at once, because a disk does not lose requests on
    the way.

    Args:
        fsync, fsync_interval_ms: for a directory's append files, see `local_append.py`. Other stores have none.
        required_key: key of an object that a directory must contain; otherwise nothing is created there. Empty: none.

    Raises:
        InvalidError(INVALID_CONFIG): the text names no store; the message shows the valid forms.
        FatalError(STORE_MISCONFIGURED): the place cannot hold a store.
        RetryError: the disk is full or does not answer.
    """
    scheme, colon, rest = url.partition(":")
    if url == "memory:":
        from headgate.broker.store.memory import MemoryStore

        return MemoryStore()
    if url == "null:":
        from headgate.broker.store.null import NullStore

        return NullStore()
    if colon and scheme == "s3":
        return _open_s3(url)
    if colon and scheme == "file":
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
            raise _unknown(url, "a file URL names a path on this machine, as file:///var/lib/headgate or file:./headgate-data")
        return _open_local(unquote(parts.path), fsync, fsync_interval_ms, required_key)
    if not url or "\0" in url:
        raise _unknown(url, "write a directory, or s3://bucket/prefix")
    if colon and rest.startswith("//"):
        raise _unknown(url, "only directories, file:///path and s3://bucket/prefix are known")
    return _open_local(url, fsync, fsync_interval_ms, required_key)


def open_readable(url: str, pool: Executor | None = None) -> Readable:
    """Foreign files, to be read only, at `file:///path` or `s3://bucket/prefix`. Nothing is written there, not even as a test.

    Args:
        pool: threads for requests to S3; None: the store has its own.

    Raises InvalidError(INVALID_CONFIG), FatalError(STORE_MISCONFIGURED), for the reasons given at `open_store`.
    """
    if url.startswith("s3://"):
        return _open_s3(url.rstrip("/"), pool)
    if url.startswith("file:///"):
        from urllib.parse import unquote

        from headgate.broker.store.readable import ReadableDirectory

        return ReadableDirectory(unquote(url.removeprefix("file://")))
    raise _unknown(url, "files to be read lie under file:///path or s3://bucket/prefix")


def _open_local(path: str, fsync: Fsync, fsync_interval_ms: int, required_key: str) -> Store:
    from headgate.broker.store.local import LocalStore

    return LocalStore(path, fsync=fsync, fsync_interval_ms=fsync_interval_ms, required_key=required_key)


def _open_s3(url: str, pool: Executor | None = None) -> Store:
    import random

    from headgate.broker.store.s3 import open_s3
    from headgate.broker.store.wrappers import RetryingStore

    return RetryingStore(open_s3(url, pool), clock=Clock(), sleep=asyncio.sleep, random=random.random)


def _unknown(url: str, hint: str) -> InvalidError:
    return InvalidError(Reason.INVALID_CONFIG, f"not the URL of a store: {hint}. store=`{url}`")
