"""A real S3 server for tests: a process of its own, and empty.

`s3_server` is a session fixture: import it into a conftest. It is moto's server mode, or the server that HEADGATE_TEST_S3 names
(`tests/support/s3_foreign.py`). `S3Server.environment` has the variables with which a broker process reaches it.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.ports import free_port

HOST = "127.0.0.1"
MOTO = Path(__file__).with_name("moto_server.py")
START_DEADLINE_S = 120.0

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "headgate",
    "AWS_SECRET_ACCESS_KEY": "headgate-test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Uses no configuration of the test machine: no profile, no files, no role.
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server(ABC):
    """A running server; empty at first."""

    ready_path: ClassVar[str] = "/"
    """A path that the server answers once it serves."""

    def __init__(self) -> None:
        self.port = free_port(HOST)
        self.endpoint = f"http://{HOST}:{self.port}"
        self.environment = dict(ENVIRONMENT)
        self._directory = tempfile.TemporaryDirectory(prefix="headgate-s3-")
        self.directory = Path(self._directory.name)
        self._output = (self.directory / "output").open("w+b")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._buckets = 0
        try:
            self.start()
            self._wait()
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def start(self) -> None:
        """Start the server's processes with `spawn`."""

    def spawn(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process that ends with the server."""
        self._processes.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **ENVIRONMENT, **(environment or {})},
            )
        )

    def bucket(self) -> str:
        """A new empty bucket's name."""
        import boto3  # type: ignore[import-untyped]

        self._buckets += 1
        name = f"bucket-{self._buckets}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=ENVIRONMENT["AWS_REGION"],
            aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        )
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name

    def url(self, bucket: str, prefix: str = "") -> str:
        """The store's URL of a prefix of a bucket on this server."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}"

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._output.close()
        self._directory.cleanup()

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def _wait(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
            try:
                connection.request("GET", self.ready_path)
                response = connection.getresponse()
                response.read()
                if response.status < 500:
                    return
            except OSError:
                ended = any(process.poll() is not None for process in self._processes)
                if ended or time.monotonic() > deadline:
                    raise AssertionError(f"the S3 server did not start: {self.output()[-3000:]}") from None
            finally:
                connection.close()
            time.sleep(0.05)


class MotoServer(S3Server):
    ready_path = "/moto-api/"

    def start(self) -> None:
        command = [sys.executable, "-P", str(MOTO), "-H", HOST, "-p", str(self.port)]
        self.spawn(command, {"MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(64 << 20)})


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server for the whole session. The environment of the process holds its credentials meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        if (name := os.environ.get("HEADGATE_TEST_S3", "moto")) == "moto":
            server: S3Server = MotoServer()
        else:
            from tests.support.s3_foreign import SERVERS

            server = SERVERS[name]()
        try:
            yield server
        finally:
            server.stop()
