"""The brokers' answers about leaders and leader epochs while a partition moves, judged by raw requests that kio encodes and
decodes.

Runs: three real brokers; a partition is written to, split, moved, merged, and its leader is killed. After every change the test
asks each broker by Metadata, Produce 11, Fetch 16, ListOffsets 7 and OffsetForLeaderEpoch 4. Compared: all answers with one
history, recorded here, of the epoch of each offset. A mismatch means that a client would look for the leader at a wrong broker
(KIP-951), or would cut off or skip records after a failover (KIP-101, KIP-320).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.cluster import CONTROL, PATIENCE_S, PATIENT, Brokers
from tests.support.waiting import until
from tests.support.wire import RawConnection

NONE, NOT_LEADER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 0, 6, 74, 75
LATEST = -1
Kinds = control_pb2.ReshardRequest


class Partition:
    """Partition 0 of topic `t`: the offsets written in each epoch, and the brokers' answers about it."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.written: list[tuple[int, int, int]] = []
        """(epoch, first offset, end); every column ascends."""
        with RawConnection(HOST, brokers.all[0].kafka_port) as connection:
            self.topic_id: uuid.UUID = oracle.call(connection, oracle.METADATA, 12, {"topics": ({"name": "t"},)}).topics[0].topic_id

    @property
    def end(self) -> int:
        return self.written[-1][2]

    def ask(self, broker: BrokerProcess, api_key: int, version: int, values: dict[str, Any]) -> Any:
        with RawConnection(HOST, broker.kafka_port) as connection:
            return oracle.call(connection, api_key, version, values)

    def lead(self, broker: BrokerProcess) -> tuple[int, int]:
        """(broker id, leader epoch) from a broker's Metadata."""
        topic = self.ask(broker, oracle.METADATA, 12, {"topics": ({"name": "t"},)}).topics[0]
        (one,) = (part for part in topic.partitions if part.partition_index == 0)
        return one.leader_id, one.leader_epoch

    def settle(self) -> tuple[BrokerProcess, int]:
        """Wait until all brokers name the same leader, and that broker confirms it. Returns it and its epoch."""
        running = [broker for broker in self.brokers.all if broker.running]

        def agree() -> bool:
            said = {self.lead(broker) for broker in running}
            if len(said) != 1:
                return False
            broker_id, epoch = next(iter(said))
            leads = broker_id > 0 and self.brokers.all[broker_id - 1].running
            return leads and self.list_latest(self.brokers.all[broker_id - 1], epoch)[0] == NONE

        until(agree, "all agree on the lead")
        broker_id, epoch = self.lead(running[0])
        return self.brokers.all[broker_id - 1], epoch

    def produce(self, broker: BrokerProcess, count: int) -> Any:
        data = {"name": "t", "partition_data": ({"index": 0, "records": batch([b"x"] * count)},)}
        return self.ask(broker, oracle.PRODUCE, 11, {"acks": -1, "timeout": 30_000, "topic_data": (data,)})

    def fetch(self, broker: BrokerProcess, epoch: int) -> Any:
        part = {"partition": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": epoch, "log_start_offset": -1}
        values = {"replica_id": -1, "max_wait": 10, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
        return self.ask(broker, oracle.FETCH, 16, {**values, "topics": ({"topic_id": self.topic_id, "partitions": (part,)},)})

    def list_latest(self, broker: BrokerProcess, epoch: int) -> tuple[int, int, int]:
        part = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": LATEST}
        answer = self.ask(broker, oracle.LIST_OFFSETS, 7, {"replica_id": -1, "topics": ({"name": "t", "partitions": (part,)},)})
        (one,) = answer.topics[0].partitions
        return one.error_code, one.offset, one.leader_epoch

    def epoch_end(self, broker: BrokerProcess, asked: int, current: int) -> tuple[int, int, int]:
        part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": asked}
        values = {"replica_id": -1, "topics": ({"topic": "t", "partitions": (part,)},)}
        (one,) = self.ask(broker, oracle.OFFSET_FOR_LEADER_EPOCH, 4, values).topics[0].partitions
        return one.error_code, one.leader_epoch, one.end_offset

    def write(self, count: int) -> None:
        """Append records at the current leader."""
        lead, epoch = self.settle()
        (one,) = self.produce(lead, count).responses[0].partition_responses
        assert one.error_code == NONE
        assert one.base_offset == (self.end if self.written else 0), "offsets go on where they were"
        self.written.append((epoch, one.base_offset, one.base_offset + count))

    def expected_end(self, asked: int, current: int) -> tuple[int, int, int]:
        """Kafka's answer: the greatest epoch with records that is not above the asked one, and the first offset of the next."""
        if asked == current:
            return NONE, current, self.end
        below = [epoch for epoch, _, _ in self.written if epoch <= asked]
        above = [first for epoch, first, _ in self.written if epoch > asked]
        return NONE, below[-1] if below else asked, above[0] if above else self.end

    def judge(self) -> None:
        """Send every question to every broker, and check the answers."""
        lead, current = self.settle()
        lead_id = self.brokers.all.index(lead) + 1
        for asked in range(current + 1):
            assert self.epoch_end(lead, asked, current) == self.expected_end(asked, current), f"asked={asked} {self.written}"
        assert self.epoch_end(lead, current + 1, current)[1:] == (-1, -1)
        assert self.list_latest(lead, current)[:2] == (NONE, self.end)
        for wrong, code in ((current - 1, FENCED_LEADER_EPOCH), (current + 1, UNKNOWN_LEADER_EPOCH)):
            assert self.epoch_end(lead, current, wrong)[0] == self.list_latest(lead, wrong)[0] == code
            (one,) = self.fetch(lead, wrong).responses[0].partitions
            assert one.error_code == code
            if code == FENCED_LEADER_EPOCH:
                assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (lead_id, current)
        (one,) = self.fetch(lead, current).responses[0].partitions
        assert (one.error_code, one.high_watermark) == (NONE, self.end)
        for broker in self.brokers.all:
            if broker is lead or not broker.running:
                continue
            assert self.epoch_end(broker, current, -1)[0] == self.list_latest(broker, -1)[0] == NOT_LEADER
            for answer in (self.fetch(broker, -1), self.produce(broker, 1)):
                part = answer.responses[0]
                (one,) = getattr(part, "partitions", None) or part.partition_responses
                assert one.error_code == NOT_LEADER
                assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (lead_id, current)
                assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [
                    (lead_id, HOST, lead.kafka_port)
                ]


def test_leads_and_epochs_are_told_truly(make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env=PATIENT)
    brokers.start()
    create_topic(brokers.bootstrap, "t", 4)
    partition = Partition(brokers)

    def call(method: str, request: Any) -> Any:
        with grpc.insecure_channel(f"{HOST}:{brokers.all[brokers.metadata().controller_id - 1].grpc_port}") as channel:
            data: bytes = channel.unary_unary(CONTROL[method].path)(request.SerializeToString(), timeout=PATIENCE_S)
        return CONTROL[method].response.FromString(data)

    def segments() -> list[Any]:
        described = call("Describe", control_pb2.DescribeRequest())
        return sorted((row for row in described.segments if row.topic == "t"), key=lambda row: row.first_partition)

    def change(order: Kinds) -> None:
        call("Reshard", order)
        partition.judge()  # while the new epoch has no records
        partition.write(2)
        partition.judge()

    partition.write(3)
    partition.judge()
    home, _ = partition.lead(brokers.all[0])
    if len(segments()) == 1:  # a broker that is busy with its start gets no segment of a new topic
        call("Reshard", Kinds(split=Kinds.Split(segment_id=segments()[0].id, at_partition=2)))
    first, second = segments()[:2]
    change(Kinds(merge=Kinds.Merge(segment_id=first.id, next_segment_id=second.id)))
    change(Kinds(split=Kinds.Split(segment_id=segments()[0].id, at_partition=1)))
    change(Kinds(move=Kinds.Move(segment_id=segments()[0].id, broker_id=home % 3 + 1)))
    change(Kinds(move=Kinds.Move(segment_id=segments()[0].id, broker_id=home)))  # one incarnation, two epochs, another between them
    victim, epoch = partition.settle()
    victim.kill()
    until(lambda: partition.settle()[1] > epoch, "another one leads")
    partition.judge()
    partition.write(1)
    victim.start()
    partition.judge()
    epochs = [epoch for epoch, _, _ in partition.written]
    assert epochs == sorted(set(epochs))
    report(f"epochs: {len(epochs)} of one partition, told truly by every broker after every change")
