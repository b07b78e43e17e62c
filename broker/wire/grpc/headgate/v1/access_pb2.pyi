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

class Acl(_message.Message):
    __slots__ = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str
    def __init__(self, resource: _Optional[str] = ..., name: _Optional[str] = ..., pattern: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission: _Optional[str] = ...) -> None: ...

class AddAclsRequest(_message.Message):
    __slots__ = ("acls",)
    ACLS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[Acl]
    def __init__(self, acls: _Optional[_Iterable[Acl]] = ...) -> None: ...

class AddAclsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveAclsRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: Acl
    def __init__(self, filter: _Optional[Acl] = ...) -> None: ...

class RemoveAclsResponse(_message.Message):
    __slots__ = ("acls",)
    ACLS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[Acl]
    def __init__(self, acls: _Optional[_Iterable[Acl]] = ...) -> None: ...

class ListAclsRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: Acl
    def __init__(self, filter: _Optional[Acl] = ...) -> None: ...

class ListAclsResponse(_message.Message):
    __slots__ = ("acls",)
    ACLS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[Acl]
    def __init__(self, acls: _Optional[_Iterable[Acl]] = ...) -> None: ...

class QuotaEntity(_message.Message):
    __slots__ = ("user", "client_id", "ip", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    ip: str
    values: _containers.ScalarMap[str, float]
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., ip: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class AlterQuotasRequest(_message.Message):
    __slots__ = ("set", "remove")
    SET_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    set: _containers.RepeatedCompositeFieldContainer[QuotaEntity]
    remove: _containers.RepeatedCompositeFieldContainer[QuotaEntity]
    def __init__(self, set: _Optional[_Iterable[QuotaEntity]] = ..., remove: _Optional[_Iterable[QuotaEntity]] = ...) -> None: ...

class AlterQuotasResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("entities",)
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    entities: _containers.RepeatedCompositeFieldContainer[QuotaEntity]
    def __init__(self, entities: _Optional[_Iterable[QuotaEntity]] = ...) -> None: ...
