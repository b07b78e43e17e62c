from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("hello", "report", "result")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: LoadReport
    result: OrderResult
    def __init__(self, hello: _Optional[Hello] = ..., report: _Optional[LoadReport] = ..., result: _Optional[OrderResult] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("incarnation_id", "member", "version", "cluster_id", "round_trip_ms")
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_MS_FIELD_NUMBER: _ClassVar[int]
    incarnation_id: str
    member: BrokerMember
    version: int
    cluster_id: str
    round_trip_ms: int
    def __init__(self, incarnation_id: _Optional[str] = ..., member: _Optional[BrokerMember] = ..., version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., round_trip_ms: _Optional[int] = ...) -> None: ...

class BrokerMember(_message.Message):
    __slots__ = ("broker_id", "host", "kafka_port", "grpc_port", "http_port", "rack", "grpc_mtls_port", "listeners", "role")
    class ListenersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    KAFKA_PORT_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    HTTP_PORT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    GRPC_MTLS_PORT_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    host: str
    kafka_port: int
    grpc_port: int
    http_port: int
    rack: str
    grpc_mtls_port: int
    listeners: _containers.ScalarMap[str, str]
    role: str
    def __init__(self, broker_id: _Optional[int] = ..., host: _Optional[str] = ..., kafka_port: _Optional[int] = ..., grpc_port: _Optional[int] = ..., http_port: _Optional[int] = ..., rack: _Optional[str] = ..., grpc_mtls_port: _Optional[int] = ..., listeners: _Optional[_Mapping[str, str]] = ..., role: _Optional[str] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("window_ms", "segments", "cpu_share", "memory_bytes", "connections", "version", "trouble", "draining", "late_ms", "serving", "clock_ms", "number", "quotas", "round_trip_ms")
    WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_MS_FIELD_NUMBER: _ClassVar[int]
    window_ms: int
    segments: _containers.RepeatedCompositeFieldContainer[SegmentReport]
    cpu_share: float
    memory_bytes: int
    connections: int
    version: int
    trouble: str
    draining: bool
    late_ms: int
    serving: bool
    clock_ms: int
    number: int
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaUse]
    round_trip_ms: int
    def __init__(self, window_ms: _Optional[int] = ..., segments: _Optional[_Iterable[SegmentReport]] = ..., cpu_share: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., version: _Optional[int] = ..., trouble: _Optional[str] = ..., draining: _Optional[bool] = ..., late_ms: _Optional[int] = ..., serving: _Optional[bool] = ..., clock_ms: _Optional[int] = ..., number: _Optional[int] = ..., quotas: _Optional[_Iterable[QuotaUse]] = ..., round_trip_ms: _Optional[int] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("user", "client_id", "kind", "limit", "share", "rate", "throttled", "waited_s", "broker_id")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    kind: str
    limit: float
    share: float
    rate: float
    throttled: bool
    waited_s: float
    broker_id: int
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., kind: _Optional[str] = ..., limit: _Optional[float] = ..., share: _Optional[float] = ..., rate: _Optional[float] = ..., throttled: _Optional[bool] = ..., waited_s: _Optional[float] = ..., broker_id: _Optional[int] = ...) -> None: ...

class QuotaShares(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[QuotaShare]
    def __init__(self, shares: _Optional[_Iterable[QuotaShare]] = ...) -> None: ...

class QuotaShare(_message.Message):
    __slots__ = ("user", "client_id", "kind", "share")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    kind: str
    share: float
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., kind: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class SegmentReport(_message.Message):
    __slots__ = ("segment_id", "partitions", "bytes_in", "bytes_out", "requests")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    bytes_in: _containers.RepeatedScalarFieldContainer[int]
    bytes_out: _containers.RepeatedScalarFieldContainer[int]
    requests: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, segment_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., bytes_in: _Optional[_Iterable[int]] = ..., bytes_out: _Optional[_Iterable[int]] = ..., requests: _Optional[_Iterable[int]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("welcome", "edits", "resign", "alive", "drain", "hold", "promise", "quotas")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    RESIGN_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    edits: Edits
    resign: ResignOrder
    alive: Alive
    drain: DrainOrder
    hold: HoldOrder
    promise: Promise
    quotas: QuotaShares
    def __init__(self, welcome: _Optional[Welcome] = ..., edits: _Optional[Edits] = ..., resign: _Optional[ResignOrder] = ..., alive: _Optional[Alive] = ..., drain: _Optional[DrainOrder] = ..., hold: _Optional[HoldOrder] = ..., promise: _Optional[Promise] = ..., quotas: _Optional[QuotaShares] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("snapshot", "version", "leader_incarnation_id", "leader_broker_id", "clock_ms")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEADER_INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    snapshot: bytes
    version: int
    leader_incarnation_id: str
    leader_broker_id: int
    clock_ms: int
    def __init__(self, snapshot: _Optional[bytes] = ..., version: _Optional[int] = ..., leader_incarnation_id: _Optional[str] = ..., leader_broker_id: _Optional[int] = ..., clock_ms: _Optional[int] = ...) -> None: ...

class Edits(_message.Message):
    __slots__ = ("version", "edits")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    version: int
    edits: bytes
    def __init__(self, version: _Optional[int] = ..., edits: _Optional[bytes] = ...) -> None: ...

class ResignOrder(_message.Message):
    __slots__ = ("order_id", "segment_ids")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    order_id: int
    segment_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, order_id: _Optional[int] = ..., segment_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class OrderResult(_message.Message):
    __slots__ = ("order_id", "error", "windows")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    order_id: int
    error: str
    windows: _containers.RepeatedCompositeFieldContainer[HeldWindow]
    def __init__(self, order_id: _Optional[int] = ..., error: _Optional[str] = ..., windows: _Optional[_Iterable[HeldWindow]] = ...) -> None: ...

class HoldOrder(_message.Message):
    __slots__ = ("order_id", "topic_id", "gate_id", "partitions", "rows", "term_epoch", "drop")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    GATE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TERM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    order_id: int
    topic_id: bytes
    gate_id: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    term_epoch: int
    drop: bool
    def __init__(self, order_id: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., gate_id: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ..., term_epoch: _Optional[int] = ..., drop: _Optional[bool] = ...) -> None: ...

class HeldWindow(_message.Message):
    __slots__ = ("partition", "base_offset", "segment_id", "leader_epoch", "live")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    segment_id: int
    leader_epoch: int
    live: bool
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., segment_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., live: _Optional[bool] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("number", "span_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SPAN_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    span_ms: int
    def __init__(self, number: _Optional[int] = ..., span_ms: _Optional[int] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ("clock_ms", "store_ms", "desired_brokers", "desired_why", "takers")
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    DESIRED_BROKERS_FIELD_NUMBER: _ClassVar[int]
    DESIRED_WHY_FIELD_NUMBER: _ClassVar[int]
    TAKERS_FIELD_NUMBER: _ClassVar[int]
    clock_ms: int
    store_ms: int
    desired_brokers: int
    desired_why: str
    takers: int
    def __init__(self, clock_ms: _Optional[int] = ..., store_ms: _Optional[int] = ..., desired_brokers: _Optional[int] = ..., desired_why: _Optional[str] = ..., takers: _Optional[int] = ...) -> None: ...

class DrainOrder(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("incarnation_id", "number", "edits")
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    incarnation_id: str
    number: int
    edits: bytes
    def __init__(self, incarnation_id: _Optional[str] = ..., number: _Optional[int] = ..., edits: _Optional[bytes] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("hello", "copies", "durable")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    hello: ReplicaHello
    copies: _containers.RepeatedCompositeFieldContainer[Copy]
    durable: int
    def __init__(self, hello: _Optional[ReplicaHello] = ..., copies: _Optional[_Iterable[Copy]] = ..., durable: _Optional[int] = ...) -> None: ...

class ReplicaHello(_message.Message):
    __slots__ = ("incarnation_id", "stream")
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    incarnation_id: str
    stream: int
    def __init__(self, incarnation_id: _Optional[str] = ..., stream: _Optional[int] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("number", "stream_key", "batch", "appended_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STREAM_KEY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    APPENDED_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    stream_key: bytes
    batch: bytes
    appended_ms: int
    def __init__(self, number: _Optional[int] = ..., stream_key: _Optional[bytes] = ..., batch: _Optional[bytes] = ..., appended_ms: _Optional[int] = ...) -> None: ...

class ReplicateResponse(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: int
    def __init__(self, held: _Optional[int] = ...) -> None: ...

class SurrenderRequest(_message.Message):
    __slots__ = ("incarnation_id", "stream", "follower_incarnation_id")
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    incarnation_id: str
    stream: int
    follower_incarnation_id: str
    def __init__(self, incarnation_id: _Optional[str] = ..., stream: _Optional[int] = ..., follower_incarnation_id: _Optional[str] = ...) -> None: ...

class SurrenderResponse(_message.Message):
    __slots__ = ("copies",)
    COPIES_FIELD_NUMBER: _ClassVar[int]
    copies: _containers.RepeatedCompositeFieldContainer[Copy]
    def __init__(self, copies: _Optional[_Iterable[Copy]] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class AddToTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "epoch", "topics", "add")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    epoch: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    add: bool
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., topics: _Optional[_Iterable[TopicPartitions]] = ..., add: _Optional[bool] = ...) -> None: ...

class AddToTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class WriteMarkersRequest(_message.Message):
    __slots__ = ("producer_id", "epoch", "commit", "coordinator_partition", "coordinator_epoch", "topics")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_PARTITION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    commit: bool
    coordinator_partition: int
    coordinator_epoch: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., coordinator_partition: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[TopicPartitions]] = ...) -> None: ...

class WriteMarkersResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[MarkerResult]
    def __init__(self, rows: _Optional[_Iterable[MarkerResult]] = ...) -> None: ...

class MarkerResult(_message.Message):
    __slots__ = ("topic", "partition", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class ReshardRequest(_message.Message):
    __slots__ = ("split", "merge", "move", "drain")
    class Split(_message.Message):
        __slots__ = ("segment_id", "at_partition", "broker_id")
        SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
        AT_PARTITION_FIELD_NUMBER: _ClassVar[int]
        BROKER_ID_FIELD_NUMBER: _ClassVar[int]
        segment_id: int
        at_partition: int
        broker_id: int
        def __init__(self, segment_id: _Optional[int] = ..., at_partition: _Optional[int] = ..., broker_id: _Optional[int] = ...) -> None: ...
    class Merge(_message.Message):
        __slots__ = ("segment_id", "next_segment_id")
        SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
        NEXT_SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
        segment_id: int
        next_segment_id: int
        def __init__(self, segment_id: _Optional[int] = ..., next_segment_id: _Optional[int] = ...) -> None: ...
    class Move(_message.Message):
        __slots__ = ("segment_id", "broker_id")
        SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
        BROKER_ID_FIELD_NUMBER: _ClassVar[int]
        segment_id: int
        broker_id: int
        def __init__(self, segment_id: _Optional[int] = ..., broker_id: _Optional[int] = ...) -> None: ...
    class Drain(_message.Message):
        __slots__ = ("broker_id",)
        BROKER_ID_FIELD_NUMBER: _ClassVar[int]
        broker_id: int
        def __init__(self, broker_id: _Optional[int] = ...) -> None: ...
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    split: ReshardRequest.Split
    merge: ReshardRequest.Merge
    move: ReshardRequest.Move
    drain: ReshardRequest.Drain
    def __init__(self, split: _Optional[ReshardRequest.Split] = ..., merge: _Optional[ReshardRequest.Merge] = ..., move: _Optional[ReshardRequest.Move] = ..., drain: _Optional[ReshardRequest.Drain] = ...) -> None: ...

class ReshardResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentState]
    def __init__(self, segments: _Optional[_Iterable[SegmentState]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("leader_broker_id", "version", "members", "segments", "decisions", "quotas")
    LEADER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    leader_broker_id: int
    version: int
    members: _containers.RepeatedCompositeFieldContainer[MemberState]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentState]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaUse]
    def __init__(self, leader_broker_id: _Optional[int] = ..., version: _Optional[int] = ..., members: _Optional[_Iterable[MemberState]] = ..., segments: _Optional[_Iterable[SegmentState]] = ..., decisions: _Optional[_Iterable[Decision]] = ..., quotas: _Optional[_Iterable[QuotaUse]] = ...) -> None: ...

class MemberState(_message.Message):
    __slots__ = ("member", "incarnation_id", "cpu_share", "memory_bytes", "connections", "draining", "trouble", "follower_broker_id", "late_ms", "starved", "silence_ms_max")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    STARVED_FIELD_NUMBER: _ClassVar[int]
    SILENCE_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    member: BrokerMember
    incarnation_id: str
    cpu_share: float
    memory_bytes: int
    connections: int
    draining: bool
    trouble: str
    follower_broker_id: int
    late_ms: int
    starved: bool
    silence_ms_max: int
    def __init__(self, member: _Optional[BrokerMember] = ..., incarnation_id: _Optional[str] = ..., cpu_share: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., draining: _Optional[bool] = ..., trouble: _Optional[str] = ..., follower_broker_id: _Optional[int] = ..., late_ms: _Optional[int] = ..., starved: _Optional[bool] = ..., silence_ms_max: _Optional[int] = ...) -> None: ...

class SegmentState(_message.Message):
    __slots__ = ("id", "topic", "first_partition", "end_partition", "broker_id", "leader_epoch", "bytes_in_per_second", "bytes_out_per_second", "requests_per_second")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FIRST_PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    id: int
    topic: str
    first_partition: int
    end_partition: int
    broker_id: int
    leader_epoch: int
    bytes_in_per_second: float
    bytes_out_per_second: float
    requests_per_second: float
    def __init__(self, id: _Optional[int] = ..., topic: _Optional[str] = ..., first_partition: _Optional[int] = ..., end_partition: _Optional[int] = ..., broker_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., bytes_in_per_second: _Optional[float] = ..., bytes_out_per_second: _Optional[float] = ..., requests_per_second: _Optional[float] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("age_ms", "kind", "why", "error", "under_way", "pause_ms", "topics")
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    age_ms: int
    kind: str
    why: str
    error: str
    under_way: bool
    pause_ms: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, age_ms: _Optional[int] = ..., kind: _Optional[str] = ..., why: _Optional[str] = ..., error: _Optional[str] = ..., under_way: _Optional[bool] = ..., pause_ms: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ViewRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ViewResponse(_message.Message):
    __slots__ = ("view",)
    VIEW_FIELD_NUMBER: _ClassVar[int]
    view: bytes
    def __init__(self, view: _Optional[bytes] = ...) -> None: ...
