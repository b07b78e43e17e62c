"""Three brokers on one store, killed, stopped, paused and drained under foreign clients; no acked record may be harmed.

Runs: three real brokers over one directory. confluent-kafka and aiokafka write idempotently and read all the time, with all
three as bootstrap servers. Round after round one broker, including the cluster's leader, is ended in one of these ways and
restarted: SIGKILL; SIGTERM, after which it must hand over and exit 0; SIGSTOP until the others have replaced it, then SIGCONT,
after which it must exit 3. Segments are split, moved and merged by hand under the same load. Compared, at the end: the whole
topic with every ack and with the reads of the consumers (`tests/support/history.py`). A mismatch means that an acked record was
lost, repeated, reordered, moved, or readable before it was safe.

HEADGATE_CLUSTER_ROUNDS sets the number of rounds, HEADGATE_CLUSTER_SEED replays a run's choices.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.cluster import EXIT_FENCED, PATIENCE_S, PATIENT, Brokers, Clients
from tests.support.history import check_log, check_writer
from tests.support.records import Record
from tests.support.waiting import until
from tests.support.wire import RawConnection
from tests.support.writers import BLOCKED_S, READERS, ConfluentWriter, Reader

SEED = int(os.environ.get("HEADGATE_CLUSTER_SEED", time.time_ns() % 1_000_000))
PARTITIONS = 6
METADATA = 3
NOT_LEADER = 6


@pytest.fixture
def brokers(make_broker: BrokerFactory, tmp_path: Path) -> Brokers:
    return Brokers(make_broker, tmp_path / "store", env=PATIENT)


def test_rounds(make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]) -> None:
    draw = random.Random(f"{SEED}-cluster")
    brokers = Brokers(make_broker, tmp_path / "store")
    brokers.start()
    brokers.spread("t", PARTITIONS)
    took: list[float] = []
    with Clients(brokers, "t", PARTITIONS) as clients:
        rounds = int(os.environ.get("HEADGATE_CLUSTER_ROUNDS", "5"))
        ways = ["kill", "drain", "pause", "kill", "kill"]
        for number in range(rounds):
            clients.acked_in_all(20, revive=True)  # on a busy machine a broker may have been replaced that did not hang
            how = ways[number % len(ways)]
            victim = brokers.leader() if number % 2 == 0 else draw.choice(brokers.all)
            began = time.monotonic()
            end(brokers, how, victim)
            clients.acked_in_all(1)
            if how != "pause":
                took.append(time.monotonic() - began)
            victim.start()
        clients.acked_in_all(20, revive=True)
        wrong = clients.judge()
    report(
        f"cluster: {rounds} rounds, {clients.acked:,} acked, every partition acks again after {min(took):.2f} to "
        f"{max(took):.2f} s; HEADGATE_CLUSTER_SEED={SEED}"
    )
    assert not wrong, f"seed=`{SEED}` complaints=`{len(wrong)}`\n" + "\n".join(wrong[:20])


def end(brokers: Brokers, how: str, victim: BrokerProcess) -> None:
    if how == "kill":
        victim.kill()
    elif how == "drain":
        exit_code = victim.terminate(PATIENCE_S)
        assert exit_code == 0, f"SIGTERM did not end the broker cleanly. exit=`{exit_code}`\n{victim.log_tail()}"
    else:
        victim.signal(signal.SIGSTOP)
        until(lambda: brokers.number(victim) not in brokers.metadata(brokers.others(victim)).brokers, "the others replaced it")
        victim.signal(signal.SIGCONT)
        assert victim.wait_exit(PATIENCE_S) == EXIT_FENCED, f"a broker that was replaced goes on\n{victim.log_tail()}"


def test_positions_survive_the_coordinator(brokers: Brokers) -> None:
    brokers.start()
    create_topic(brokers.bootstrap, "t", 1)
    settings = {"bootstrap.servers": brokers.bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    for number in range(1, 4):
        consumer = Consumer(settings)
        try:
            consumer.commit(offsets=[TopicPartition("t", 0, number)], asynchronous=False)
        finally:
            consumer.close()
        leads = brokers.leads("__consumer_offsets")
        # librdkafka does not name the coordinator; the broker that leads most of the groups' partitions stands for it.
        victim = brokers.all[max(set(leads.values()), key=list(leads.values()).count) - 1]
        victim.kill()
        until(partial(leads_nothing, brokers, brokers.number(victim)), "the partitions were taken over")
        reader = Consumer(settings)
        try:
            assert reader.committed([TopicPartition("t", 0)], timeout=60)[0].offset == number
        finally:
            reader.close()
        victim.start()


def leads_first(brokers: Brokers, broker_id: int) -> bool:
    return all(brokers.leads("t", broker.bootstrap)[0] == broker_id for broker in brokers.all)


def leads_nothing(brokers: Brokers, broker_id: int) -> bool:
    return broker_id not in brokers.leads("__consumer_offsets").values()


def test_brokers_that_do_not_lead_say_who_does(brokers: Brokers) -> None:
    brokers.start()
    brokers.spread("t", 3)
    leads = brokers.leads("t")
    with RawConnection(HOST, brokers.all[0].kafka_port) as connection:
        topic_id = oracle.call(connection, METADATA, 12, {"topics": ({"name": "t"},)}).topics[0].topic_id
    for broker in brokers.all:
        elsewhere = next(partition for partition, lead in leads.items() if lead != brokers.number(broker))
        lead = brokers.all[leads[elsewhere] - 1]
        with RawConnection(HOST, broker.kafka_port) as connection:
            data = {"name": "t", "partition_data": ({"index": elsewhere, "records": batch([b"x"])},)}
            produced = oracle.call(connection, oracle.PRODUCE, 11, {"acks": -1, "timeout": 30_000, "topic_data": (data,)})
            (one,) = produced.responses[0].partition_responses
            assert one.error_code == NOT_LEADER
            assert one.current_leader.leader_id == leads[elsewhere]
            assert [(node.node_id, node.host, node.port) for node in produced.node_endpoints] == [
                (leads[elsewhere], HOST, lead.kafka_port)
            ]
            part = {"partition": elsewhere, "partition_max_bytes": 1000, "current_leader_epoch": -1, "log_start_offset": -1}
            values = {"replica_id": -1, "max_wait": 10, "min_bytes": 1, "max_bytes": 1000, "session_epoch": -1}
            topics = ({"topic_id": topic_id, "partitions": (part,)},)
            fetched = oracle.call(connection, oracle.FETCH, 16, {**values, "topics": topics})
            (one,) = fetched.responses[0].partitions
            assert one.error_code == NOT_LEADER
            assert one.current_leader.leader_id == leads[elsewhere]
            assert [(node.node_id, node.host, node.port) for node in fetched.node_endpoints] == [
                (leads[elsewhere], HOST, lead.kafka_port)
            ]


def test_a_reader_follows_a_partition_to_a_broker_that_it_does_not_know(brokers: Brokers) -> None:
    """kafka-python asks for the metadata every five minutes, or after an error. It begins to read while one broker runs."""
    first, second = brokers.all[:2]
    first.start()
    create_topic(first.bootstrap, "t", 1)
    records = [Record(partition=0, key=None, value=b"%d" % number) for number in range(10)]
    readers: list[Reader] = [reader(first.bootstrap, "t", 1) for reader in READERS]

    def read(more: list[Record], end: int) -> None:
        CLIENTS["confluent"].produce(first.bootstrap, "t", more, codec="none", idempotent=True)
        for reader in readers:
            until(lambda reader=reader: reader.check() or reader.count == end, f"{type(reader).__name__} reads {end} records")

    for reader in readers:
        reader.start()
    read(records[:5], 5)
    second.start()
    (segment,) = brokers.segments("t")
    move = control_pb2.ReshardRequest.Move(segment_id=segment.id, broker_id=2)
    brokers.control("Reshard", control_pb2.ReshardRequest(move=move))
    read(records[5:], 10)
    for reader in readers:
        reader.stop()
        reader.join(BLOCKED_S)
        assert [value for _, value in reader.seen[0]] == [record.value for record in records]


def test_segments_change_by_hand(brokers: Brokers, report: Callable[[str], None]) -> None:
    brokers.start()
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    writer = ConfluentWriter(brokers.bootstrap, "t", PARTITIONS, 0, idempotent=True, codec="none")
    writer.start()
    until(lambda: all(len(writer.sent.acks.get(number, ())) > 20 for number in range(PARTITIONS)), "every partition acks")
    kinds = control_pb2.ReshardRequest
    for _ in range(3):
        first = brokers.segments("t")[0]
        if first.end_partition - first.first_partition > 1:
            left, right = brokers.control("Reshard", kinds(split=kinds.Split(segment_id=first.id))).segments
            assert (left.first_partition, right.end_partition) == (0, first.end_partition)
            assert left.end_partition == right.first_partition
            assert left.leader_epoch > first.leader_epoch < right.leader_epoch
        first = brokers.segments("t")[0]
        target = first.broker_id % 3 + 1
        (moved,) = brokers.control("Reshard", kinds(move=kinds.Move(segment_id=first.id, broker_id=target))).segments
        assert (moved.first_partition, moved.end_partition, moved.broker_id) == (0, first.end_partition, target)
        first, second = brokers.segments("t")[:2]
        (merged,) = brokers.control("Reshard", kinds(merge=kinds.Merge(segment_id=first.id, next_segment_id=second.id))).segments
        assert (merged.first_partition, merged.end_partition, merged.broker_id) == (0, second.end_partition, target)
        until(partial(leads_first, brokers, target), "all know it")
    decisions = brokers.describe().decisions
    writer.stop()
    writer.join(PATIENCE_S)
    shown = CLIENTS["confluent"].consume(brokers.bootstrap, "t", range(PARTITIONS))
    log = {partition: [(read.offset, read.value or b"") for read in reads] for partition, reads in shown.items()}
    wrong = check_log(log) + check_writer(writer.sent, log)
    assert not wrong, "\n".join(wrong[:20])
    pauses = sorted(decision.pause_ms for decision in decisions)
    report(f"cluster: {len(pauses)} splits, moves, merges; orders took {pauses[len(pauses) // 2]} ms median, {pauses[-1]} ms worst")
