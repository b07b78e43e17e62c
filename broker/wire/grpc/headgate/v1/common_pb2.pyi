from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Error(_message.Message):
    __slots__ = ("reason", "message", "retriable", "leader")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    retriable: bool
    leader: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., retriable: _Optional[bool] = ..., leader: _Optional[str] = ...) -> None: ...
