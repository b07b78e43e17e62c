from headgate.broker.wire.grpc.headgate.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ("rate_window_ms",)
    RATE_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    rate_window_ms: int
    def __init__(self, rate_window_ms: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("cluster_id", "broker_id", "brokers", "topics")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker_id: int
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    topics: _containers.RepeatedCompositeFieldContainer[TopicStatus]
    def __init__(self, cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., brokers: _Optional[_Iterable[Broker]] = ..., topics: _Optional[_Iterable[TopicStatus]] = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("id", "host", "kafka_port", "grpc_port", "http_port", "version", "incarnation_id", "uptime_ms", "memory_bytes", "trouble", "clock_doubt", "grpc_mtls_port", "history_limit")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    KAFKA_PORT_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    HTTP_PORT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_DOUBT_FIELD_NUMBER: _ClassVar[int]
    GRPC_MTLS_PORT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    id: int
    host: str
    kafka_port: int
    grpc_port: int
    http_port: int
    version: str
    incarnation_id: str
    uptime_ms: int
    memory_bytes: int
    trouble: str
    clock_doubt: str
    grpc_mtls_port: int
    history_limit: str
    def __init__(self, id: _Optional[int] = ..., host: _Optional[str] = ..., kafka_port: _Optional[int] = ..., grpc_port: _Optional[int] = ..., http_port: _Optional[int] = ..., version: _Optional[str] = ..., incarnation_id: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., trouble: _Optional[str] = ..., clock_doubt: _Optional[str] = ..., grpc_mtls_port: _Optional[int] = ..., history_limit: _Optional[str] = ...) -> None: ...

class TopicStatus(_message.Message):
    __slots__ = ("name", "id", "partitions", "size_bytes", "records", "records_in_per_second", "bytes_in_per_second")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: bytes
    partitions: int
    size_bytes: int
    records: int
    records_in_per_second: float
    bytes_in_per_second: float
    def __init__(self, name: _Optional[str] = ..., id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., size_bytes: _Optional[int] = ..., records: _Optional[int] = ..., records_in_per_second: _Optional[float] = ..., bytes_in_per_second: _Optional[float] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[Topic]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "id", "partitions", "created_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: bytes
    partitions: int
    created_ms: int
    def __init__(self, name: _Optional[str] = ..., id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., created_ms: _Optional[int] = ...) -> None: ...

class DescribeTopicsRequest(_message.Message):
    __slots__ = ("names", "leads_only")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LEADS_ONLY_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    leads_only: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., leads_only: _Optional[bool] = ...) -> None: ...

class DescribeTopicsResponse(_message.Message):
    __slots__ = ("topics", "brokers", "broker_id")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicDescription]
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    broker_id: int
    def __init__(self, topics: _Optional[_Iterable[TopicDescription]] = ..., brokers: _Optional[_Iterable[Broker]] = ..., broker_id: _Optional[int] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("topic", "error", "partitions", "config")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    error: _common_pb2.Error
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    config: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, topic: _Optional[Topic] = ..., error: _Optional[_common_pb2.Error] = ..., partitions: _Optional[_Iterable[Partition]] = ..., config: _Optional[_Iterable[ConfigEntry]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "leader", "leader_epoch", "log_start", "high_watermark", "size_bytes", "skipped", "stable_end", "records")
    class Range(_message.Message):
        __slots__ = ("base_offset", "end_offset")
        BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        END_OFFSET_FIELD_NUMBER: _ClassVar[int]
        base_offset: int
        end_offset: int
        def __init__(self, base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    STABLE_END_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: int
    leader_epoch: int
    log_start: int
    high_watermark: int
    size_bytes: int
    skipped: _containers.RepeatedCompositeFieldContainer[Partition.Range]
    stable_end: int
    records: int
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_start: _Optional[int] = ..., high_watermark: _Optional[int] = ..., size_bytes: _Optional[int] = ..., skipped: _Optional[_Iterable[Partition.Range]] = ..., stable_end: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value", "is_default", "documentation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    is_default: bool
    documentation: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., is_default: _Optional[bool] = ..., documentation: _Optional[str] = ...) -> None: ...

class CheckRecordsRequest(_message.Message):
    __slots__ = ("topic", "partition", "first_offset", "last_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class CheckRecordsResponse(_message.Message):
    __slots__ = ("unreadable", "base_offset", "next_offset", "batches", "end_offset")
    class Unreadable(_message.Message):
        __slots__ = ("base_offset", "end_offset", "size_bytes", "why")
        BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        END_OFFSET_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        WHY_FIELD_NUMBER: _ClassVar[int]
        base_offset: int
        end_offset: int
        size_bytes: int
        why: str
        def __init__(self, base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    unreadable: _containers.RepeatedCompositeFieldContainer[CheckRecordsResponse.Unreadable]
    base_offset: int
    next_offset: int
    batches: int
    end_offset: int
    def __init__(self, unreadable: _Optional[_Iterable[CheckRecordsResponse.Unreadable]] = ..., base_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., batches: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class SkipRecordsRequest(_message.Message):
    __slots__ = ("topic", "partition", "first_offset", "last_offset", "validate_only")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    validate_only: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class SkipRecordsResponse(_message.Message):
    __slots__ = ("base_offset", "end_offset")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    end_offset: int
    def __init__(self, base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...
