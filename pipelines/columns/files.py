"""The files of a source, on a file system or in a bucket of S3: their state, and handles to read ranges of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from headgate.broker.log.parquet import FOOTER_GUESS_BYTES, footer_size
from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines import spark_paths

fs: Any = pyarrow.fs

S3 = "s3://"
CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
"""Silence on a socket after which a request fails; Arrow then tries it again, three times in all."""
LOCAL_GUESS_BYTES = 8 << 10
"""Of the end of a local file, to be read at first: most small files have a shorter footer, and a second read costs little."""
DEFAULT_REGION = "us-east-1"
"""The region of servers other than AWS, which mostly ignore it."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a bucket. Tasks get it inside their own data; no text of it has the secrets.

    Without `access_key` each process finds credentials where AWS's tools look: the environment, the shared files, the machine's
    role. `endpoint` is empty for AWS.
    """

    region: str
    endpoint: str = ""
    anonymous: bool = False
    path_style: bool = True
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)


@lru_cache(maxsize=16)
def system(access: Access) -> Any:
    """The file system of a bucket: one for all its users in this process, because each has its own connections."""
    keys = {"access_key": access.access_key, "secret_key": access.secret_key, "session_token": access.session_token or None}
    return fs.S3FileSystem(
        region=access.region,
        anonymous=access.anonymous,
        endpoint_override=access.endpoint or None,
        force_virtual_addressing=not access.path_style,
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        **(keys if access.access_key else {}),
    )


@dataclass(frozen=True, slots=True)
class State:
    """What shows that a file is the same as before. `etag`: of an object of S3, else empty."""

    size_bytes: int
    modified_ns: int
    etag: str = ""


def opened(path: str, access: Access | None) -> tuple[Any, State]:
    """A handle for reading, a `pyarrow.NativeFile`, and the file's state.

    Args:
        path: ``s3://bucket/key`` if there is `access`.

    Raises OSError; FileNotFoundError without such a file.
    """
    if access is None:
        return pa.OSFile(path, "rb"), _local_state(path)
    handle = system(access).open_input_file(path.removeprefix(S3))
    return handle, _remote_state(handle)


def state_of(path: str, access: Access | None) -> State:
    """The file's state now. Raises as `opened` does."""
    if access is None:
        return _local_state(path)
    with system(access).open_input_file(path.removeprefix(S3)) as handle:
        return _remote_state(handle)


def _local_state(path: str) -> State:
    found = os.stat(path)
    return State(found.st_size, found.st_mtime_ns)


def _remote_state(handle: Any) -> State:
    notes = {name: value.decode() for name, value in handle.metadata().items()}
    modified = datetime.fromisoformat(notes["Last-Modified"]) if "Last-Modified" in notes else None
    return State(handle.size(), 0 if modified is None else int(modified.timestamp()) * 10**9, notes.get("ETag", ""))


def footer_of(handle: Any, size_bytes: int) -> bytes:
    """The bytes from the metadata to the end of the file. Raises OSError; InvalidError when it is no Parquet file."""
    guess = min(LOCAL_GUESS_BYTES if isinstance(handle, pa.OSFile) else FOOTER_GUESS_BYTES, size_bytes)
    tail: bytes = handle.read_at(guess, size_bytes - guess)
    size = footer_size(tail, size_bytes)
    if size > len(tail):
        tail = handle.read_at(size, size_bytes - size)
    return tail[len(tail) - size :]


def local_path(url: str) -> str:
    """The path of a ``file:`` URL."""
    return unquote(urlsplit(url).path)


