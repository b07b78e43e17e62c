"""A schema registry in this process, after the documented API of Confluent's: enough for its clients, and stricter.

It refuses unknown paths, bodies with unknown fields, other types of content, and texts that are no schema of their type. Where a
subject is in `closed`, it accepts no further schema there, as a rule of compatibility does that nothing passes.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import fastavro
from google.protobuf import descriptor_pb2
from jsonschema import Draft7Validator

from headgate.broker.runtime.threads import begin

CONTENT = "application/vnd.schemaregistry.v1+json"
LOGIN = "web:secret"


class RegistryError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def proto_descriptor(text: str, references: dict[str, str]) -> bytes:
    """The descriptor of a .proto file."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for name, other in references.items():
            (place / name).write_text(other)
        (place / "schema.proto").write_text(text)
        own = str(Path(protoc.__file__).parent / "_proto")
        if protoc.main(["protoc", f"-I{place}", f"-I{own}", f"--descriptor_set_out={place}/out", str(place / "schema.proto")]):
            raise RegistryError(422, 42201, "Invalid schema")
        (file,) = descriptor_pb2.FileDescriptorSet.FromString((place / "out").read_bytes()).file
        return file.SerializeToString()


class FakeRegistry:
    """Subjects and their schemas."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        """By id, from 1 on: `schemaType`, `schema`, `references`; of Protobuf also `descriptor`."""
        self.subjects: dict[str, list[int]] = {}
        self.closed: set[str] = set()
        self.login = False
        self.broken = 0
        """So many further answers are errors of the server."""
        self.asked: list[str] = []
        self.url = ""

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        """The id of a schema."""
        found = {"schemaType": kind, "schema": schema, "references": references or []}
        others = {one["name"]: self.version(one["subject"], str(one["version"]))["schema"] for one in found["references"]}
        self._check(found, others)
        at = next((at for at, one in enumerate(self.schemas, 1) if one["schema"] == schema and one["schemaType"] == kind), None)
        if subject in self.closed and (at is None or at not in self.subjects.get(subject, ())):
            raise RegistryError(409, 409, "Schema being registered is incompatible with an earlier schema")
        if at is None:
            self.schemas.append(found)
            at = len(self.schemas)
        if at not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(at)
        return at

    def _check(self, found: dict[str, Any], others: dict[str, str]) -> None:
        try:
            if found["schemaType"] == "AVRO":
                named: dict[str, Any] = {}
                for text in others.values():
                    fastavro.parse_schema(json.loads(text), named_schemas=named)
                fastavro.parse_schema(json.loads(found["schema"]), named_schemas=named)
            elif found["schemaType"] == "JSON":
                Draft7Validator.check_schema(json.loads(found["schema"]))
            elif found["schemaType"] == "PROTOBUF":
                try:
                    data = base64.b64decode(found["schema"], validate=True)
                    descriptor_pb2.FileDescriptorProto.FromString(data)
                except ValueError:
                    data = proto_descriptor(found["schema"], others)
                found["descriptor"] = base64.b64encode(data).decode()
            else:
                raise RegistryError(422, 42201, f"Invalid schema type {found['schemaType']}")
        except RegistryError:
            raise
        except Exception as error:  # every library has its own errors for texts that are no schema
            raise RegistryError(422, 42201, f"Invalid schema: {error}") from error

    def version(self, subject: str, version: str, form: str = "") -> dict[str, Any]:
        if subject not in self.subjects:
            raise RegistryError(404, 40401, f"Subject '{subject}' not found.")
        ids = self.subjects[subject]
        number = len(ids) if version in ("latest", "-1") else int(version)
        if not 0 < number <= len(ids):
            raise RegistryError(404, 40402, f"Version {version} not found.")
        return {"subject": subject, "version": number, **self.schema(ids[number - 1], form)}

    def schema(self, number: int, form: str = "") -> dict[str, Any]:
        if not 0 < number <= len(self.schemas):
            raise RegistryError(404, 40403, f"Schema {number} not found")
        found = self.schemas[number - 1]
        said = {"id": number, "schema": found["schema"]}
        if form == "serialized" and found["schemaType"] == "PROTOBUF":
            said["schema"] = found["descriptor"]
        if found["schemaType"] != "AVRO":  # Confluent's leaves out what is usual
            said["schemaType"] = found["schemaType"]
        if found["references"]:
            said["references"] = found["references"]
        return said

    def answer(self, method: str, path: str, form: str, body: Any) -> Any:
        """Raises RegistryError."""
        if method == "GET" and (found := re.fullmatch(r"/subjects/([^/]+)/versions/([^/]+)", path)):
            return self.version(unquote(found[1]), found[2], form)
        if method == "GET" and (found := re.fullmatch(r"/schemas/ids/(\d+)", path)):
            return self.schema(int(found[1]), form)
        if method == "POST" and (found := re.fullmatch(r"/subjects/([^/]+)(/versions)?", path)):
            if not isinstance(body, dict) or not body.keys() <= {"schema", "schemaType", "references", "metadata", "ruleSet"}:
                raise RegistryError(422, 42201, f"Unrecognized fields: {body}")
            subject, kind = unquote(found[1]), body.get("schemaType", "AVRO")
            if found[2]:
                return {"id": self.register(subject, body["schema"], kind, body.get("references"))}
            for number in self.subjects.get(subject, ()):
                if self.schemas[number - 1]["schema"] == body["schema"]:
                    return {"subject": subject, "version": self.subjects[subject].index(number) + 1, **self.schema(number)}
            raise RegistryError(404, 40403, "Schema not found")
        raise RegistryError(404, 404, f"HTTP 404 Not Found: {method} {path}")


@contextmanager
def registry() -> Iterator[FakeRegistry]:
    """A registry that answers."""
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append(f"{self.command} {parts.path}")
            status, said = 200, {}
            try:
                if fake.broken:
                    fake.broken -= 1
                    raise RegistryError(500, 50001, "Error in the backend data store")
                if fake.login and self.headers.get("Authorization") != f"Basic {base64.b64encode(LOGIN.encode()).decode()}":
                    raise RegistryError(401, 401, "Unauthorized")
                kind = self.headers.get("Content-Type", "").partition(";")[0]
                if data and kind not in (CONTENT, "application/json"):
                    raise RegistryError(415, 415, "HTTP 415 Unsupported Media Type")
                form = parse_qs(parts.query).get("format", [""])[0]
                said = fake.answer(self.command, parts.path, form, json.loads(data) if data else None)
            except RegistryError as error:
                status, said = error.status, {"error_code": error.code, "message": str(error)}
            except (ValueError, KeyError) as error:
                status, said = 422, {"error_code": 422, "message": f"{type(error).__name__} {error}"}
            out = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT)
            self.send_header("Content-Length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    (thread,) = begin("registry", server.serve_forever)
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
