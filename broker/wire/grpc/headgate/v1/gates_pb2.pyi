from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GatePlace(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GATE_PLACE_UNSPECIFIED: _ClassVar[GatePlace]
    GATE_PLACE_NOW: _ClassVar[GatePlace]
    GATE_PLACE_FRONT: _ClassVar[GatePlace]
    GATE_PLACE_END: _ClassVar[GatePlace]

class GateState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GATE_STATE_UNSPECIFIED: _ClassVar[GateState]
    GATE_STATE_OPEN: _ClassVar[GateState]
    GATE_STATE_FILLED: _ClassVar[GateState]
    GATE_STATE_RELEASED: _ClassVar[GateState]
GATE_PLACE_UNSPECIFIED: GatePlace
GATE_PLACE_NOW: GatePlace
GATE_PLACE_FRONT: GatePlace
GATE_PLACE_END: GatePlace
GATE_STATE_UNSPECIFIED: GateState
GATE_STATE_OPEN: GateState
GATE_STATE_FILLED: GateState
GATE_STATE_RELEASED: GateState

class GateWindow(_message.Message):
    __slots__ = ("partition", "base_offset", "end_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    end_offset: int
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class Gate(_message.Message):
    __slots__ = ("topic", "id", "place", "state", "windows", "store_url", "prefix", "opened_ms", "expires_in_ms", "ttl_ms", "filled_ms", "rows", "size_bytes", "files", "digest", "released_by", "definition", "owner")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    STORE_URL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    FILLED_MS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RELEASED_BY_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    place: GatePlace
    state: GateState
    windows: _containers.RepeatedCompositeFieldContainer[GateWindow]
    store_url: str
    prefix: str
    opened_ms: int
    expires_in_ms: int
    ttl_ms: int
    filled_ms: int
    rows: int
    size_bytes: int
    files: int
    digest: str
    released_by: str
    definition: str
    owner: str
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., place: _Optional[_Union[GatePlace, str]] = ..., state: _Optional[_Union[GateState, str]] = ..., windows: _Optional[_Iterable[GateWindow]] = ..., store_url: _Optional[str] = ..., prefix: _Optional[str] = ..., opened_ms: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., filled_ms: _Optional[int] = ..., rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., files: _Optional[int] = ..., digest: _Optional[str] = ..., released_by: _Optional[str] = ..., definition: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class FileRef(_message.Message):
    __slots__ = ("partition", "path", "base_offset", "rows", "size_bytes", "footer_crc32c", "timestamp_min_ms", "timestamp_max_ms", "adopted_bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOOTER_CRC32C_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MIN_MS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    path: str
    base_offset: int
    rows: int
    size_bytes: int
    footer_crc32c: int
    timestamp_min_ms: int
    timestamp_max_ms: int
    adopted_bytes: int
    def __init__(self, partition: _Optional[int] = ..., path: _Optional[str] = ..., base_offset: _Optional[int] = ..., rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., footer_crc32c: _Optional[int] = ..., timestamp_min_ms: _Optional[int] = ..., timestamp_max_ms: _Optional[int] = ..., adopted_bytes: _Optional[int] = ...) -> None: ...

class OpenGateRequest(_message.Message):
    __slots__ = ("topic", "gate_id", "place", "rows", "ttl_ms", "files", "definition", "owner")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GATE_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    gate_id: str
    place: GatePlace
    rows: _containers.RepeatedScalarFieldContainer[int]
    ttl_ms: int
    files: _containers.RepeatedCompositeFieldContainer[FileRef]
    definition: str
    owner: str
    def __init__(self, topic: _Optional[str] = ..., gate_id: _Optional[str] = ..., place: _Optional[_Union[GatePlace, str]] = ..., rows: _Optional[_Iterable[int]] = ..., ttl_ms: _Optional[int] = ..., files: _Optional[_Iterable[FileRef]] = ..., definition: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class OpenGateResponse(_message.Message):
    __slots__ = ("gate",)
    GATE_FIELD_NUMBER: _ClassVar[int]
    gate: Gate
    def __init__(self, gate: _Optional[Gate] = ...) -> None: ...

class FillGateRequest(_message.Message):
    __slots__ = ("topic", "gate_id", "files")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GATE_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    gate_id: str
    files: _containers.RepeatedCompositeFieldContainer[FileRef]
    def __init__(self, topic: _Optional[str] = ..., gate_id: _Optional[str] = ..., files: _Optional[_Iterable[FileRef]] = ...) -> None: ...

class FillGateResponse(_message.Message):
    __slots__ = ("gate",)
    GATE_FIELD_NUMBER: _ClassVar[int]
    gate: Gate
    def __init__(self, gate: _Optional[Gate] = ...) -> None: ...

class RenewGateRequest(_message.Message):
    __slots__ = ("topic", "gate_id", "ttl_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GATE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    gate_id: str
    ttl_ms: int
    def __init__(self, topic: _Optional[str] = ..., gate_id: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RenewGateResponse(_message.Message):
    __slots__ = ("gate",)
    GATE_FIELD_NUMBER: _ClassVar[int]
    gate: Gate
    def __init__(self, gate: _Optional[Gate] = ...) -> None: ...

class ReleaseGateRequest(_message.Message):
    __slots__ = ("topic", "gate_id", "owner")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GATE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    gate_id: str
    owner: str
    def __init__(self, topic: _Optional[str] = ..., gate_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class ReleaseGateResponse(_message.Message):
    __slots__ = ("gate",)
    GATE_FIELD_NUMBER: _ClassVar[int]
    gate: Gate
    def __init__(self, gate: _Optional[Gate] = ...) -> None: ...

class ListGatesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListGatesResponse(_message.Message):
    __slots__ = ("gates",)
    GATES_FIELD_NUMBER: _ClassVar[int]
    gates: _containers.RepeatedCompositeFieldContainer[Gate]
    def __init__(self, gates: _Optional[_Iterable[Gate]] = ...) -> None: ...

class DescribeGateRequest(_message.Message):
    __slots__ = ("topic", "gate_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GATE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    gate_id: str
    def __init__(self, topic: _Optional[str] = ..., gate_id: _Optional[str] = ...) -> None: ...

class DescribeGateResponse(_message.Message):
    __slots__ = ("gate", "files")
    GATE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    gate: Gate
    files: _containers.RepeatedCompositeFieldContainer[FileRef]
    def __init__(self, gate: _Optional[Gate] = ..., files: _Optional[_Iterable[FileRef]] = ...) -> None: ...

class LayoutRequest(_message.Message):
    __slots__ = ("topic", "wanted")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    wanted: RecordRange
    def __init__(self, topic: _Optional[str] = ..., wanted: _Optional[RecordRange] = ...) -> None: ...

class RecordRange(_message.Message):
    __slots__ = ("partitions", "first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., first_timestamp_ms: _Optional[int] = ..., last_timestamp_ms: _Optional[int] = ...) -> None: ...

class LayoutResponse(_message.Message):
    __slots__ = ("store_url", "topic_id", "prefix", "partitions", "files")
    STORE_URL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    store_url: str
    topic_id: bytes
    prefix: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionLayout]
    files: int
    def __init__(self, store_url: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., prefix: _Optional[str] = ..., partitions: _Optional[_Iterable[PartitionLayout]] = ..., files: _Optional[int] = ...) -> None: ...

class PartitionLayout(_message.Message):
    __slots__ = ("partition", "log_start", "grpc_address", "kafka_address", "files", "holes", "folded", "left_out")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KAFKA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    log_start: int
    grpc_address: str
    kafka_address: str
    files: _containers.RepeatedCompositeFieldContainer[FileRef]
    holes: _containers.RepeatedCompositeFieldContainer[Hole]
    folded: _containers.RepeatedCompositeFieldContainer[FoldedFile]
    left_out: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    def __init__(self, partition: _Optional[int] = ..., log_start: _Optional[int] = ..., grpc_address: _Optional[str] = ..., kafka_address: _Optional[str] = ..., files: _Optional[_Iterable[FileRef]] = ..., holes: _Optional[_Iterable[Hole]] = ..., folded: _Optional[_Iterable[FoldedFile]] = ..., left_out: _Optional[_Iterable[OffsetRange]] = ...) -> None: ...

class FoldedFile(_message.Message):
    __slots__ = ("file", "end_offset")
    FILE_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    file: FileRef
    end_offset: int
    def __init__(self, file: _Optional[FileRef] = ..., end_offset: _Optional[int] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("base_offset", "end_offset")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    end_offset: int
    def __init__(self, base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class Hole(_message.Message):
    __slots__ = ("gate_id", "base_offset", "end_offset", "state")
    GATE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    gate_id: str
    base_offset: int
    end_offset: int
    state: GateState
    def __init__(self, gate_id: _Optional[str] = ..., base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., state: _Optional[_Union[GateState, str]] = ...) -> None: ...

class ReportFloodRequest(_message.Message):
    __slots__ = ("topic", "flood_id", "phase", "rows_planned", "rows_moved", "rows_written", "rows_verified", "message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FLOOD_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROWS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    ROWS_MOVED_FIELD_NUMBER: _ClassVar[int]
    ROWS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    flood_id: str
    phase: str
    rows_planned: int
    rows_moved: int
    rows_written: int
    rows_verified: int
    message: str
    def __init__(self, topic: _Optional[str] = ..., flood_id: _Optional[str] = ..., phase: _Optional[str] = ..., rows_planned: _Optional[int] = ..., rows_moved: _Optional[int] = ..., rows_written: _Optional[int] = ..., rows_verified: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class ReportFloodResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
