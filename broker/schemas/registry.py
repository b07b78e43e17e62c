"""A schema registry with the HTTP API of Confluent's (Karapace, Apicurio and Redpanda have it too).

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError

Format = Literal["avro", "protobuf", "json"]
TYPES: dict[Format, str] = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}
"""The registry's names of the formats."""
LOGIN = "HEADGATE_REGISTRY_LOGIN"
"""Name of an environment variable: ``user:password`` for registries whose URL has none."""
CONTENT = "application/vnd.schemaregistry.v1+json"
TIMEOUT_S = 10.0
"""For each answer: a registry answers in milliseconds."""
TRIES = 3
PAUSE_S = 1.0
ANSWER_BYTES_MAX = 16 << 20
REFERENCES_MAX = 200
"""Schemas that one schema uses, with those that these use."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A registered schema. `text`: of Protobuf the file's descriptor in base64. `references`: (name, text) of those that it uses;
    each uses earlier ones alone. `type`: the registry's name of the format."""

    id: int
    text: str
    references: tuple[tuple[str, str], ...] = ()
    type: str = TYPES["avro"]


class Registry:
    """The client.

    Args:
        url: perhaps with ``user:password@``; without, the environment's `LOGIN` counts.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            named = "a registry is named by its URL, such as http://host:8081"
            raise InvalidError(Reason.INVALID_REQUEST, f"{named}. registry=`{shown(url)}`")
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self._base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": CONTENT, "Content-Type": CONTENT}
        login = os.environ.get(LOGIN, "")
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        if login:
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def latest(self, subject: str, format: Format) -> Schema:
        """The newest schema of a subject.

        Raises:
            InvalidError: there is none, or it is of another format. RetryError: the registry does not answer. FatalError: it
            refuses the login.
        """
        answer = self._version(subject, "latest", format)
        found = answer.get("schemaType", "AVRO")
        if found != TYPES[format]:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"the subject has schemas of another format. subject=`{subject}` format=`{found}` wanted=`{TYPES[format]}`",
            )
        return Schema(int(answer["id"]), str(answer["schema"]), tuple(self._references(answer, format, {})), found)

    def by_id(self, number: int) -> Schema:
        """The schema with an id. Raises as `latest`."""
        path = f"/schemas/ids/{number}"
        answer = self._ask("GET", path)
        kind = answer.get("schemaType", "AVRO")
        format = next((one for one, name in TYPES.items() if name == kind), None)
        if format is None:
            raise InvalidError(Reason.UNSUPPORTED, f"a schema is of an unknown format. format=`{kind}` id=`{number}`")
        if format == "protobuf":
            answer = self._ask("GET", f"{path}?format=serialized")
        return Schema(number, str(answer["schema"]), tuple(self._references(answer, format, {})), kind)

    def register(self, subject: str, format: Format, schema: str) -> int:
        """The id of a schema, which becomes the newest one of the subject unless it is there. Raises as `latest`; InvalidError if
        the subject's rule of compatibility refuses it."""
        body = {"schemaType": TYPES[format], "schema": schema}
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        return int(answer["id"])

    def _version(self, subject: str, version: str, format: Format) -> dict[str, Any]:
        form = "?format=serialized" if format == "protobuf" else ""
        found: dict[str, Any] = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}{form}")
        return found

    def _references(self, answer: dict[str, Any], format: Format, found: dict[str, str]) -> list[tuple[str, str]]:
        for reference in answer.get("references") or ():
            if reference["name"] in found or reference["name"].startswith("google/protobuf/"):
                continue
            if len(found) >= REFERENCES_MAX:
                raise InvalidError(Reason.INVALID_REQUEST, f"a schema uses more than {REFERENCES_MAX} others")
            found[reference["name"]] = ""  # a circle ends here
            other = self._version(reference["subject"], str(reference["version"]), format)
            self._references(other, format, found)
            del found[reference["name"]]
            found[reference["name"]] = str(other["schema"])
        return list(found.items())

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        for left in reversed(range(TRIES)):
            try:
                return self._answer(method, path, body)
            except RetryError:
                if not left:
                    raise
                time.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _answer(self, method: str, path: str, body: dict[str, str] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                text = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(ANSWER_BYTES_MAX), path) from error
        except (OSError, ValueError) as error:
            raise RetryError(Reason.STORE_UNAVAILABLE, f"the registry does not answer: {error} registry=`{self._base}`") from error
        try:
            found = json.loads(text)
            if isinstance(found, dict) and ("id" in found or "schema" in found):
                return found
        except ValueError:
            pass
        raise RetryError(Reason.STORE_UNAVAILABLE, f"what answers is no schema registry. registry=`{self._base}`")

    def _refused(self, status: int, data: bytes, path: str) -> Exception:
        try:
            said = str(json.loads(data)["message"])[:500]
        except (ValueError, KeyError, TypeError):
            said = data[:200].decode(errors="replace")
        where = f"registry=`{self._base}` path=`{path}`"
        if status in (401, 403):
            return FatalError(
                Reason.NOT_AUTHORIZED, f"the registry refuses the login: put user:password@ into its URL. {said} {where}"
            )
        if status == 404:
            hint = "register a schema, name another subject, or let the flood register one (--register)"
            return InvalidError(Reason.NOT_FOUND, f"the registry has no such subject: {hint}. {said} {where}")
        if status == 409:
            return InvalidError(
                Reason.INVALID_REQUEST, f"the subject's rule of compatibility refuses the schema of these columns. {said} {where}"
            )
        if 400 <= status < 500 and status not in (408, 429):
            return InvalidError(Reason.INVALID_REQUEST, f"the registry refuses the schema. {said} {where}")
        return RetryError(Reason.STORE_UNAVAILABLE, f"the registry fails now: {status} {said} {where}")


def shown(url: str) -> str:
    """A URL without its login."""
    return url.rpartition("@")[2] if "@" in url else url
