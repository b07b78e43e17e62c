"""An S3 bucket as a store, through boto3.

`put_if_absent` is `PutObject` with `If-None-Match: *` (AWS S3 since 2024-08, and most compatible servers). Some servers ignore
the header; with such a server, two brokers would both believe that they own the store. So before the first operation a probe
creates an object twice, and the store refuses a server that accepts both. No listing shows the probe's object: `~` is not of the
alphabet of keys.

A lost race is 412 PreconditionFailed. 409 ConditionalRequestConflict means that another request for the key was in progress and
the outcome is unknown: it is handled like any other error.
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html)

boto3's own retries are off: `RetryingStore` knows which calls may be retried, and how to interpret a retry that finds the key
taken. The first operation imports boto3, in its own thread, because that import takes longer than all other work at a broker's
start.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from headgate.broker.runtime.errors import ClosedError, FatalError, InvalidError, Reason, RetryError
from headgate.broker.runtime.threads import Pool
from headgate.broker.store.interface import Appender, Buffer, ObjectInfo, Ranges
from headgate.broker.store.keys import check_key, check_listing, check_range, check_ranges, not_found, views

if TYPE_CHECKING:
    from headgate.broker.runtime.errors import HeadgateError

CONNECTIONS_MAX = 16
"""Threads and sockets; further requests wait. 16 fill 10 Gbit/s with chunks of 8 MiB."""
CONNECT_TIMEOUT_S = 11.0
"""One round trip with up to 5 s of delay each way."""
READ_TIMEOUT_S = 25.0
"""Bound for the silence on a socket, not for a whole transfer: two such round trips, and 5 s for the server."""
READ_UNIT_BYTES = 512 << 10
"""Unit of reads, in bytes: a connection of 50 MB/s transfers it in the 10 ms that a request waits for its first byte."""
PREFIX_BYTES_MAX = 200
"""Longest prefix: with KEY_BYTES_MAX it stays within the 1024 bytes that S3 allows."""

_PROBE = ".probe~"
_LISTING_KEYS_MAX = 1000
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

_T = TypeVar("_T")
_Rows: TypeAlias = list[ObjectInfo]


def parse_s3_url(url: str) -> tuple[str, str, dict[str, str]]:
    """(bucket, prefix without slashes around it, options) of `s3://bucket/prefix?endpoint=http://host:9000&region=eu-west-1`.

    Raises InvalidError(INVALID_CONFIG) with a message that shows the valid form.
    """
    parts = urlsplit(url)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme != "s3" or parts.fragment or _BUCKET.fullmatch(bucket) is None:
        raise _bad_url(url, "write s3://bucket/prefix, where the bucket has 3 to 63 of a-z, 0-9, '.' and '-'")
    if bucket.endswith("--x-s3"):
        raise _bad_url(url, "directory buckets list their keys without order: use a general purpose bucket")
    if unknown := options.keys() - {"endpoint", "region"}:
        raise _bad_url(url, f"unknown option {sorted(unknown)[0]!a}: only endpoint and region are known")
    if "endpoint" in options:
        endpoint = urlsplit(options["endpoint"])
        if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
            raise _bad_url(url, "the endpoint is a URL as http://host:9000")
        if endpoint.username is not None or endpoint.password is not None:
            # Not repeated in the message: the credentials would end up in a log.
            message = "credentials do not belong in the store's URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise InvalidError(Reason.INVALID_CONFIG, f"{message}. bucket=`{bucket}`")
    try:
        if prefix:
            check_key(prefix)
    except InvalidError as error:
        raise _bad_url(url, "the prefix may hold letters, digits, '.', '_', '=', '-' and single slashes") from error
    if len(prefix) > PREFIX_BYTES_MAX:
        raise _bad_url(url, f"the prefix is longer than {PREFIX_BYTES_MAX} bytes")
    return bucket, prefix, options


def _bad_url(url: str, hint: str) -> InvalidError:
    return InvalidError(Reason.INVALID_CONFIG, f"not the URL of a store: {hint}. store=`{url}`")


class S3Store:
    """Objects of a bucket below a prefix. The module's text describes the use of S3.

    Credentials come from the sources of AWS tools: the environment, the shared files, the machine's role. An omitted
    `region` or `endpoint_url` comes from there, too. A cancelled call continues in its thread: it may still take effect.

    Args:
        prefix: in front of all keys, without slashes around it; may be empty.
        endpoint_url: address of a server other than AWS.
        region: the bucket's region.
        connections_max: most requests at a time.
        connect_timeout_s, read_timeout_s: silence after which a request fails with RetryError.
        pool: threads for the requests; the pool's owner ends them. None: the store has its own.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        connections_max: int = CONNECTIONS_MAX,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        pool: Executor | None = None,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint_url = endpoint_url
        self._region = region
        self._connections_max = connections_max
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._own_pool = Pool(connections_max, "s3") if pool is None else None
        self._pool = self._own_pool or pool
        self._connecting = threading.Lock()
        self._client: Any = None
        """Set once the probe has passed."""
        self._credentials: object = None
        """The credentials of the current client."""
        self._closed = False

    @property
    def url(self) -> str:
        options = {"endpoint": self._endpoint_url, "region": self._region}
        query = urlencode({name: value for name, value in options.items() if value is not None}, safe=":/")
        prefix = "/" + self._prefix.rstrip("/") if self._prefix else ""
        return f"s3://{self._bucket}{prefix}" + (f"?{query}" if query else "")

    @property
    def appender(self) -> Appender | None:
        return None

    @property
    def read_unit_bytes(self) -> int:
        return READ_UNIT_BYTES

    async def probe(self) -> None:
        """Connect now; otherwise the first operation connects.

        Raises:
            FatalError: no such bucket, no permission, no credentials, or a server without conditional writes.
            RetryError: the server does not answer.
        """
        await self._run("opening the store", "", lambda client: None)

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        check_key(key)
        return await self._run("creating an object", key, lambda client: self._create(client, key, b"".join(views(data))))

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        check_key(key)

        def call(client: Any) -> None:
            response = client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=b"".join(views(data)))
            self._check_origin(response, "ETag", key)

        await self._run("writing an object", key, call)

    async def get(self, key: str) -> bytes:
        check_key(key)

        def call(client: Any) -> bytes:
            response = client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            self._check_origin(response, "ETag", key)
            return _read(response, response["ContentLength"], self._where(key))

        return await self._run("reading an object", key, call)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        return await self._run("reading an object", key, lambda client: self._get_range(client, key, start, length))

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        # A request asks for one range: S3 answers a request for several ranges with the whole object.
        check_ranges(ranges)
        return b"".join(await asyncio.gather(*[self.get_range(key, start, length) for start, length in ranges or [(0, 0)]]))

    async def keep(self, key: str, source: str, *, copy: bool) -> bool:
        check_key(key)
        if not copy:
            return False
        bucket, _, name = source.removeprefix("s3://").partition("/")

        try:
            # In parts, side by side, where it is large.
            await self._run(
                "copying", key, lambda client: client.copy({"Bucket": bucket, "Key": name}, self._bucket, self._prefix + key)
            )
        except FatalError:
            return False  # the store's own credentials may not see the source's bucket, or the server does not copy
        return True

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        check_listing(prefix, start_after, limit)
        return await self._run("listing objects", prefix, lambda client: self._listing(client, prefix, start_after, limit))

    async def delete(self, key: str) -> None:
        check_key(key)

        def call(client: Any) -> None:
            client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

        try:
            await self._run("deleting an object", key, call)
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        pool, client = self._own_pool, self._client
        if pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, lambda: pool.shutdown(cancel_futures=True))
        if client is not None:
            await asyncio.get_running_loop().run_in_executor(None, client.close)

    async def _run(self, what: str, key: str, call: Callable[[Any], _T]) -> _T:
        if self._closed:
            raise ClosedError(Reason.CLOSED, f"the store was closed. url=`{self.url}`")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._blocking, what, key, call)

    def _blocking(self, what: str, key: str, call: Callable[[Any], _T]) -> _T:
        import botocore.exceptions  # type: ignore[import-untyped]
        from urllib3.exceptions import HTTPError

        client = None
        try:
            client = self._connected()
            return call(client)
        except botocore.exceptions.ClientError as error:
            if _code(error) in _CREDENTIALS_CODES and self._has_new_credentials(client):
                message = f"{what} failed: the credentials have changed. {self._where(key)} code=`{_code(error)}`"
                raise RetryError(Reason.STORE_UNAVAILABLE, message) from error
            raise self._refused(error, what, key) from error
        except botocore.exceptions.BotoCoreError as error:
            raise _failed(error, what, self._where(key)) from error
        except (HTTPError, OSError) as error:
            # botocore translates errors before an answer's body, but not all errors within it. Any of them means that the bytes are
            # missing.
            raise RetryError(Reason.STORE_UNAVAILABLE, f"{what} failed: {error}. {self._where(key)}") from error

    def _connected(self) -> Any:
        """The client. The first call proves that the server honours `If-None-Match`, which `put_if_absent` needs."""
        if self._client is None:
            with self._connecting:
                if self._client is None:
                    client = self._connect()
                    # The object stays, so that every later start needs a single request.
                    if self._create(client, _PROBE, b"") and self._create(client, _PROBE, b""):
                        message = (
                            "the S3 server ignores If-None-Match, so two brokers could both own this store: "
                            f"use a server with conditional writes. {self._where('')}"
                        )
                        raise FatalError(Reason.STORE_MISCONFIGURED, message)
                    self._client = client
        return self._client

    def _has_new_credentials(self, client: Any) -> bool:
        """Whether boto3 now finds credentials other than the refused ones; if so, the next request connects with them.

        The credentials of a role renew themselves. Renewed credentials in `~/.aws/credentials` are only read by a new
        client.
        """
        import boto3  # type: ignore[import-untyped]
        import botocore.exceptions

        with self._connecting:
            if client is None or self._client is not client:
                return client is not None  # another thread has replaced the client already
            try:
                found = _credentials(boto3.session.Session())
            except botocore.exceptions.BotoCoreError:
                return False  # the caller gets the original refusal
            if found == self._credentials:
                return False
            self._client = None  # not closed: other threads may be in the middle of a request
            return True

    def _connect(self) -> Any:
        import boto3
        from botocore.config import Config  # type: ignore[import-untyped]

        config = Config(
            max_pool_connections=self._connections_max,
            connect_timeout=self._connect_timeout_s,
            read_timeout=self._read_timeout_s,
            retries={"total_max_attempts": 1},
            # Servers other than AWS often do not know the newer checksums. Our stored formats contain their own checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
            user_agent_extra="headgate",
        )
        session = boto3.session.Session()
        self._credentials = _credentials(session)
        return session.client("s3", endpoint_url=self._endpoint_url, region_name=self._region, config=config)

    def _create(self, client: Any, name: str, body: bytes) -> bool:
        import botocore.exceptions

        try:
            response = client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=body, IfNoneMatch="*")
        except botocore.exceptions.ClientError as error:
            if _status(error) == 412:
                return False
            raise
        self._check_origin(response, "ETag", name)
        return True

    def _get_range(self, client: Any, key: str, start: int, length: int) -> bytes:
        import botocore.exceptions

        if length == 0:
            # No Range header can ask for 0 bytes. A missing object must still raise. HEAD would not do: its answer does not tell a
            # missing object from a missing bucket.
            self._get_range(client, key, start, 1)
            return b""
        try:
            response = client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=f"bytes={start}-{start + length - 1}")
        except botocore.exceptions.ClientError as error:
            if _status(error) == 416:
                return b""  # the object ends at or before `start`
            raise
        size = re.fullmatch(r"bytes \d+-\d+/(\d+)", response.get("ContentRange", ""))
        if size is None:
            response["Body"].close()
            raise RetryError(Reason.STORE_UNAVAILABLE, f"the S3 server did not answer with a range. {self._where(key)}")
        return _read(response, min(length, int(size[1]) - start), self._where(key))

    def _listing(self, client: Any, prefix: str, start_after: str, limit: int) -> _Rows:
        found: _Rows = []
        after = self._prefix + start_after if start_after else ""
        while True:
            request = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, "MaxKeys": min(limit, _LISTING_KEYS_MAX)}
            response = client.list_objects_v2(**request, **({"StartAfter": after} if after else {}))
            self._check_origin(response, "IsTruncated", prefix)
            rows = response.get("Contents", [])
            for row in rows:
                key = row["Key"][len(self._prefix) :]
                if _is_key(key):
                    found.append(ObjectInfo(key, row["Size"], int(row["LastModified"].timestamp() * 1000)))
                if len(found) == limit:
                    return found
            if not response.get("IsTruncated") or not rows:
                return found
            after = rows[-1]["Key"]

    def _check_origin(self, response: Any, field: str, key: str) -> None:
        """Refuse an answer with status 200 that is a page of a proxy. botocore takes it for a success, but S3's own fields are
        missing."""
        if field not in response:
            if "Body" in response:
                response["Body"].close()
            raise RetryError(Reason.STORE_UNAVAILABLE, f"{_FOREIGN}. {self._where(key)}")

    def _where(self, key: str) -> str:
        return f"store=`{self.url}`" + (f" key=`{key}`" if key else "")

    def _refused(self, error: Any, what: str, key: str) -> HeadgateError:
        """The error that the caller gets for an error answer. `error`: a ClientError."""
        status, code = _status(error), _code(error)
        if code == "NoSuchBucket":
            message = f"there is no such bucket: create it, or name another one with --store. {self._where('')}"
            return FatalError(Reason.STORE_MISCONFIGURED, message)
        if code == "NoSuchKey":
            return not_found(key)
        detail = f"{self._where(key)} status=`{status}` code=`{code}`"
        if status == 404 and code == "404":
            # A proxy without a server behind it answers this. Read as a missing object, it would make every object appear missing.
            return RetryError(Reason.STORE_UNAVAILABLE, f"{what} failed: {_FOREIGN}. {detail}")
        if status == 507 or code in _FULL_CODES:
            return RetryError(Reason.STORE_FULL, f"{what} failed: no space is left. {detail}")
        if code == "RequestTimeTooSkewed":
            hint = "the clock of this machine differs too much from the S3 server's: set it right (NTP)"
            return RetryError(Reason.STORE_UNAVAILABLE, f"{what} failed: {hint}. {detail}")
        if code in _RETRY_CODES or status in (408, 409, 429) or (status >= 500 and status != 501):
            return RetryError(Reason.STORE_UNAVAILABLE, f"{what} failed: the S3 server cannot serve it now. {detail}")
        if status in (401, 403):
            hint = "permission is denied: the credentials need s3:GetObject, PutObject, DeleteObject and ListBucket"
        elif status in (301, 307) or code in _REGION_CODES:
            hint = "the bucket is in another region: set AWS_REGION, or write s3://bucket/prefix?region=..."
        else:
            hint = "the S3 server does not accept what the store needs"
        return FatalError(Reason.STORE_MISCONFIGURED, f"{what} failed: {hint}. {detail}")