def access_of(bucket: str, setting: Callable[[str], str], environment: dict[str, str]) -> Access | None:
    """The access to a bucket, by the settings of Spark's S3A; where these say nothing, by the variables of AWS's tools.

    Args:
        setting: the value of a setting of Hadoop, "" for none.

    Returns None when the settings ask for something that only S3A has.
    """

    def known(name: str) -> str:
        return (setting(f"fs.s3a.bucket.{bucket}.{name}") or setting(f"fs.s3a.{name}")).strip()

    providers = {provider.strip().rpartition(".")[2] for provider in known("aws.credentials.provider").split(",")} - {""}
    anonymous = providers == {"AnonymousAWSCredentialsProvider"}
    if not anonymous and not providers <= _PROVIDERS:
        return None
    encryption = known("encryption.algorithm") or known("server-side-encryption-algorithm")
    if encryption.upper() in ("SSE-C", "CSE-KMS", "CSE-CUSTOM"):
        return None  # objects whose bytes S3 gives out only with a key, or that the reader deciphers
    endpoint = known("endpoint") or environment.get("AWS_ENDPOINT_URL_S3", "") or environment.get("AWS_ENDPOINT_URL", "")
    own = _OF_AWS.fullmatch(endpoint)
    if own is not None:
        endpoint = ""
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if known('connection.ssl.enabled').lower() == 'false' else 'https'}://{endpoint}"
    region = known("endpoint.region") or environment.get("AWS_REGION", "") or environment.get("AWS_DEFAULT_REGION", "")
    if not region and own is not None and own.group(1):
        region = own.group(1)
    if not region:
        region = DEFAULT_REGION if endpoint else str(fs.resolve_s3_region(bucket))
    return Access(
        region,
        endpoint,
        anonymous,
        bool(endpoint) or known("path.style.access").lower() == "true",
        known("access.key"),
        known("secret.key"),
        known("session.token"),
    )


def access_by_environment(bucket: str) -> Access:
    """The access to a bucket by the variables of AWS's tools alone."""
    found = access_of(bucket, lambda _: "", dict(os.environ))
    assert found is not None, "no setting names a source of credentials"
    return found


def place_of(source: str, access: Callable[[str], Access]) -> tuple[Any, str, Access | None] | None:
    """(file system, the path there, access to its bucket) of a source; None if it is neither local nor on S3. Raises OSError.

    Args:
        access: of a bucket.
    """
    if (local := spark_paths.local_path(source)) is not None:
        return fs.LocalFileSystem(), local, None
    bucket = spark_paths.bucket_of(source)
    if not bucket:
        return None
    own = access(bucket)
    return system(own), f"{bucket}/{spark_paths.key_of(source)}".rstrip("/"), own


_OF_AWS = re.compile(r"(?:https?://)?s3(?:[.-]([a-z0-9-]+))?\.amazonaws\.com/?")
"""AWS's own endpoints; group 1 is the region."""
_PROVIDERS = frozenset(
    (
        "TemporaryAWSCredentialsProvider", "SimpleAWSCredentialsProvider", "EnvironmentVariableCredentialsProvider",
        "IAMInstanceCredentialsProvider", "DefaultCredentialsProvider", "ProfileAWSCredentialsProvider",
    )
)  # fmt: skip
"""Sources of credentials that Arrow has too, in the same order."""


def refused(error: Exception, source: str) -> HeadgateError:
    """The error for a source that S3 does not give out. `error`: Arrow's, an OSError or a ValueError."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, ValueError):
        return InvalidError(Reason.INVALID_REQUEST, f"the source's path or its access is none: {text} source=`{source}`")
    lowered = text.lower()
    if isinstance(error, FileNotFoundError) or "no_such_bucket" in lowered:
        return InvalidError(Reason.NOT_FOUND, f"the source cannot be read: it is not there. {text} source=`{source}`")
    if any(word in lowered for word in ("credential", "access_denied", "access denied", "forbidden", "signature", "access_key")):
        hint = "are there credentials for it? AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --conf spark.hadoop.fs.s3a.access.key"
        return FatalError(Reason.STORE_MISCONFIGURED, f"the source may not be read: {hint}. {text} source=`{source}`")
    return RetryError(Reason.STORE_UNAVAILABLE, f"the source cannot be read now: {text} source=`{source}`")
