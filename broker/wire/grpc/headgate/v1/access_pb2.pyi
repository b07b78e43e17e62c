from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verifier(_message.Message):
    __slots__ = ("mechanism", "iterations", "salt", "stored_key", "server_key")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    def __init__(self, mechanism: _Optional[str] = ..., iterations: _Optional[int] = ..., salt: _Optional[bytes] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class CreateUserRequest(_message.Message):
    __slots__ = ("name", "verifiers", "superuser")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    SUPERUSER_FIELD_NUMBER: _ClassVar[int]
    name: str
    verifiers: _containers.RepeatedCompositeFieldContainer[Verifier]
    superuser: bool
    def __init__(self, name: _Optional[str] = ..., verifiers: _Optional[_Iterable[Verifier]] = ..., superuser: _Optional[bool] = ...) -> None: ...

class CreateUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetPasswordRequest(_message.Message):
    __slots__ = ("name", "verifiers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    verifiers: _containers.RepeatedCompositeFieldContainer[Verifier]
    def __init__(self, name: _Optional[str] = ..., verifiers: _Optional[_Iterable[Verifier]] = ...) -> None: ...

class SetPasswordResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    def __init__(self, users: _Optional[_Iterable[User]] = ...) -> None: ...

class User(_message.Message):
    __slots__ = ("name", "superuser", "mechanisms", "created_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUPERUSER_FIELD_NUMBER: _ClassVar[int]
    MECHANISMS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    superuser: bool
    mechanisms: _containers.RepeatedScalarFieldContainer[str]
    created_ms: int
    def __init__(self, name: _Optional[str] = ..., superuser: _Optional[bool] = ..., mechanisms: _Optional[_Iterable[str]] = ..., created_ms: _Optional[int] = ...) -> None: ...
