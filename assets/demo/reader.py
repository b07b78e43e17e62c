"""A consumer that checks its records, a process of its own, with librdkafka.

``python -m headgate.assets.demo.reader BOOTSTRAP TOPIC earliest|latest`` prints ``ready`` at its start position. A line
``HISTORY LIVE`` on its standard input states the total numbers of records; when it has them, or no record came for a while, it
prints its verdict as JSON and ends.

``python -m headgate.assets.demo.reader BOOTSTRAP TOPIC again HISTORY SECONDS`` reads the history once, prints ``ready``, and reads
it again and again for that time. Then it prints the number of rounds, and whether each of them was right.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

ANSWER_S = 600.0
"""Longest wait for the brokers' answer about a topic, in seconds."""
IDLE_S = 300.0
"""Longest pause between two records once their number is known, in seconds: a starved machine stands still for minutes."""


@dataclass
class Verdict:
    """The records that came. `delay_ms_max`: longest time from the sending of a live record to its arrival here."""

    history: int = 0
    live: int = 0
    twice: int = 0
    history_behind_live: int = 0
    history_out_of_order: int = 0
    live_out_of_order: int = 0
    offsets_back: int = 0
    delay_ms_max: float = 0.0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not (
            self.twice or self.history_behind_live or self.history_out_of_order or self.live_out_of_order or self.offsets_back
        )


@dataclass
class Checker:
    """Judges records in their order of arrival, partition by partition."""

    verdict: Verdict = field(default_factory=Verdict)
    _seen_history: set[int] = field(default_factory=set)
    _seen_live: set[int] = field(default_factory=set)
    _offset: dict[int, int] = field(default_factory=dict)
    _time: dict[int, int] = field(default_factory=dict)
    _number: dict[int, int] = field(default_factory=dict)

    def take(self, partition: int, offset: int, timestamp_ms: int, value: bytes, now_ms: float) -> None:
        """Judge one record. `timestamp_ms` is the flight's own time in history, the time of sending otherwise."""
        row = json.loads(value)
        verdict = self.verdict
        verdict.offsets_back += offset <= self._offset.get(partition, -1)
        self._offset[partition] = offset
        if "live" in row:
            number = row["live"]
            verdict.live += 1
            verdict.twice += number in self._seen_live
            self._seen_live.add(number)
            verdict.live_out_of_order += number <= self._number.get(partition, -1)
            self._number[partition] = number
            verdict.delay_ms_max = max(verdict.delay_ms_max, now_ms - timestamp_ms)
            return
        verdict.history += 1
        verdict.twice += row["id"] in self._seen_history
        self._seen_history.add(row["id"])
        verdict.history_behind_live += partition in self._number
        verdict.history_out_of_order += timestamp_ms < self._time.get(partition, 0)
        self._time[partition] = timestamp_ms


def main(bootstrap: str, topic: str, start: str) -> int:
    """Returns the exit code: 1 when the records were wrong."""
    consumer = _consumer(bootstrap, start)
    partitions = sorted(consumer.list_topics(topic, ANSWER_S).topics[topic].partitions)
    at = dict.fromkeys(partitions, OFFSET_BEGINNING)
    if start == "latest":
        # The position is requested now, so that no record sent from here on is missed.
        at = {partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), ANSWER_S)[1] for partition in partitions}
    consumer.assign([TopicPartition(topic, partition, at[partition]) for partition in partitions])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    goal = _Goal()
    checker = Checker()
    began = last = time.monotonic()
    while not goal.reached(checker.verdict) and not (goal.known and time.monotonic() - last > IDLE_S):
        if _take(consumer, checker):
            last = time.monotonic()
    checker.verdict.seconds = round(time.monotonic() - began, 1)
    consumer.close()
    result: dict[str, Any] = {**asdict(checker.verdict), "clean": checker.verdict.clean}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if checker.verdict.clean else 1


def again(bootstrap: str, topic: str, history: int, seconds: float) -> int:
    """Read the history again and again. Returns the exit code 0: what was wrong stands in the output."""
    clean = _round(bootstrap, topic, history)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    until, rounds = time.monotonic() + seconds, 0
    while clean and time.monotonic() < until:
        clean = _round(bootstrap, topic, history)
        rounds += 1
    sys.stdout.write(json.dumps({"rounds": rounds, "clean": clean}) + "\n")
    return 0


def _round(bootstrap: str, topic: str, history: int) -> bool:
    """Read the history as a new consumer. Returns True if each record came once and in order."""
    consumer, checker = _consumer(bootstrap, "again"), Checker()
    partitions = consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    last = time.monotonic()
    while checker.verdict.history < history and time.monotonic() - last < IDLE_S:
        if _take(consumer, checker):
            last = time.monotonic()
    consumer.close()
    return checker.verdict.clean and checker.verdict.history == history


def _consumer(bootstrap: str, name: str) -> Any:
    quiet = logging.Logger("reader")
    quiet.addHandler(logging.NullHandler())
    return Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"demo-{name}", "enable.auto.commit": True, "auto.offset.reset": "error"},
        logger=quiet,
    )


def _take(consumer: Any, checker: Checker) -> bool:
    """Judge the next records. Returns True if there were some."""
    found = False
    for message in consumer.consume(5000, 0.2):
        if message.error() is not None:
            continue  # a broker came or went: librdkafka continues by itself
        found = True
        checker.take(message.partition(), message.offset(), message.timestamp()[1], message.value(), time.time() * 1000)
    return found


class _Goal:
    """The expected numbers of records, once known."""

    def __init__(self) -> None:
        self._wanted: tuple[int, int] | None = None
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def known(self) -> bool:
        return self._wanted is not None

    def reached(self, verdict: Verdict) -> bool:
        return self._wanted is not None and verdict.history >= self._wanted[0] and verdict.live >= self._wanted[1]

    def _read(self) -> None:
        line = sys.stdin.readline().split()
        self._wanted = (int(line[0]), int(line[1])) if len(line) == 2 else (0, 0)


if __name__ == "__main__":
    if sys.argv[3] == "again":
        sys.exit(again(sys.argv[1], sys.argv[2], int(sys.argv[4]), float(sys.argv[5])))
    sys.exit(main(*sys.argv[1:4]))