_FOREIGN = "the answer is not of an S3 server: look at the endpoint, and at what stands in front of it"
# Quotas of servers other than AWS; Ceph answers 403 for them.
_FULL_CODES = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
# Answers of the 4xx range that a retry heals: expired tokens are fetched anew, and bodies arrive whole the next time.
_RETRY_CODES = {"SlowDown", "RequestTimeout", "ExpiredToken", "BadDigest", "IncompleteBody", "Throttling"}
# Refusals of credentials that may have been replaced at their source since.
_CREDENTIALS_CODES = {"ExpiredToken", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
_REGION_CODES = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}


def _failed(error: Exception, what: str, where: str) -> HeadgateError:
    """The error for a request that got no answer from the server. `error`: a BotoCoreError. `where`: for its message."""
    from botocore import exceptions

    hints: list[tuple[tuple[type[Exception], ...], str]] = [
        (
            (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.NoAuthTokenError),
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role",
        ),
        (
            (exceptions.ProfileNotFound, exceptions.ConfigParseError, exceptions.ConfigNotFound),
            "the AWS configuration cannot be used: look at AWS_PROFILE and ~/.aws",
        ),
        (
            (exceptions.InvalidRegionError, exceptions.NoRegionError, exceptions.InvalidEndpointConfigurationError),
            "the region or endpoint cannot be used: write s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1",
        ),
    ]
    for kinds, hint in hints:
        if isinstance(error, kinds):
            return FatalError(Reason.STORE_MISCONFIGURED, f"{what} failed: {hint}. {where} error=`{error}`")
    return RetryError(Reason.STORE_UNAVAILABLE, f"{what} failed: no answer. {where} error=`{error}`")


def _read(response: Any, expected: int, where: str) -> bytes:
    """The body of an answer, of `expected` bytes. Raises RetryError if it was cut off. `where`: for its message."""
    with response["Body"] as body:
        data: bytes = body.read()
    if len(data) != expected:
        message = f"an answer was cut off. {where} expected=`{expected}` received=`{len(data)}`"
        raise RetryError(Reason.STORE_UNAVAILABLE, message)
    return data


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _credentials(session: Any) -> object:
    """The credentials that a boto3 session finds, in a comparable form; None if it finds none."""
    found = session.get_credentials()
    return None if found is None else found.get_frozen_credentials()


def _is_key(key: str) -> bool:
    """Whether a listing shows this key. It hides `folder/` objects, which consoles leave, and the probe's object."""
    try:
        check_key(key)
    except InvalidError:
        return False
    return True


def open_s3(url: str, pool: Executor | None = None) -> S3Store:
    """The store at an `s3://` URL, without a request to the server. Raises InvalidError(INVALID_CONFIG).

    Args:
        pool: see S3Store.
    """
    bucket, prefix, options = parse_s3_url(url)
    return S3Store(bucket, prefix, endpoint_url=options.get("endpoint"), region=options.get("region"), pool=pool)
