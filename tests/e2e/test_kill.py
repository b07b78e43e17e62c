"""A broker is killed again and again while foreign producers write and foreign consumers read; no acked record may be harmed.

Runs: a real broker on a local directory and on S3 (a moto server), killed with SIGKILL at random moments, sometimes stopped with
SIGTERM, each time restarted on the same ports and store, sometimes with other settings. confluent-kafka, aiokafka and
kafka-python write all the time, with and without idempotence; a confluent-kafka and an aiokafka consumer long-poll all the time.
Compared, at the end, after one more SIGKILL: the whole topic, read by a foreign client, with every ack and with the two
consumers' reads before each kill. `tests/support/history.py` judges; `test_kill_checkers.py` proves that it can fail. A mismatch
means that an acked record was lost, repeated, reordered, moved to another offset, or readable before it was safe.

`make soak` has 100 rounds of each; HEADGATE_KILL_ROUNDS sets another number, HEADGATE_KILL_SEED replays a run's choices (the seed
is printed at the end).
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.clients.interface import Client
from tests.support.history import check_log, check_reader, check_writer, gaps
from tests.support.records import Record
from tests.support.s3_chaos import S3Chaos
from tests.support.s3_server import S3Server
from tests.support.waiting import until
from tests.support.wire import ClosedByPeer, RawConnection
from tests.support.writers import (
    AiokafkaReader,
    AiokafkaWriter,
    ConfluentReader,
    ConfluentWriter,
    KafkaPythonWriter,
    Reader,
    Running,
    Writer,
)

SEED = int(os.environ.get("HEADGATE_KILL_SEED", time.time_ns() % 1_000_000))
SHORT_AND_LONG = pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.slow)])
PARTITIONS = 4
TOPIC = "kill"
PATIENCE_S = 90.0
"""Ends a hang; no test judges by it."""

PAUSE_S = 0.01
"""Between two bursts of a writer: five of them without pauses take more of the processors than the broker."""

TIGHT = {
    "HEADGATE_WAL_CHUNK_BYTES": "1MiB",
    "HEADGATE_WAL_CHECKPOINT_CHUNKS": "2",
    "HEADGATE_WAL_CHECKPOINT_INTERVAL_MS": "50",
    "HEADGATE_TAIL_BYTES": "1MiB",
    "HEADGATE_READ_CACHE_BYTES": "0",
}
"""Settings that make every mechanism act often: chunks roll, the manifest moves, readers leave memory."""


@dataclass
class Round:
    """The events of one incarnation."""

    how: str
    start_s: float
    acked: int


@dataclass
class Ordeal:
    """One run: a broker, its clients, and the events."""

    broker: BrokerProcess
    draw: random.Random
    writers: list[Writer]
    readers: list[Reader]
    rounds: list[Round] = field(default_factory=list)
    folds_killed: int = 0

    def acked(self) -> int:
        return sum(writer.sent.acked_count for writer in self.writers)

    def wait_for_acks(self, more: int) -> None:
        """Wait until `more` records were acked, so that every incarnation has records to lose."""
        wanted = self.acked() + more

        def enough() -> bool:
            for one in (*self.writers, *self.readers):
                one.check()
            self.broker.check_alive()
            return self.acked() >= wanted

        until(enough, lambda: f"records are acked\n{self.broker.log_tail()}", pause_s=0.005)

    def end_incarnation(self) -> None:
        """Let the broker work for a random time, then end it in a random way."""
        before, start_s = self.acked(), self.broker.start_times_s[-1]
        self.wait_for_acks(self.draw.choice([1, 1, 50, 500]))
        time.sleep(self.draw.random() * 0.4)
        self.broker.check_alive()
        for pid in self.broker.children("file_fold_process"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.folds_killed += 1
                time.sleep(self.draw.random() * 0.2)
        if self.draw.random() < 0.2:
            how = "SIGTERM"
            exit_code = self.broker.terminate()
            assert exit_code == 0, f"SIGTERM did not end the broker cleanly. exit=`{exit_code}`\n{self.broker.log_tail()}"
        else:
            how = "SIGKILL"
            self.broker.kill()
        self.rounds.append(Round(how, start_s, self.acked() - before))

    def start_again(self) -> None:
        """Start, sometimes with other settings, and sometimes kill it before it serves or just when it does."""
        self.broker.env = {name: value for name, value in self.broker.env.items() if name not in TIGHT}
        if self.draw.random() < 0.5:
            self.broker.env.update(TIGHT)
        if self.draw.random() < 0.3:
            self.broker.spawn()
            time.sleep(self.draw.random() * 0.4)
            self.broker.kill()
        self.broker.start()


def run(broker: BrokerProcess, rounds: int, report: Callable[[str], None], label: str, **config: str) -> Ordeal:
    """Kill `rounds` times under load, or as often as HEADGATE_KILL_ROUNDS says, then judge. `config`: settings of the topic."""
    rounds = int(os.environ.get("HEADGATE_KILL_ROUNDS", rounds))
    draw = random.Random(f"{SEED}-{label}")
    broker.start()
    create_topic(broker.bootstrap, TOPIC, PARTITIONS, **config)
    kinds: list[tuple[type[Writer], bool, str]] = [
        (ConfluentWriter, True, "lz4"),
        (ConfluentWriter, False, "none"),
        (AiokafkaWriter, True, "none"),
        (AiokafkaWriter, False, "snappy"),
        (KafkaPythonWriter, True, "gzip"),
    ]
    writers = [
        kind(broker.bootstrap, TOPIC, PARTITIONS, number, idempotent=idempotent, codec=codec)
        for number, (kind, idempotent, codec) in enumerate(kinds)
    ]
    readers: list[Reader] = [reader(broker.bootstrap, TOPIC, PARTITIONS) for reader in (ConfluentReader, AiokafkaReader)]
    ordeal = Ordeal(broker, draw, writers, readers)
    for writer in writers:
        writer.pause_s = PAUSE_S
    for one in (*writers, *readers):
        one.start()
    for _ in range(rounds):
        ordeal.end_incarnation()
        ordeal.start_again()
    ordeal.wait_for_acks(1)
    for writer in writers:
        writer.stop()
    for writer in writers:
        writer.join(PATIENCE_S)
    judge(ordeal, report, label)
    return ordeal


def judge(ordeal: Ordeal, report: Callable[[str], None], label: str) -> None:
    broker = ordeal.broker
    log = read_all(CLIENTS["confluent"], broker)
    for reader in ordeal.readers:
        reader.finish({partition: records[-1][0] for partition, records in log.items() if records}, PATIENCE_S)
    broker.check_alive()
    broker.kill()
    restart_s = broker.start()
    recovered = read_all(CLIENTS["aiokafka"], broker)
    wrong = check_log(recovered)
    wrong += [f"before the last kill: {line}" for line in check_reader("confluent", log, recovered)]
    for writer in ordeal.writers:
        wrong += check_writer(writer.sent, recovered)
    for reader in ordeal.readers:
        wrong += check_reader(type(reader).__name__, reader.seen, recovered)
    acked, read = ordeal.acked(), sum(len(records) for records in recovered.values())
    starts = sorted([*broker.start_times_s[1:], restart_s])
    how = [one.how for one in ordeal.rounds]
    kills, stops, per_round = how.count("SIGKILL") + 1, how.count("SIGTERM"), [one.acked for one in ordeal.rounds]
    report(
        f"kill {label}: {kills} SIGKILL, {stops} SIGTERM, {broker.starts} starts; {acked:,} acked, {read:,} read, "
        f"{gaps(recovered):,} offsets unused; {min(per_round):,} to {max(per_round):,} acked per round; "
        f"serving again after {statistics.median(starts):.3f} s median, {starts[-1]:.3f} s worst; HEADGATE_KILL_SEED={SEED}"
    )
    assert not wrong, f"seed=`{SEED}` complaints=`{len(wrong)}`\n" + "\n".join(wrong[:20])
    assert acked == sum(writer.sent.sent_count for writer in ordeal.writers), "a producer was stopped before its acks came"


def read_all(client: Client, broker: BrokerProcess) -> Mapping[int, list[tuple[int, bytes]]]:
    shown = client.consume(broker.bootstrap, TOPIC, range(PARTITIONS))
    return {partition: [(read.offset, read.value or b"") for read in reads] for partition, reads in shown.items()}


@pytest.mark.timeout(3600)
@SHORT_AND_LONG
def test_rounds_on_a_directory(make_broker: BrokerFactory, report: Callable[[str], None], rounds: int) -> None:
    run(make_broker(), rounds, report, "directory")


@pytest.mark.timeout(3600)
@SHORT_AND_LONG
def test_rounds_on_s3(make_broker: BrokerFactory, s3_server: S3Server, report: Callable[[str], None], rounds: int) -> None:
    """The store is behind a proxy that is slow and fails: PUTs of a dead broker take effect after its successor has started."""
    with S3Chaos(s3_server, f"{SEED}-S3") as s3:
        store = f"s3://{s3_server.bucket()}/kill?endpoint={s3.endpoint}"
        # The test judges that the end is clean, not its duration, which such a store and a busy machine may extend.
        broker = make_broker(store, env={**s3_server.environment, "HEADGATE_SHUTDOWN_TIMEOUT_MS": "60s"})
        run(broker, rounds, report, "S3")
        report(f"kill S3: {sum(s3.requests.values()):,} S3 requests, {s3.faults:,} of them broken")
        broker.kill()


@pytest.mark.timeout(3600)
@SHORT_AND_LONG
def test_rounds_with_folds_to_files(make_broker: BrokerFactory, report: Callable[[str], None], rounds: int) -> None:
    """All records become Parquet files at once; the processes that write the files are killed, too."""
    at_once = {"OFFLINE_CHECK_INTERVAL_MS": "50ms", "OFFLINE_NICENESS": "0", "WAL_CHECKPOINT_INTERVAL_MS": "200ms"}
    broker = make_broker(env={f"HEADGATE_{name}": value for name, value in at_once.items()})
    ordeal = run(broker, rounds, report, "files", offline_after_bytes="0")
    files = list((Path(broker.store) / "topics").rglob("offset=*.parquet"))
    report(f"kill files: {ordeal.folds_killed} folding processes killed, {len(files)} files")
    assert files and ordeal.folds_killed


def test_clients_that_are_given_up_end_without_a_broker(make_broker: BrokerFactory) -> None:
    """A failed test leaves its clients behind: they end, whatever they wait for, and do not disturb the next test."""
    broker = make_broker()
    broker.start()
    topic = create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    writers = [
        kind(broker.bootstrap, topic, PARTITIONS, number, idempotent=True, codec="none")
        for number, kind in enumerate((ConfluentWriter, AiokafkaWriter, KafkaPythonWriter))
    ]
    readers: list[Reader] = [kind(broker.bootstrap, topic, PARTITIONS) for kind in (ConfluentReader, AiokafkaReader)]
    ordeal = Ordeal(broker, random.Random(SEED), writers, readers)
    for one in (*writers, *readers):
        one.start()
    while not all(writer.sent.acked_count for writer in writers) or not all(reader.count for reader in readers):
        ordeal.wait_for_acks(1)
    broker.kill()
    for reader in readers:
        reader.ends = dict.fromkeys(range(PARTITIONS), 1 << 40)
    Running.end_all()
    assert not Running.started


def test_a_long_poll_does_not_hold_up_sigterm(make_broker: BrokerFactory) -> None:
    """When the broker is told to stop, it answers or closes fetches that wait for records, and does not wait for them."""
    broker = make_broker(env={"HEADGATE_FETCH_WAIT_MAX_MS": "600s"})
    broker.start()
    topic = create_topic(broker.bootstrap, TOPIC, 1)
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1, "log_start_offset": -1}
    values = {"replica_id": -1, "max_wait": 600_000, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
    fetch = oracle.encode(oracle.FETCH, 11, {**values, "topics": ({"topic": topic, "partitions": (part,)},)})
    with ExitStack() as opened:
        waiting = [opened.enter_context(RawConnection(HOST, broker.kafka_port, timeout_s=PATIENCE_S)) for _ in range(10)]
        for connection in waiting:
            oracle.call(connection, oracle.METADATA, 12, {"topics": None})
            connection.send_request(oracle.FETCH, 11, fetch)
        with RawConnection(HOST, broker.kafka_port, timeout_s=PATIENCE_S) as other:
            for _ in range(2):  # the broker's loop has then read what came before
                oracle.call(other, oracle.METADATA, 12, {"topics": None})
        assert broker.terminate() == 0
        for connection in waiting:
            with suppress(ClosedByPeer):
                connection.receive_frame()


def test_a_broker_that_ends_is_named_in_its_last_answer(make_broker: BrokerFactory) -> None:
    """While the only broker ends, its answers never say that there is no broker: librdkafka would not look for it again."""
    broker = make_broker()
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    brokers: list[int] = []
    connected: set[int] = set()

    def ask() -> None:
        with RawConnection(HOST, broker.kafka_port, timeout_s=60) as connection, suppress(ClosedByPeer, ConnectionError):
            while True:
                brokers.append(len(oracle.call(connection, oracle.METADATA, 12, {"topics": None}).brokers))
                connected.add(threading.get_ident())

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    until(lambda: len(connected) == len(asking), "all clients ask")
    assert broker.terminate() == 0
    for thread in asking:
        thread.join(PATIENCE_S)
    assert set(brokers) == {1}


@pytest.mark.parametrize(
    ("signals", "exit_codes"),
    [
        pytest.param((signal.SIGINT,), {0}, id="ctrl-c"),
        # A second signal may cut the end short: then the exit code names that signal.
        pytest.param((signal.SIGINT, signal.SIGINT), {0, 128 + signal.SIGINT}, id="ctrl-c-twice"),
        pytest.param((signal.SIGTERM, signal.SIGINT), {0, 128 + signal.SIGTERM, 128 + signal.SIGINT}, id="both"),
        pytest.param((signal.SIGHUP,), {-signal.SIGHUP, 0}, id="hangup"),
    ],
)
def test_impatient_signals(make_broker: BrokerFactory, signals: tuple[int, ...], exit_codes: set[int]) -> None:
    """The broker ends by every kind of stop signal, and its acked records are there after the restart."""
    # nohup(1) ignores SIGHUP, and the broker would inherit that; here the signal must have its effect.
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        broker = make_broker()
        broker.forked = False  # a fork gets no signal that another process ignores
        broker.start()
    finally:
        signal.signal(signal.SIGHUP, ignored)
    client = CLIENTS["confluent"]
    topic = create_topic(broker.bootstrap, TOPIC, 1)
    records = [Record(partition=0, key=None, value=b"%d" % number, timestamp_ms=1) for number in range(100)]
    assert client.produce(broker.bootstrap, topic, records) == list(range(100))
    for number in signals:
        if broker.running:
            broker.signal(number)
    assert broker.wait_exit() in exit_codes
    broker.start()
    assert [read.value for read in client.consume(broker.bootstrap, topic, [0])[0]] == [record.value for record in records]


def test_start_after_much_was_written(make_broker: BrokerFactory, report: Callable[[str], None]) -> None:
    """SIGKILL after 200 MB over 64 partitions: all records are back, and the time until it serves again is printed."""
    broker = make_broker(env=TIGHT)
    broker.start()
    topic = create_topic(broker.bootstrap, TOPIC, 64)
    value = random.Random(SEED).randbytes(900_000)
    with RawConnection(HOST, broker.kafka_port, timeout_s=60) as connection:
        records = batch([value])
        for number in range(220):
            data = {"name": topic, "partition_data": ({"index": number % 64, "records": records},)}
            answer = oracle.call(connection, oracle.PRODUCE, 9, {"acks": -1, "timeout": 30_000, "topic_data": (data,)})
            assert answer.responses[0].partition_responses[0].error_code == 0
    broker.kill()
    restart_s = broker.start()
    report(f"kill: serving again {restart_s:.3f} s after SIGKILL with {220 * len(records) / 1e6:.0f} MB written")
    shown = CLIENTS["confluent"].consume(broker.bootstrap, topic, range(64))
    assert {partition: len(reads) for partition, reads in shown.items()} == {
        partition: len(range(partition, 220, 64)) for partition in range(64)
    }
    assert all(read.value == value for reads in shown.values() for read in reads)
