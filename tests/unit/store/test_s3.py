"""S3 when it fails: a real server behind a real proxy that breaks requests and answers on the wire.

Runs: boto3 with our settings, against moto; bytes are cut, delayed and refused between them. A mismatch means that the store
takes a known failure of S3 for success, for "no such object", or for a permanent error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store import s3
from headgate.broker.store.open import open_store
from headgate.broker.store.s3 import S3Store, open_s3, parse_s3_url
from headgate.broker.store.wrappers import RetryingStore
from tests.support.s3_proxy import Break, S3Proxy
from tests.support.s3_server import S3Server

READ_TIMEOUT_S = 2.0
"""Timeout of a store that must give up on a silent server; its other requests may take as long on a busy machine."""


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def store(s3_server: S3Server, proxy: S3Proxy) -> AsyncIterator[S3Store]:
    """A store behind the proxy, already open, so that a script hits only the test's own requests."""
    store = S3Store(s3_server.bucket(), "p", endpoint_url=proxy.endpoint)
    await store.probe()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def hasty(s3_server: S3Server, proxy: S3Proxy) -> AsyncIterator[S3Store]:
    """The same, with a short timeout for an answer."""
    store = S3Store(s3_server.bucket(), "p", endpoint_url=proxy.endpoint, read_timeout_s=READ_TIMEOUT_S)
    await store.probe()
    yield store
    await store.close()


def patient(store: S3Store) -> RetryingStore:
    return RetryingStore(store, clock=Clock(), sleep=asyncio.sleep, random=lambda: 0.5, pause_s_min=0.001, pause_s_max=0.01)


async def fails(call: Coroutine[Any, Any, object], kind: type[HeadgateError], reason: Reason) -> str:
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    assert caught.value.reason is reason, caught.value
    return caught.value.message


# -- one broken request

LOST: list[Break] = ["slow_down", "internal_error", "conflict", "reset"]


@pytest.mark.parametrize("fault", LOST)
async def test_a_request_that_is_refused_did_nothing_and_may_be_repeated(store: S3Store, proxy: S3Proxy, fault: Break) -> None:
    await store.put("there", b"0123456789")
    calls: list[tuple[str, Callable[[], Coroutine[Any, Any, object]], object]] = [
        ("PUT", lambda: store.put_if_absent("new", b"1"), True),
        ("PUT", lambda: store.put("there", b"0123456789"), None),
        ("GET", lambda: store.get("there"), b"0123456789"),
        ("GET", lambda: store.get_range("there", 2, 3), b"234"),
        ("GET", lambda: store.get_range("there", 0, 0), b""),
        ("DELETE", lambda: store.delete("nothing"), None),
    ]
    for method, call, answer in calls:
        proxy.fail(method, fault)
        message = await fails(call(), RetryError, Reason.STORE_UNAVAILABLE)
        assert store.url in message
        assert await call() == answer
    proxy.fail("GET", fault)
    await fails(store.list(""), RetryError, Reason.STORE_UNAVAILABLE)
    assert [row.key for row in await store.list("")] == ["new", "there"]


@pytest.mark.parametrize("fault", LOST)
async def test_patience_heals_refused_requests(store: S3Store, proxy: S3Proxy, fault: Break) -> None:
    retrying = patient(store)
    proxy.fail("PUT", fault, fault)
    assert await retrying.put_if_absent("a", b"1")
    assert retrying.retries == 2
    assert not await retrying.put_if_absent("a", b"1"), "without an error of its own, an equal object is still another's"
    proxy.fail("GET", fault, fault)
    assert await retrying.get("a") == b"1"


@pytest.mark.parametrize("fault", ["stored_then_500", "hang"])
async def test_an_ambiguous_create_is_an_error_and_patience_resolves_it(hasty: S3Store, proxy: S3Proxy, fault: Break) -> None:
    proxy.fail("PUT", fault)
    await fails(hasty.put_if_absent("a", b"1"), RetryError, Reason.STORE_UNAVAILABLE)
    assert await hasty.get("a") == b"1"
    retrying = patient(hasty)
    proxy.fail("PUT", fault)
    assert await retrying.put_if_absent("b", [b"1", b"2"]) is True
    assert await hasty.get("b") == b"12"
    # Another writer has created it: the result stays the same however often the own attempt fails in between.
    await hasty.put("c", b"another's")
    proxy.fail("PUT", "internal_error", fault)
    assert await retrying.put_if_absent("c", b"mine") is False
    assert await hasty.get("c") == b"another's"


