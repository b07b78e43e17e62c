"""From URLs to stores: valid URLs, the error for any other, and that they import nothing expensive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.store.local import LocalStore
from headgate.broker.store.memory import MemoryStore
from headgate.broker.store.open import open_store
from headgate.broker.store.wrappers import RetryingStore


async def test_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    urls = {
        str(tmp_path / "a"): "a",
        f"file://{tmp_path}/b": "b",
        f"file://localhost{tmp_path}/c%20c": "c c",
        "d": "d",
        "./e/f": "e/f",
        "g:h": "g:h",
        f"{tmp_path}/i/../j": "j",
        "file:k": "k",
        "file:./l%20m": "l m",
        "file:../" + tmp_path.name + "/n": "n",
    }
    for url, directory in urls.items():
        store = open_store(url)
        assert isinstance(store, LocalStore)
        assert store.url == str(tmp_path / directory)
        await store.put("x", b"1")
        assert (tmp_path / directory / "x").read_bytes() == b"1"
        await store.close()


async def test_memory_and_s3() -> None:
    memory, bucket = open_store("memory:"), open_store("s3://bucket/prefix")
    assert isinstance(memory, MemoryStore)
    assert isinstance(bucket, RetryingStore) and bucket.url == "s3://bucket/prefix" and bucket.appender is None
    await memory.close()
    await bucket.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://host/x",
        "gs://bucket/x",
        "S3://bucket",
        "file:",
        "file://host/x",
        "file://./x",
        "file:///x?y",
        "memory://x",
        "a\0b",
    ],
)
def test_anything_else(url: str) -> None:
    with pytest.raises(InvalidError) as caught:
        open_store(url)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert "not the URL of a store" in caught.value.message


def test_nothing_heavy_is_imported_for_a_directory(tmp_path: Path) -> None:
    """boto3 alone takes longer to import than a broker may take to its first answer, and Arrow's functions a tenth of that time."""
    script = (
        "import sys; from headgate.broker.store.open import open_store; open_store(sys.argv[1]);"
        "import headgate.broker.store.journal;"
        "heavy = ('boto3', 'botocore', 'headgate.broker.store.s3', 'prometheus_client', 'random');"
        "found = [name for name in heavy if name in sys.modules];"
        "import headgate.broker.cli.in_use, headgate.broker.cli.up;"
        "print(found + [name for name in ('boto3', 'pyarrow.compute') if name in sys.modules])"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert child.stdout.strip() == "[]"
