from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reservation(_message.Message):
    __slots__ = ("id", "owner", "brokers", "ttl_ms", "left_ms", "lanes")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    brokers: int
    ttl_ms: int
    left_ms: int
    lanes: int
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ..., brokers: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., left_ms: _Optional[int] = ..., lanes: _Optional[int] = ...) -> None: ...

class OpenReservationRequest(_message.Message):
    __slots__ = ("id", "owner", "brokers", "ttl_ms", "lanes")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    brokers: int
    ttl_ms: int
    lanes: int
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ..., brokers: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., lanes: _Optional[int] = ...) -> None: ...

class OpenReservationResponse(_message.Message):
    __slots__ = ("reservation",)
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    reservation: Reservation
    def __init__(self, reservation: _Optional[Reservation] = ...) -> None: ...

class RenewReservationRequest(_message.Message):
    __slots__ = ("id", "ttl_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    ttl_ms: int
    def __init__(self, id: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RenewReservationResponse(_message.Message):
    __slots__ = ("reservation",)
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    reservation: Reservation
    def __init__(self, reservation: _Optional[Reservation] = ...) -> None: ...

class ReleaseReservationRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ReleaseReservationResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: _Optional[bool] = ...) -> None: ...

class ListReservationsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReservationsResponse(_message.Message):
    __slots__ = ("reservations",)
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    reservations: _containers.RepeatedCompositeFieldContainer[Reservation]
    def __init__(self, reservations: _Optional[_Iterable[Reservation]] = ...) -> None: ...

class GetDesiredBrokersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DesiredBrokers(_message.Message):
    __slots__ = ("brokers", "reasons", "live_brokers")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    LIVE_BROKERS_FIELD_NUMBER: _ClassVar[int]
    brokers: int
    reasons: _containers.RepeatedScalarFieldContainer[str]
    live_brokers: int
    def __init__(self, brokers: _Optional[int] = ..., reasons: _Optional[_Iterable[str]] = ..., live_brokers: _Optional[int] = ...) -> None: ...
