"""Frames: what Confluent's serializers put around a message, so that their deserializers find its schema.

A framed message is a zero byte, the schema's id in four bytes, big-endian, and the message; with Protobuf, which of the file's
messages it is stands before it. https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.broker.log.json_rows import UnlikeJavaError, json_rows
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.schemas.registry import TYPES, Format, Registry, Schema, shown
from headgate.pipelines.framing import avro as avro_columns
from headgate.pipelines.framing import json_schema, protobuf_schema
from headgate.pipelines.framing.avro import avro
from headgate.pipelines.framing.bytes_of_columns import arrow, together
from headgate.pipelines.framing.declared import Framing
from headgate.pipelines.framing.protobuf import protobuf
from headgate.pipelines.names import did_you_mean

FIRST_MESSAGE = b"\0"


@dataclass(frozen=True, slots=True)
class Frame:
    """A schema, and the columns that fill it. Goes to the tasks.

    Args:
        columns: names, in the order in which `encode` gets them.
        is_key: the message is the one column itself.
    """

    format: Format
    schema: Schema
    columns: tuple[str, ...]
    is_key: bool = False

    def encode(self, *columns: Any) -> Any:
        """The framed message of each row. Raises InvalidError for a row that does not fit."""
        of = dict(zip(self.columns, columns, strict=True))
        head = b"\0" + self.schema.id.to_bytes(4, "big")
        if self.format == "avro":
            message = avro(self.schema.text, tuple(text for _, text in self.schema.references)).encode(of)
        elif self.format == "protobuf":
            message, head = protobuf(self.schema.text, self.schema.references).encode(of), head + FIRST_MESSAGE
        else:
            json_schema.check_rows(self.schema.text, of)
            try:
                message = json_rows(self.columns, columns).cast(pa.binary())
            except UnlikeJavaError as error:
                raise InvalidError(Reason.INVALID_RECORD, f"a row cannot be written as JSON: {error}") from error
        return together([arrow.scalar(head, pa.binary()), message])


def frame(framing: Framing, columns: Mapping[str, Any], *, is_key: bool = False) -> Frame:
    """The frame of rows with these columns.

    Args:
        columns: Arrow's types by name.
        is_key: the message is the one column itself, not a row that has it.

    Raises:
        InvalidError: the columns do not fit the schema, with all mistakes. RetryError, FatalError: of the registry.
    """
    registry = Registry(framing.registry)
    if framing.register:
        schema = _registered(registry, framing, columns, is_key)
    else:
        schema = registry.latest(framing.subject, framing.format)
    known, problems = _judged(framing, schema, columns, is_key)
    if not problems and not known:
        problems = [f"no column has the name of a field. columns=`{', '.join(columns)}`"]
    if problems:
        where = f"subject=`{framing.subject}` schema_id=`{schema.id}` registry=`{shown(framing.registry)}`"
        raise InvalidError(Reason.INVALID_REQUEST, f"the source does not fit the schema: {'; '.join(problems)} {where}")
    return Frame(framing.format, schema, tuple(known), is_key)


def _judged(framing: Framing, schema: Schema, columns: Mapping[str, Any], is_key: bool) -> tuple[list[str], list[str]]:
    """(the columns that fill the schema, why they do not fit)."""
    if framing.format == "avro":
        made = avro(schema.text, tuple(text for _, text in schema.references))
        if is_key is made.is_record:
            return list(columns), [
                f"the schema of a {'key is no record' if is_key else 'row is a record'}, and this one is another"
            ]
        known = {name: kind for name, kind in columns.items() if is_key or name in made.fields}
        return list(known), made.problems(columns)
    if is_key:
        if framing.format == "protobuf":
            return [], ["a key in Protobuf is a message, and a column is none: use avro or json for keys"]
        return [], ["a key as JSON is its text: leave its format out"]
    if framing.format == "protobuf":
        message = protobuf(schema.text, schema.references)
        known = {name: kind for name, kind in columns.items() if name in message.fields}
        if not known:
            near = [f"{name}{did_you_mean(name, columns)}" for name in message.fields]
            return [], [f"no column has the name of a field: {', '.join(near)}"]
        return list(known), message.problems(known)
    return json_schema.judged(schema.text, columns)


def _registered(registry: Registry, framing: Framing, columns: Mapping[str, Any], is_key: bool) -> Schema:
    name = framing.subject.removesuffix("-value").removesuffix("-key")
    if framing.format == "avro":
        text = (
            json.dumps(*(avro_columns.of_column(*item) for item in columns.items()))
            if is_key
            else avro_columns.derived(columns, name)
        )
        return Schema(registry.register(framing.subject, "avro", text), text)
    if framing.format == "protobuf":
        text, descriptor = protobuf_schema.derived(columns, name)
        return Schema(registry.register(framing.subject, "protobuf", text), descriptor, (), TYPES["protobuf"])
    text = json_schema.derived(columns, name)
    return Schema(registry.register(framing.subject, "json", text), text, (), TYPES["json"])
