from headgate.broker.wire.grpc.headgate.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "positions")
    class Position(_message.Message):
        __slots__ = ("group", "topic", "partition", "offset")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        group: int
        topic: str
        partition: int
        offset: int
        def __init__(self, group: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    positions: _containers.RepeatedCompositeFieldContainer[ListGroupsResponse.Position]
    def __init__(self, groups: _Optional[_Iterable[Group]] = ..., positions: _Optional[_Iterable[ListGroupsResponse.Position]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("id", "state", "protocol_type", "members", "positions", "lag_records")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    protocol_type: str
    members: int
    positions: int
    lag_records: int
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., protocol_type: _Optional[str] = ..., members: _Optional[int] = ..., positions: _Optional[int] = ..., lag_records: _Optional[int] = ...) -> None: ...

class DescribeGroupsRequest(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupDescription]
    def __init__(self, groups: _Optional[_Iterable[GroupDescription]] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "error", "protocol", "generation", "members", "positions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    group: Group
    error: _common_pb2.Error
    protocol: str
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    positions: _containers.RepeatedCompositeFieldContainer[GroupPosition]
    def __init__(self, group: _Optional[Group] = ..., error: _Optional[_common_pb2.Error] = ..., protocol: _Optional[str] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[Member]] = ..., positions: _Optional[_Iterable[GroupPosition]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "instance_id", "client_id", "client_host", "partitions")
    ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    instance_id: str
    client_id: str
    client_host: str
    partitions: int
    def __init__(self, id: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class GroupPosition(_message.Message):
    __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata", "committed_ms", "log_start", "high_watermark", "lag_records", "member_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    log_start: int
    high_watermark: int
    lag_records: int
    member_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_ms: _Optional[int] = ..., log_start: _Optional[int] = ..., high_watermark: _Optional[int] = ..., lag_records: _Optional[int] = ..., member_id: _Optional[str] = ...) -> None: ...
