"""A group member of librdkafka."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.support.clients.confluent import QUICK_RECONNECT
from tests.support.group_members.common import settings, tell, until_stdin_closes

NEW_PROTOCOL = "kip848"
"""In place of an assignor: the protocol of KIP-848, in which the broker assigns."""

# Errors of a commit while the group or the broker changes; the next commit, or the next owner, makes up for them.
PASSING = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._STATE,
    KafkaError._NO_OFFSET,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
}


def main() -> None:
    given = settings()
    stop = until_stdin_closes()
    config: dict[str, Any] = {
        "bootstrap.servers": given["bootstrap"],
        "group.id": given["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        **QUICK_RECONNECT,
    }
    if given["assignor"] == NEW_PROTOCOL:
        config["group.protocol"] = "consumer"
    else:
        config["partition.assignment.strategy"] = given["assignor"]
        config["session.timeout.ms"] = given["session_ms"]
        config["heartbeat.interval.ms"] = 500
    if given["instance"] is not None:
        config["group.instance.id"] = given["instance"]
    fatal: list[KafkaError] = []

    def failed(error: KafkaError) -> None:
        if error.fatal():
            fatal.append(error)

    # librdkafka reports a fatal error here. It does not always deliver it among the messages of `consume`, too.
    consumer = Consumer({**config, "error_cb": failed})
    cooperative = given["assignor"] in ("cooperative-sticky", NEW_PROTOCOL)

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        if cooperative:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        tell("assigned", partitions=[one.partition for one in partitions])

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        tell("revoked", partitions=[one.partition for one in partitions])
        if cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    consumer.subscribe([given["topic"]], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not stop.is_set():
        messages = consumer.consume(500, 0.2)
        # `consume` does not always call back; `poll` does.
        if not messages and (late := consumer.poll(0)) is not None:
            messages = [late]
        positions: dict[int, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                partition, offset = _place(message)
                tell("record", partition=partition, offset=offset)
                positions[partition] = offset + 1
            elif error.fatal():
                fatal.append(error)
        if fatal:
            tell("fatal", code=fatal[0].code(), text=fatal[0].str())
            return
        if positions and not _commit(consumer, given["topic"], positions):
            return
    consumer.close()
    tell("stopped")


def _place(message: Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset


def _commit(consumer: Consumer, topic: str, positions: dict[int, int]) -> bool:
    """False when this member must end: another process has its instance id."""
    try:
        answers = consumer.commit(
            offsets=[TopicPartition(topic, partition, offset) for partition, offset in positions.items()], asynchronous=False
        )
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):
            tell("fatal", code=error.code(), text=error.str())
            return False
        if error.code() not in PASSING:
            raise
        tell("commit_failed", code=error.code())
    else:
        tell("committed", offsets={row.partition: row.offset for row in answers or () if row.error is None})
    return True


if __name__ == "__main__":
    main()
