"""The disk under a running broker fills up, disappears or refuses writes: clear errors, and no acked record is lost.

Runs: a real broker with a store on a small tmpfs that is filled (with root), or with files that may not grow (without). In other
tests its directory is moved away, is read-only from the start, or has damaged files; or the broker is out of file descriptors.
Compared: the answers to Produce, reads and writes, and the records after a SIGKILL. Produce must be answered with Kafka's
KAFKA_STORAGE_ERROR, which clients retry, or the process ends with one line that gives the reason. Reads continue; writes
continue when the trouble is over; every acked record is there once, in order. A mismatch means that a failing disk costs a
user's data.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.topics import create_topic, eventually
from tests.conftest import BrokerFactory
from tests.e2e.hostile import MIB, check_healthy, connect, fetch_values, produce
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.small_disk import fill_disk, mounted
from tests.support.wire import ClosedByPeer, RawConnection

NONE, STORAGE_ERROR, REQUEST_TIMED_OUT = 0, 56, 7
TOPIC = "disk"
VALUE_BYTES = 100_000
STUCK_MS = 3_000
"""Time after which a record counts as one that a disk in trouble does not take."""
SMALL_CHUNKS = {"HEADGATE_WAL_CHUNK_BYTES": "1MiB"}


class Ledger:
    """Writes numbered records, one request each, and records the offset of each ack."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.acked: dict[int, int] = {}
        self._number = 0

    def write(self, timeout_ms: int = 60_000) -> int | None:
        """Write one record. Returns the error code, or None when the connection ended without an answer.

        Args:
            timeout_ms: after this time the broker answers REQUEST_TIMED_OUT.
        """
        self._number += 1
        value = b"%08d" % self._number + b"x" * VALUE_BYTES
        data = {"name": TOPIC, "partition_data": ({"index": 0, "records": batch([value])},)}
        try:
            with connect(self.broker, timeout_s=90) as connection:
                answer = oracle.call(connection, oracle.PRODUCE, 9, {"acks": -1, "timeout": timeout_ms, "topic_data": (data,)})
        except (ClosedByPeer, ConnectionError):
            return None
        one = answer.responses[0].partition_responses[0]
        if one.error_code == NONE:
            self.acked[one.base_offset] = self._number
        return int(one.error_code)

    def write_until(self, wanted: Callable[[int | None], bool], patience_s: float = 60.0) -> int | None:
        """Write until an answer is among the wanted ones."""
        deadline = time.monotonic() + patience_s
        while not wanted(code := self.write(STUCK_MS)):
            assert time.monotonic() < deadline, f"still answered with `{code}`\n{self.broker.log_tail()}"
            if code != NONE:
                time.sleep(0.05)
        return code

    def read(self) -> dict[int, int]:
        """By offset: the number of each record that can be read now."""
        shown = CLIENTS["confluent"].consume(self.broker.bootstrap, TOPIC, [0])[0]
        assert all(read.value is not None and read.value[8:] == b"x" * VALUE_BYTES for read in shown), "a record was changed"
        return {read.offset: int((read.value or b"")[:8]) for read in shown}

    def check(self) -> None:
        """Check that every acked record is at its offset, and that the numbers grow: nothing is lost, repeated or out of order."""
        found = self.read()
        lost = {offset: number for offset, number in self.acked.items() if found.get(offset) != number}
        assert not lost, f"acked records are not where they were. lost=`{lost}` end=`{max(found, default=-1)}`"
        assert list(found.values()) == sorted(set(found.values()))


