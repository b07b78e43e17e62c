"""The services of the .proto files as data: paths, message classes, shapes. Server and client are built from it."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


@dataclass(frozen=True, slots=True)
class Method:
    """One rpc. `path` is the path of the HTTP/2 request: ``/headgate.v1.Log/Fetch``."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]
    client_streaming: bool

    @property
    def short(self) -> str:
        """``Log/Fetch``."""
        return self.path.rpartition(".")[2]


def methods(service: ServiceDescriptor) -> dict[str, Method]:
    """All and only the rpcs of a service, by name."""
    return {
        method.name: Method(
            name=method.name,
            path=f"/{service.full_name}/{method.name}",
            request=GetMessageClass(method.input_type),
            response=GetMessageClass(method.output_type),
            client_streaming=method.client_streaming,
        )
        for method in service.methods
    }
