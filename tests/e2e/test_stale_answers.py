"""A broker that was stopped answers the requests in its sockets, and must not answer from its old state.

Runs: three real brokers. One leads a topic's partition and coordinates a group. The test stops it with SIGSTOP until another
broker leads both and has acked a new record and a new position. Then the test sends requests to the stopped broker, and resumes
it. Compared: its answers with the acks from before the requests. A mismatch means that a consumer reads records twice, or takes
a log for shorter than it is.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.cluster import Brokers
from tests.support.waiting import until
from tests.support.wire import ClosedByPeer, RawConnection

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
GROUPS = "__consumer_offsets"
NOT_LEADER, NOT_COORDINATOR = 6, 16
UNANSWERED = -1
Order = control_pb2.ReshardRequest


def asked_once(broker: BrokerProcess, api: int, version: int, values: dict[str, Any]) -> Any:
    """Send a request and read its answer; None if the broker closes the connection."""
    try:
        with RawConnection(HOST, broker.kafka_port) as connection:
            return oracle.call(connection, api, version, values)
    except (ClosedByPeer, ConnectionError):
        return None


def commit(broker: BrokerProcess, offset: int) -> int:
    """Commit the group's position. Returns the error code."""
    rows = ({"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""},)
    asked = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": ({"name": "t", "partitions": rows},)}
    answer = asked_once(broker, OFFSET_COMMIT, 7, asked)
    return UNANSWERED if answer is None else int(answer.topics[0].partitions[0].error_code)


def produce(broker: BrokerProcess) -> int:
    """Append one record. Returns the error code."""
    data = {"name": "t", "partition_data": ({"index": 0, "records": batch([b"x"])},)}
    answer = asked_once(broker, oracle.PRODUCE, 9, {"acks": -1, "timeout": 30_000, "topic_data": (data,)})
    return UNANSWERED if answer is None else int(answer.responses[0].partition_responses[0].error_code)


class Question:
    """One request on its own connection, and its parsed answer: (error code, offset)."""

    def __init__(self, broker: BrokerProcess, api: int, version: int, values: dict[str, Any]) -> None:
        self.api, self.version, self.values = api, version, values
        self.connection = RawConnection(HOST, broker.kafka_port)

    def send(self) -> None:
        body = oracle.encode(self.api, self.version, self.values)
        self.connection.send_request(self.api, self.version, body, flexible=oracle.is_flexible(self.api, self.version))

    def answer(self) -> tuple[int, int] | None:
        """None: the broker closed the connection."""
        try:
            frame = self.connection.receive_frame()
        except ClosedByPeer:
            return None
        found = oracle.decode(self.api, self.version, frame[4:])
        if self.api == oracle.FETCH:
            part = found.responses[0].partitions[0]
            return int(part.error_code), int(part.high_watermark)
        part = found.topics[0].partitions[0]
        return int(part.error_code or getattr(found, "error_code", 0)), int(
            part.committed_offset if self.api == OFFSET_FETCH else part.offset
        )


def questions(broker: BrokerProcess) -> list[Question]:
    """Requests for the group's position and for the end of the log, to one broker; the connections are open."""
    fetch_rows = ({"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1},)
    return [
        Question(broker, OFFSET_FETCH, 5, {"group_id": "g", "topics": ({"name": "t", "partition_indexes": (0,)},)}),
        Question(
            broker,
            oracle.LIST_OFFSETS,
            3,
            {"replica_id": -1, "topics": ({"name": "t", "partitions": ({"partition_index": 0, "timestamp": -1},)},)},
        ),
        Question(
            broker,
            oracle.FETCH,
            4,
            {
                "replica_id": -1,
                "max_wait": 0,
                "min_bytes": 0,
                "max_bytes": 1 << 20,
                "topics": ({"topic": "t", "partitions": fetch_rows},),
            },
        ),
    ]


@pytest.mark.parametrize("leading", [False, True])
def test_a_stopped_broker_does_not_answer_with_what_it_knew_before(
    make_broker: BrokerFactory, tmp_path: Path, leading: bool
) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env={"HEADGATE_OFFSETS_TOPIC_NUM_PARTITIONS": "1"})
    brokers.start()
    create_topic(brokers.bootstrap, "t", 1)
    leader = brokers.leader()
    victim = leader if leading else next(broker for broker in brokers.all if broker is not leader)
    until(lambda: any(commit(broker, 1) == 0 for broker in brokers.all), "the first commit makes the groups' topic")
    for topic in ("t", GROUPS):
        if brokers.leads(topic)[0] != brokers.number(victim):
            (segment,) = brokers.segments(topic)
            brokers.control("Reshard", Order(move=Order.Move(segment_id=segment.id, broker_id=brokers.number(victim))))
    until(lambda: produce(victim) == 0, "the victim leads")
    until(lambda: commit(victim, 1) == 0, "the victim holds the group")
    with ExitStack() as open_connections:
        asked = questions(victim)
        for question in asked:
            open_connections.enter_context(question.connection)
        for question in asked:
            question.send()
            answer = question.answer()
            assert answer is not None and answer[0] == 0 and answer[1] >= 1, f"while it leads it answers: {answer}"
        stop_and_ask(brokers, victim, asked)
        for question, refusal in zip(asked, (NOT_COORDINATOR, NOT_LEADER, NOT_LEADER), strict=True):
            answer = question.answer()
            assert answer is None or answer[0] == refusal or (answer[0] == 0 and answer[1] >= 2), f"a stale answer: {answer}"


def stop_and_ask(brokers: Brokers, victim: BrokerProcess, asked: list[Question]) -> None:
    """Stop a broker, write elsewhere, send requests to the stopped one, and resume it."""
    others = [broker for broker in brokers.all if broker is not victim]
    victim.signal(signal.SIGSTOP)
    try:
        until(lambda: any(produce(broker) == 0 for broker in others), "another broker leads the partition")
        until(lambda: any(commit(broker, 2) == 0 for broker in others), "another broker holds the group")
        for question in asked:
            question.send()
    finally:
        victim.signal(signal.SIGCONT)
