"""Protobuf files as a registry gives them: serialized descriptors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor

OWN_NAME = "headgate/schema.proto"
"""The file's name in its pool: no other file has it."""


def messages_of(text: str, references: Sequence[tuple[str, str]]) -> list[Descriptor]:
    """The messages of a file, in their order.

    Args:
        text: the file's descriptor in base64.
        references: (name, text) of the files that it imports, the ones that others import first.

    Raises ValueError, TypeError, KeyError, DecodeError for what is no such file.
    """
    pool: Any = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto()
    for name, source in (*references, (OWN_NAME, text)):
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(source, validate=True))
        file.name = name
        pool.Add(file)
    found = pool.FindFileByName(OWN_NAME).message_types_by_name
    return [found[message.name] for message in file.message_type]