async def test_of_16_creators_with_ambiguous_answers_one_wins(store: S3Store, proxy: S3Proxy) -> None:
    retrying = patient(store)
    for turn in range(3):
        for _ in range(4):
            proxy.fail("PUT", "stored_then_500", "slow_down", "conflict")
        created = await asyncio.gather(*(retrying.put_if_absent(f"race/{turn}", b"creator %d" % n) for n in range(16)))
        assert sum(created) == 1
        assert await store.get(f"race/{turn}") == b"creator %d" % created.index(True)


async def test_a_truncated_answer_is_an_error(store: S3Store, proxy: S3Proxy) -> None:
    data = bytes(range(256)) * 4000
    await store.put("a", data)
    proxy.fail("GET", "truncate")
    await fails(store.get("a"), RetryError, Reason.STORE_UNAVAILABLE)
    proxy.fail("GET", "truncate")
    await fails(store.get_range("a", 1000, 500_000), RetryError, Reason.STORE_UNAVAILABLE)
    # A middlebox that cuts an answer and corrects its length: only a range request shows the expected length.
    proxy.fail("GET", "shorten")
    assert "cut off" in await fails(store.get_range("a", 1000, 500_000), RetryError, Reason.STORE_UNAVAILABLE)
    proxy.fail("GET", "whole")
    await fails(store.get_range("a", 1000, 500_000), RetryError, Reason.STORE_UNAVAILABLE)
    retrying = patient(store)
    proxy.fail("GET", "truncate", "slow_down", "truncate")
    assert await retrying.get("a") == data
    proxy.fail("GET", "shorten", "whole")
    assert await retrying.get_range("a", 1000, 500_000) == data[1000:501_000]


async def test_a_server_that_is_silent_times_out(hasty: S3Store, proxy: S3Proxy) -> None:
    await hasty.put("a", b"1")
    proxy.fail("GET", "hang")
    await fails(hasty.get("a"), RetryError, Reason.STORE_UNAVAILABLE)
    proxy.fail("GET", "hang")
    await fails(hasty.list(""), RetryError, Reason.STORE_UNAVAILABLE)
    assert await hasty.get("a") == b"1"


async def test_one_attempt_is_one_request(store: S3Store, proxy: S3Proxy) -> None:
    """boto3 must not retry by itself: its repetition of an ambiguous PUT would be answered with 412, a lost race."""
    before = proxy.requests["PUT"]
    proxy.fail("PUT", "slow_down", "reset", "internal_error")
    for _ in range(3):
        await fails(store.put_if_absent("a", b"1"), RetryError, Reason.STORE_UNAVAILABLE)
    assert proxy.requests["PUT"] == before + 3


async def test_a_server_that_is_gone(s3_server: S3Server) -> None:
    with S3Proxy(s3_server) as proxy:
        endpoint = proxy.endpoint
    store = S3Store("bucket", endpoint_url=endpoint)
    await fails(store.get("a"), RetryError, Reason.STORE_UNAVAILABLE)
    await fails(store.probe(), RetryError, Reason.STORE_UNAVAILABLE)
    await store.close()


