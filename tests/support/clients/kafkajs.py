"""kafkajs, in a Node process that speaks JSON lines (`tests/compat/kafkajs/helper.js`)."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import wire
from tests.support.clients.interface import ClientError
from tests.support.npm import SOURCE, install
from tests.support.records import Read, Record

_JOIN_GROUP = 11


class Kafkajs:
    name = "kafkajs"
    empty_records = True
    # Its record encoder takes the byte length of the value without a check for null.
    null_header_values = False
    header_order = False

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[int]:
        rows = [
            {
                "partition": record.partition,
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [(key, _text(value)) for key, value in record.headers],
                "timestamp": record.timestamp_ms,
            }
            for record in records
        ]
        request = {"topic": topic, "codec": codec, "acks": acks, "idempotent": idempotent, "records": rows}
        return [int(offset) for offset in self._call("produce", bootstrap, request)["offsets"]]

    def consume(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> Mapping[int, list[Read]]:
        host, port = bootstrap.rsplit(":", 1)
        # kafkajs consumes in a group; if the broker has no groups, the test reads through the same client's fetch requests.
        group = f"compat-{uuid.uuid4().hex}" if _JOIN_GROUP in wire.api_versions(host, int(port)) else None
        answer = self._call("consume", bootstrap, {"topic": topic, "partitions": list(partitions), "group": group})
        found: dict[int, list[Read]] = {partition: [] for partition in partitions}
        for row in answer["records"]:
            found[row["partition"]].append(
                Read(
                    partition=row["partition"],
                    offset=int(row["offset"]),
                    key=_bytes(row["key"]),
                    value=_bytes(row["value"]),
                    headers=tuple((key, _bytes(value)) for key, value in row["headers"]),
                    timestamp_ms=int(row["timestamp"]),
                    append_time=row["appendTime"],
                )
            )
        return found

    def admin(self, bootstrap: str, method: str, argument: Any = None) -> Any:
        """Call a method of kafkajs's admin client with one argument. Raises ClientError."""
        return self.admin_calls(bootstrap, [(method, argument)])[0]

    def admin_calls(self, bootstrap: str, calls: Sequence[tuple[str, Any]]) -> list[Any]:
        """Several calls of one admin client. Raises ClientError."""
        results: list[Any] = self._call("admin", bootstrap, {"calls": list(calls)})["results"]
        return results

    def _call(self, operation: str, bootstrap: str, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"op": operation, "bootstrap": bootstrap, **request}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"the kafkajs helper ended. exit=`{process.poll()}`"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["code"], answer["error"])
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                ["node", str(SOURCE / "helper.js")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, "KAFKAJS_HOME": str(install())},
            )
        return self._process


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