def check_reads(ledger: Ledger) -> None:
    """Check that acked records can be read while nothing can be written."""
    ledger.broker.check_alive()
    found = ledger.read()
    assert ledger.acked.items() <= found.items()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB for this test."""
    with mounted(tmp_path / "disk", 24 * MIB) as place:
        yield place


@pytest.mark.needs_mount
def test_a_full_disk(make_broker: BrokerFactory, small_disk: Path) -> None:
    broker = make_broker(small_disk / "store", env=SMALL_CHUNKS)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    ledger = Ledger(broker)
    for _ in range(20):
        assert ledger.write() == NONE
    for _ in range(2):
        ballast = fill_disk(small_disk)
        # The record that met the full disk may still be written later, so its producer gets no error but a closed connection.
        code = ledger.write_until(lambda code: code != NONE)
        assert code in (STORAGE_ERROR, REQUEST_TIMED_OUT, None), f"a full disk is told as `{code}`"
        assert ledger.write() == STORAGE_ERROR
        check_reads(ledger)
        ballast.unlink()
        ledger.write_until(lambda code: code == NONE)
    broker.check_alive()
    ledger.check()
    broker.kill()
    broker.start()
    ledger.check()
    ledger.write_until(lambda code: code == NONE)
    ledger.check()


@pytest.mark.needs_mount
def test_a_disk_that_was_full_when_the_broker_was_killed(make_broker: BrokerFactory, small_disk: Path) -> None:
    """A broker that starts on a full disk either serves reads or gives the reason; with free space it has all records."""
    broker = make_broker(small_disk / "store", env=SMALL_CHUNKS)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    ledger = Ledger(broker)
    for _ in range(20):
        assert ledger.write() == NONE
    ballast = fill_disk(small_disk)
    ledger.write_until(lambda code: code != NONE)
    broker.kill()
    broker.spawn()
    eventually(lambda: not broker.running or _serves(broker), bool)
    if broker.running:
        check_reads(ledger)
        broker.kill()
    else:
        assert broker.exit_code() not in (0, None)
        assert "space" in broker.log_tail(3), "the reason is not told"
    ballast.unlink()
    broker.start()
    ledger.check()
    ledger.write_until(lambda code: code == NONE)
    ledger.check()


def _serves(broker: BrokerProcess) -> bool:
    try:
        with RawConnection(HOST, broker.kafka_port, timeout_s=1) as connection:
            return bool(oracle.call(connection, oracle.METADATA, 1, {"topics": None}).brokers)
    except (OSError, ClosedByPeer):
        return False


def test_files_that_may_not_grow(make_broker: BrokerFactory) -> None:
    """Stands for a full disk without root: a limit on the size of files (EFBIG) comes and goes while the broker runs."""
    broker = make_broker(env=SMALL_CHUNKS)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    ledger = Ledger(broker)
    for _ in range(20):
        assert ledger.write() == NONE
    unlimited = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    for _ in range(2):
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (4096, unlimited[1]))
        # The record that met the full disk may still be written later, so its producer gets no error but a closed connection.
        code = ledger.write_until(lambda code: code != NONE)
        assert code in (STORAGE_ERROR, REQUEST_TIMED_OUT, None), f"a full disk is told as `{code}`"
        assert ledger.write() == STORAGE_ERROR
        check_reads(ledger)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, unlimited)
        ledger.write_until(lambda code: code == NONE)
    ledger.check()
    broker.kill()
    broker.start()
    ledger.check()


def test_a_directory_that_is_moved_away(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """A record that is acked afterwards is in the moved directory. When the directory is moved back, no acked record is missing."""
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    broker = make_broker(store, env=SMALL_CHUNKS)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    ledger = Ledger(broker)
    for _ in range(20):
        assert ledger.write() == NONE
    store.rename(elsewhere)
    for _ in range(30):
        if broker.running:
            ledger.write(STUCK_MS)
    if broker.running:
        broker.kill()
    else:
        assert broker.exit_code() not in (0, None)
        assert "store" in broker.log_tail(5), "the reason is not told"
    shutil.rmtree(store, ignore_errors=True)
    elsewhere.rename(store)
    broker.start()
    ledger.check()
    ledger.write_until(lambda code: code == NONE)
    ledger.check()


def test_a_directory_that_is_deleted(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """The broker cannot store anything, so it must not ack anything: writes end in errors, or the process ends with a reason."""
    store = tmp_path / "store"
    broker = make_broker(store, env=SMALL_CHUNKS)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    ledger = Ledger(broker)
    assert ledger.write() == NONE
    while store.exists():
        # The broker creates files meanwhile.
        shutil.rmtree(store, ignore_errors=True)
    # The open chunk may take records that fit in it; the next chunk cannot be created.
    deadline = time.monotonic() + 60
    while broker.running and ledger.write(STUCK_MS) == NONE:
        assert time.monotonic() < deadline
        assert len(ledger.acked) < 200, "writes are acked into a store that is gone"
    if not broker.running:
        assert broker.exit_code() not in (0, None)
        assert str(store) in broker.log_tail(10), "the reason is not told"


@pytest.mark.needs_mount
def test_a_read_only_disk(make_broker: BrokerFactory, small_disk: Path) -> None:
    """A broker refuses a read-only store at the start, in one line; when the store is writable again, it is unchanged."""
    broker = make_broker(small_disk / "store")
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    ledger = Ledger(broker)
    assert ledger.write() == NONE
    broker.kill()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    broker.spawn()
    assert broker.wait_exit() not in (0, None)
    assert "read-only" in broker.log_tail(3), "the reason is not told"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    broker.start()
    ledger.check()


DAMAGES = ("empty", "garbage", "truncated", "directory")


@pytest.mark.parametrize("first", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, len(DAMAGES)))])
def test_a_damaged_register_is_not_believed(make_broker: BrokerFactory, tmp_path: Path, first: int) -> None:
    """Damages every file of the store in turn, each in another way than the one before: the broker starts with all acked records,
    or reports the damage. It never serves less. The long form damages every file in every way."""
    store = tmp_path / "store"
    broker = make_broker(store)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 1)
    ledger = Ledger(broker)
    for _ in range(3):
        assert ledger.write() == NONE
    assert broker.terminate() == 0
    backup = tmp_path / "backup"
    shutil.copytree(store, backup)
    files = sorted(path.relative_to(backup) for path in backup.rglob("*") if path.is_file())
    assert files
    for number, name in enumerate(files, first):
        damage = DAMAGES[number % len(DAMAGES)]
        shutil.rmtree(store)
        shutil.copytree(backup, store)
        victim = store / name
        content = victim.read_bytes()
        if damage == "empty":
            victim.write_bytes(b"")
        elif damage == "garbage":
            victim.write_bytes(os.urandom(len(content)))
        elif damage == "truncated":
            victim.write_bytes(content[: len(content) // 2])
        else:
            victim.unlink()
            victim.mkdir()
        broker.spawn()
        eventually(lambda: not broker.running or _serves(broker), bool)
        if broker.running:
            found = try_read(ledger)
            assert found is None or found == ledger.acked, (
                f"a damaged store was served as if nothing were wrong. file=`{name}` damage=`{damage}` found=`{found}`"
            )
            broker.kill()
        else:
            assert broker.exit_code() not in (0, None)


def test_a_flipped_bit_stops_its_partition_only(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """A batch changes under a serving broker. No client is sent it, and one request still gets the other partition."""
    store = tmp_path / "store"
    broker = make_broker(store)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, 2)
    values = [b"first" * 100, b"other" * 100]
    with connect(broker) as connection:
        for number, value in enumerate(values):
            produce(connection, TOPIC, batch([value]), number)
    assert broker.terminate() == 0
    broker.start()
    (chunk,) = [path for path in store.rglob("*") if path.is_file() and values[0] in path.read_bytes()]
    right = chunk.read_bytes()
    at = right.index(values[0])

    def fetch() -> dict[int, tuple[int, bytes]]:
        wanted = fetch_values(TOPIC, 0)
        (topic,) = wanted["topics"]  # type: ignore[misc]
        (part,) = topic["partitions"]
        both = ({**topic, "partitions": (part, {**part, "partition": 1})},)
        with connect(broker) as connection:
            answer = oracle.call(connection, oracle.FETCH, 11, {**wanted, "topics": both})
        return {one.partition_index: (one.error_code, one.records or b"") for one in answer.responses[0].partitions}

    with chunk.open("r+b") as file:
        file.seek(at)
        file.write(bytes([right[at] ^ 1]))
    for _ in range(3):
        found = fetch()
        assert found[0] == (STORAGE_ERROR, b"")
        assert found[1][0] == NONE and values[1] in found[1][1]
    assert "records_unreadable" in broker.log_tail(50) and TOPIC in broker.log_tail(50)
    with chunk.open("r+b") as file:
        file.seek(at)
        file.write(right[at : at + 1])
    found = fetch()
    assert [found[number][0] for number in (0, 1)] == [NONE, NONE] and values[0] in found[0][1]


def try_read(ledger: Ledger) -> dict[int, int] | None:
    """The records by plain requests, or None if the broker answers that it cannot tell."""
    with connect(ledger.broker) as connection:
        part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        answer = oracle.call(
            connection, oracle.LIST_OFFSETS, 5, {"replica_id": -1, "topics": ({"name": TOPIC, "partitions": (part,)},)}
        )
        end = answer.topics[0].partitions[0]
        if end.error_code != NONE:
            return None
        found: dict[int, int] = {}
        for offset in range(end.offset):
            values = fetch_values(TOPIC, offset, max_bytes=1)  # at least one batch comes, and a batch is one record
            one = oracle.call(connection, oracle.FETCH, 11, values).responses[0].partitions[0]
            if one.error_code != NONE:
                return None
            at = one.records.find(b"x" * VALUE_BYTES)
            found[offset] = int(one.records[at - 8 : at]) if at > 0 else -1
        return found


def test_out_of_file_descriptors(make_broker: BrokerFactory) -> None:
    """The broker refuses connections for which it has no descriptor; it lives, even while it starts, and serves again."""
    broker = make_broker()
    broker.start()
    check_healthy(broker)
    limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (broker.open_files() + 60, limits[1]))
    connections: list[RawConnection] = []
    try:
        for _ in range(100):
            connections.append(connect(broker))
        time.sleep(0.5)
        broker.check_alive()
    finally:
        for connection in connections:
            connection.close()
    check_healthy(broker)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
    check_healthy(broker)
    assert broker.terminate() == 0
