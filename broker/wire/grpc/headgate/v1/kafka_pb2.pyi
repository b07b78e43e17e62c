from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class KafkaRequest(_message.Message):
    __slots__ = ("request", "broker_id", "principal", "host", "door")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    broker_id: int
    principal: str
    host: str
    door: str
    def __init__(self, request: _Optional[bytes] = ..., broker_id: _Optional[int] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., door: _Optional[str] = ...) -> None: ...

class KafkaAnswer(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    def __init__(self, answer: _Optional[bytes] = ...) -> None: ...
