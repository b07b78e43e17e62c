"""A catalog of the user's, reached with PyIceberg in a process of its own (`catalog_work.py`): the broker's end.

PyIceberg takes half a second to load and blocks while it waits for a catalog, so no broker loads it. A request is a line of
JSON, as is its answer; there is one request at a time. The process ends when its input is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Protocol

import msgspec

from headgate.broker.runtime.modules import found_by

ANSWER_S = 60.0
"""Longest wait for the answer to one request, in seconds. PyIceberg itself waits for ever for a catalog that says nothing."""
START_S = 300.0
"""Longest wait for the first answer, in seconds: on a starved machine PyIceberg takes minutes to load."""


class Register(msgspec.Struct, frozen=True, tag="register"):
    """Show a table with this metadata. `prefix`: of the addresses of all metadata of this cluster; a table of the same name with
    other metadata is another one's, and stays."""

    namespace: str
    name: str
    metadata: str
    prefix: str


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Drop the tables of this cluster in a namespace, except these. Data and metadata stay where they are."""

    namespace: str
    kept: list[str]
    prefix: str


Request = Register | Forget


class Worker(Protocol):
    """Does the requests."""

    async def do(self, request: Request) -> str:
        """Do a request. Returns the error as one line; empty: it is done."""

    async def close(self) -> None:
        """Release the process."""


class CatalogProcess:
    """The broker's end. The first request starts the process. `name`: of a catalog in PyIceberg's configuration."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: asyncio.subprocess.Process | None = None

    async def do(self, request: Request) -> str:
        limit_s = START_S if self._process is None else ANSWER_S
        try:
            async with asyncio.timeout(limit_s):
                if self._process is None:
                    self._process = await asyncio.create_subprocess_exec(
                        sys.executable, "-P", "-m", f"{__spec__.parent}.catalog_work", self._name,
                        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                        env=found_by(os.environ),
                    )  # fmt: skip
                assert self._process.stdin is not None and self._process.stdout is not None
                self._process.stdin.write(msgspec.json.encode(request) + b"\n")
                await self._process.stdin.drain()
                answer = await self._process.stdout.readline()
        except TimeoutError:
            await self.close()
            return f"the catalog does not answer within {limit_s:g} s"
        except (OSError, ValueError) as error:
            await self.close()
            return f"the process of the catalog ended: {error}"
        except asyncio.CancelledError:
            await self.close()  # its answer would be taken for that of the next request
            raise
        if not answer:
            await self.close()
            return "the process of the catalog ended"
        return str(json.loads(answer))

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