async def test_more_keys_than_one_answer_holds(store: S3Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_LISTING_KEYS_MAX", 3)
    keys = [f"k/{number}" for number in range(8)]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    for limit in (1, 3, 4, 7, 8, 100):
        assert [row.key for row in await store.list("", "", limit)] == keys[:limit]
    assert [row.key for row in await store.list("k/", "k/2", 4)] == keys[3:7]


# -- permanent errors


async def test_no_such_bucket(s3_server: S3Server) -> None:
    store = open_s3(s3_server.url("no-such-bucket", "p"))
    for call in (store.probe(), store.get("a"), store.put("a", b""), store.list("")):
        message = await fails(call, FatalError, Reason.STORE_MISCONFIGURED)
        assert "no such bucket" in message and "no-such-bucket" in message
    await store.close()


async def test_a_page_of_a_proxy_is_no_missing_object(store: S3Store, proxy: S3Proxy) -> None:
    """A load balancer without servers behind it answers 404 to everything."""
    await store.put("a", b"1")
    for method, call in (("GET", store.get("a")), ("GET", store.get_range("a", 0, 0)), ("DELETE", store.delete("a"))):
        proxy.fail(method, "page_not_found")
        assert "endpoint" in await fails(call, RetryError, Reason.STORE_UNAVAILABLE)
    assert await store.get("a") == b"1"


async def test_a_page_of_a_proxy_is_no_success(store: S3Store, proxy: S3Proxy) -> None:
    """A maintenance page with status 200: the broker would ack a record that was not stored, or see an empty listing."""
    await store.put("a", b"1")
    for method, call in (
        ("PUT", store.put_if_absent("b", b"2")),
        ("PUT", store.put("b", b"2")),
        ("GET", store.get("a")),
        ("GET", store.get_range("a", 0, 1)),
        ("GET", store.list("")),
    ):
        proxy.fail(method, "page")
        await fails(call, RetryError, Reason.STORE_UNAVAILABLE)
    assert [row.key for row in await store.list("")] == ["a"]


async def test_no_permission(store: S3Store, proxy: S3Proxy) -> None:
    proxy.fail("PUT", "denied")
    message = await fails(store.put("a", b""), FatalError, Reason.STORE_MISCONFIGURED)
    assert "permission" in message and "s3:GetObject" in message


async def test_no_credentials(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_s3(s3_server.url("bucket"))
    message = await fails(store.probe(), FatalError, Reason.STORE_MISCONFIGURED)
    assert "AWS_ACCESS_KEY_ID" in message
    await store.close()
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    store = open_s3(s3_server.url("bucket"))
    assert "AWS_PROFILE" in await fails(store.probe(), FatalError, Reason.STORE_MISCONFIGURED)
    await store.close()


async def test_credentials_that_are_renewed_in_their_file(
    s3_server: S3Server, proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program renews the credentials there before they expire: a broker continues with the new ones."""
    shared = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    shared.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = s\naws_session_token = t1\n")
    store = S3Store(s3_server.bucket(), "p", endpoint_url=proxy.endpoint)
    await store.put("a", b"1")
    proxy.expired_key = "old"
    assert "ExpiredToken" in await fails(store.get("a"), RetryError, Reason.STORE_UNAVAILABLE)
    shared.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = s\naws_session_token = t2\n")
    assert await patient(store).get("a") == b"1"
    await store.close()


async def test_a_server_that_ignores_conditions_is_refused(s3_server: S3Server) -> None:
    bucket = s3_server.bucket()
    with S3Proxy(s3_server) as proxy:
        proxy.fail_always("unconditional")
        for _ in range(2):
            store = S3Store(bucket, endpoint_url=proxy.endpoint)
            for call in (store.put_if_absent("a", b""), store.get("a"), store.probe()):
                assert "If-None-Match" in await fails(call, FatalError, Reason.STORE_MISCONFIGURED)
            await store.close()


async def test_the_probe_leaves_nothing_that_is_listed_and_is_one_request_the_second_time(
    s3_server: S3Server, proxy: S3Proxy
) -> None:
    bucket = s3_server.bucket()
    for puts in (2, 1):
        before = proxy.requests["PUT"]
        store = S3Store(bucket, endpoint_url=proxy.endpoint)
        await asyncio.gather(*(store.list("") for _ in range(4)))
        assert await store.list("") == []
        assert proxy.requests["PUT"] - before == puts
        await store.close()


async def test_two_prefixes_are_two_stores(s3_server: S3Server) -> None:
    bucket = s3_server.bucket()
    stores = [open_s3(s3_server.url(bucket, prefix)) for prefix in ("", "a", "a/b", "ab")]
    for number, store in enumerate(stores):
        assert await store.put_if_absent("k/x", b"%d" % number)
    for number, store in enumerate(stores):
        assert await store.get("k/x") == b"%d" % number
    assert [row.key for row in await stores[1].list("")] == ["b/k/x", "k/x"]
    assert [row.key for row in await stores[1].list("", "b/k/x")] == ["k/x"]
    assert [row.key for row in await stores[3].list("")] == ["k/x"]
    for store in stores:
        await store.close()


async def test_the_endpoint_may_come_from_the_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    store = open_store(f"s3://{s3_server.bucket()}/p")
    assert await store.put_if_absent("a", b"1")
    assert await store.get("a") == b"1"
    await store.close()


# -- URLs


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "options"),
    [
        ("s3://bucket", "bucket", "", {}),
        ("s3://bucket/", "bucket", "", {}),
        ("s3://my.bucket-1/a/b=c/", "my.bucket-1", "a/b=c", {}),
        ("s3://bucket/p?endpoint=http://127.0.0.1:9000", "bucket", "p", {"endpoint": "http://127.0.0.1:9000"}),
        (
            "s3://bucket?region=eu-west-1&endpoint=https%3A%2F%2Fs3.example",
            "bucket",
            "",
            {"region": "eu-west-1", "endpoint": "https://s3.example"},
        ),
    ],
)
def test_urls(url: str, bucket: str, prefix: str, options: dict[str, str]) -> None:
    assert parse_s3_url(url) == (bucket, prefix, options)
    store = open_s3(url)
    assert parse_s3_url(store.url) == (bucket, prefix, options)
    store._pool.shutdown()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s3://", "s3://bucket/prefix"),
        ("s3:bucket", "s3://bucket/prefix"),
        ("s3:///prefix", "s3://bucket/prefix"),
        ("s3://Bucket/p", "a-z"),
        ("s3://b", "3 to 63"),
        ("s3://user:secret@bucket/p", "s3://bucket/prefix"),
        ("s3://bucket/p#x", "s3://bucket/prefix"),
        ("s3://bucket--usw2-az1--x-s3/p", "directory buckets"),
        ("s3://bucket/a//b", "prefix"),
        ("s3://bucket/a/../b", "prefix"),
        ("s3://bucket/ä", "prefix"),
        ("s3://bucket/" + "/".join(["x" * 100] * 3), "200 bytes"),
        ("s3://bucket/p?regoin=x", "regoin"),
        ("s3://bucket/p?endpoint=localhost:9000", "http://host:9000"),
        ("s3://bucket/p?endpoint=http://", "http://host:9000"),
    ],
)
def test_bad_urls(url: str, hint: str) -> None:
    with pytest.raises(InvalidError) as caught:
        open_store(url)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert hint in caught.value.message


def test_credentials_in_an_endpoint_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidError) as caught:
        open_store("s3://bucket/p?endpoint=http://user:secret@host:9000")
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.message
    assert "secret@" not in caught.value.message


@pytest.mark.parametrize(
    ("status", "code", "kind", "reason"),
    [
        (404, "NoSuchKey", InvalidError, Reason.NOT_FOUND),
        (404, "NoSuchBucket", FatalError, Reason.STORE_MISCONFIGURED),
        (404, "XAdminUserNotFound", FatalError, Reason.STORE_MISCONFIGURED),
        (507, "XMinioStorageFull", RetryError, Reason.STORE_FULL),
        (403, "QuotaExceeded", RetryError, Reason.STORE_FULL),
        (400, "RequestTimeout", RetryError, Reason.STORE_UNAVAILABLE),
        (400, "ExpiredToken", RetryError, Reason.STORE_UNAVAILABLE),
        (403, "RequestTimeTooSkewed", RetryError, Reason.STORE_UNAVAILABLE),
        (429, "TooManyRequests", RetryError, Reason.STORE_UNAVAILABLE),
        (503, "SlowDown", RetryError, Reason.STORE_UNAVAILABLE),
        (409, "OperationAborted", RetryError, Reason.STORE_UNAVAILABLE),
        (403, "SignatureDoesNotMatch", FatalError, Reason.STORE_MISCONFIGURED),
        (301, "PermanentRedirect", FatalError, Reason.STORE_MISCONFIGURED),
        (400, "AuthorizationHeaderMalformed", FatalError, Reason.STORE_MISCONFIGURED),
        (501, "NotImplemented", FatalError, Reason.STORE_MISCONFIGURED),
        (405, "MethodNotAllowed", FatalError, Reason.STORE_MISCONFIGURED),
    ],
)
async def test_what_answers_mean(status: int, code: str, kind: type[HeadgateError], reason: Reason) -> None:
    import botocore.exceptions  # type: ignore[import-untyped]

    store = S3Store("bucket", "p")
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = store._refused(botocore.exceptions.ClientError(answer, "GetObject"), "reading an object", "a/b")
    assert type(error) is kind
    assert error.reason is reason
    assert ("the clock of this machine" in error.message) is (code == "RequestTimeTooSkewed")
    await store.close()
