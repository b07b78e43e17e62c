from headgate.broker.wire.grpc.headgate.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InitProducerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InitProducerResponse(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("sequence", "topic", "partition", "options", "batch")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    topic: str
    partition: int
    options: PublishOptions
    batch: bytes
    def __init__(self, sequence: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., options: _Optional[PublishOptions] = ..., batch: _Optional[bytes] = ...) -> None: ...

class PublishOptions(_message.Message):
    __slots__ = ("ack_batches", "ack_interval_ms")
    ACK_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ACK_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ack_batches: int
    ack_interval_ms: int
    def __init__(self, ack_batches: _Optional[int] = ..., ack_interval_ms: _Optional[int] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("acked_sequence", "base_offsets", "append_times_ms", "failures")
    class Failure(_message.Message):
        __slots__ = ("sequence", "error")
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        sequence: int
        error: _common_pb2.Error
        def __init__(self, sequence: _Optional[int] = ..., error: _Optional[_common_pb2.Error] = ...) -> None: ...
    ACKED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMES_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    acked_sequence: int
    base_offsets: _containers.RepeatedScalarFieldContainer[int]
    append_times_ms: _containers.RepeatedScalarFieldContainer[int]
    failures: _containers.RepeatedCompositeFieldContainer[PublishResponse.Failure]
    def __init__(self, acked_sequence: _Optional[int] = ..., base_offsets: _Optional[_Iterable[int]] = ..., append_times_ms: _Optional[_Iterable[int]] = ..., failures: _Optional[_Iterable[PublishResponse.Failure]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset", "max_bytes", "max_wait_ms", "min_bytes", "follows_lanes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_LANES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    max_bytes: int
    max_wait_ms: int
    min_bytes: int
    follows_lanes: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., follows_lanes: _Optional[bool] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("high_watermark", "log_start", "lane", "batches")
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    high_watermark: int
    log_start: int
    lane: Lane
    batches: bytes
    def __init__(self, high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., lane: _Optional[Lane] = ..., batches: _Optional[bytes] = ...) -> None: ...

class Lane(_message.Message):
    __slots__ = ("host", "grpc_port", "grpc_mtls_port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    GRPC_MTLS_PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    grpc_port: int
    grpc_mtls_port: int
    def __init__(self, host: _Optional[str] = ..., grpc_port: _Optional[int] = ..., grpc_mtls_port: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("offset", "earliest", "latest", "timestamp_ms", "max_timestamp")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    offset: int
    earliest: bool
    latest: bool
    timestamp_ms: int
    max_timestamp: bool
    def __init__(self, offset: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., max_timestamp: _Optional[bool] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("topic", "queries")
    class Query(_message.Message):
        __slots__ = ("partition", "position")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        partition: int
        position: Position
        def __init__(self, partition: _Optional[int] = ..., position: _Optional[Position] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queries: _containers.RepeatedCompositeFieldContainer[ListOffsetsRequest.Query]
    def __init__(self, topic: _Optional[str] = ..., queries: _Optional[_Iterable[ListOffsetsRequest.Query]] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    class Result(_message.Message):
        __slots__ = ("partition", "offset", "timestamp_ms", "leader_epoch", "error")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
        LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        partition: int
        offset: int
        timestamp_ms: int
        leader_epoch: int
        error: _common_pb2.Error
        def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., error: _Optional[_common_pb2.Error] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ListOffsetsResponse.Result]
    def __init__(self, results: _Optional[_Iterable[ListOffsetsResponse.Result]] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("add", "remove", "credit_bytes", "max_bytes")
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedCompositeFieldContainer[Subscription]
    remove: _containers.RepeatedScalarFieldContainer[int]
    credit_bytes: int
    max_bytes: int
    def __init__(self, add: _Optional[_Iterable[Subscription]] = ..., remove: _Optional[_Iterable[int]] = ..., credit_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("subscription", "generation", "topic", "partition", "position", "topic_id", "follows_lanes")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_LANES_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    generation: int
    topic: str
    partition: int
    position: Position
    topic_id: bytes
    follows_lanes: bool
    def __init__(self, subscription: _Optional[int] = ..., generation: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., position: _Optional[Position] = ..., topic_id: _Optional[bytes] = ..., follows_lanes: _Optional[bool] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("subscription", "generation", "next_offset", "high_watermark", "log_start", "error", "lane", "batches")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    generation: int
    next_offset: int
    high_watermark: int
    log_start: int
    error: _common_pb2.Error
    lane: Lane
    batches: bytes
    def __init__(self, subscription: _Optional[int] = ..., generation: _Optional[int] = ..., next_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., error: _Optional[_common_pb2.Error] = ..., lane: _Optional[Lane] = ..., batches: _Optional[bytes] = ...) -> None: ...
