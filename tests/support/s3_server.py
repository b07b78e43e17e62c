"""A real S3 server for tests: moto's server mode in a process of its own.

`s3_server` is a session fixture: import it into a conftest. `S3Server.environment` has the variables with which a broker process
reaches it.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.support.ports import free_port

HOST = "127.0.0.1"
START_DEADLINE_S = 60.0

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Uses no configuration of the test machine: no profile, no files, no role.
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server:
    """A running server; empty at first."""

    def __init__(self) -> None:
        self.port = free_port(HOST)
        self.endpoint = f"http://{HOST}:{self.port}"
        self.environment = dict(ENVIRONMENT)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115, closed by `stop`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT, "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(64 << 20)},
        )
        self._buckets = 0
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def bucket(self) -> str:
        """A new empty bucket's name."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        connection = http.client.HTTPConnection(HOST, self.port, timeout=START_DEADLINE_S)
        try:
            connection.request("PUT", f"/{name}", headers={"Host": f"{HOST}:{self.port}"})
            response = connection.getresponse()
            assert response.status == 200, (response.status, response.read())
            response.read()
        finally:
            connection.close()
        return name

    def url(self, bucket: str, prefix: str = "") -> str:
        """The store's URL of a prefix of a bucket on this server."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
            try:
                connection.request("GET", "/moto-api/")
                connection.getresponse().read()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._output.seek(0)
                    raise AssertionError(f"moto's server did not start: {self._output.read().decode(errors='replace')}") from None
                time.sleep(0.05)
            finally:
                connection.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server for the whole session. The environment of the process holds its credentials meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        server = S3Server()
        try:
            yield server
        finally:
            server.stop()
