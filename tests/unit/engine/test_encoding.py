"""Encoder processes: their answers, their priority, and their end.

Runs: row groups sent as bytes and as a file's descriptor, good ones and broken ones; processes that are killed while idle and
while they work, that are closed while they work, or with a broker that is killed. Compared: the answers with those of the broker's
threads. A mismatch means that a broker serves different records, waits for a process that has ended, or leaves one behind.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.broker.engine.read import encoding
from headgate.broker.engine.read.encoding import NICENESS, Encoders, RowGroupBytes, encode
from headgate.broker.log.batch import parse_header
from headgate.broker.log.compression import Codec
from headgate.broker.log.parquet import footer_size, read_footer, write_extent_file
from headgate.broker.runtime import children
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.scheduling import Turns
from tests.support.errors import raises
from tests.support.signals import python
from tests.support.waiting import until

PATIENCE_S = 60.0
NICENESS_MAX = 19
"""The kernel's highest niceness. Tests may run with a niceness of their own, which an encoder inherits."""


def parquet(rows: int, value_bytes: int = 100) -> bytes:
    table = pa.table(
        {
            "timestamp": pa.array(range(rows), pa.timestamp("ms", tz="UTC")),
            "key": pa.array([b"key-%d" % at for at in range(rows)], pa.binary()),
            "value": pa.array([b"%d-" % at + bytes(value_bytes) for at in range(rows)], pa.binary()),
        }
    )
    return bytes(write_extent_file(table, row_group_bytes=64 << 10).data)


def group_of(data: bytes, index: int = 0, *, codec: Codec = Codec.NONE, base_offset: int = 7) -> RowGroupBytes:
    file = read_footer(data[len(data) - footer_size(data[-8:], len(data)) :], len(data))
    place = file.groups[index]
    return RowGroupBytes(file, len(data), index, data[place.start : place.end], base_offset, 3, codec)


def with_source(group: RowGroupBytes, source: bytes | int) -> RowGroupBytes:
    return RowGroupBytes(group.file, group.size_bytes, group.index, source, group.base_offset, group.leader_epoch, group.codec)


def encode_here(group: RowGroupBytes) -> list[memoryview]:
    return list(encode(group))


@pytest.fixture
def giving_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Encoders]:
    # Other tests may use all of the processor time.
    monkeypatch.setattr(encoding, "STARVED_S", 600.0)
    made = Encoders()
    yield made
    made.close()


@pytest.fixture
def none_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if one had starved, for ever: no process waits until the other tests of this machine leave it a processor."""
    monkeypatch.setattr(encoding, "HURRIED_S", -math.inf)


@pytest.fixture
def encoders(none_gives_way: None, giving_way: Encoders) -> Encoders:
    return giving_way


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def test_as_a_thread_would(encoders: Encoders) -> None:
    data = parquet(2000)
    for index, codec in itertools.product(range(3), Codec):
        group = group_of(data, index, codec=codec, base_offset=1 << 40)
        batches = encoders.encode(group)
        assert [bytes(batch) for batch in batches] == [bytes(batch) for batch in encode_here(group)]
        assert parse_header(batches[0]).base_offset == 1 << 40
        assert all(batch.readonly for batch in batches)
    assert len(encoders.pids) == 1


def test_a_process_is_started_ahead(encoders: Encoders) -> None:
    encoders.warm()
    (pid,) = encoders.pids
    encoders.warm()
    group = group_of(parquet(2000))
    assert encoders.encode(group) == encode_here(group)
    assert encoders.pids == [pid]


def test_from_a_descriptor(encoders: Encoders, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    data = parquet(9000)
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for index in range(5):
            group = group_of(data, index)
            assert encoders.encode(with_source(group, descriptor)) == encode_here(group)
        (pid,) = encoders.pids
        assert str(path) not in {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}, "nothing is kept open there"
        os.truncate(path, group_of(data, 5).file.groups[5].end - 1)
        with pytest.raises(InvalidError, match="is cut off"):
            encoders.encode(with_source(group_of(data, 5), descriptor))
        assert encoders.encode(with_source(group_of(data, 1), descriptor)) == encode_here(group_of(data, 1))
    finally:
        os.close(descriptor)
    assert encoders.pids == [pid], "a broken file harms nobody"


def test_a_broken_row_group(encoders: Encoders) -> None:
    data = parquet(2000)
    good = group_of(data)
    assert isinstance(good.source, bytes)
    spoiled = bytearray(good.source)
    spoiled[len(spoiled) // 2] ^= 0xFF
    with pytest.raises(InvalidError) as in_thread:
        encode_here(with_source(good, bytes(spoiled)))
    with pytest.raises(InvalidError) as caught:
        encoders.encode(with_source(good, bytes(spoiled)))
    assert caught.value.message == in_thread.value.message
    assert encoders.encode(good) == encode_here(good)
    assert len(encoders.pids) == 1


def test_it_gives_way_from_its_beginning(giving_way: Encoders) -> None:
    giving_way.warm()
    (pid,) = giving_way.pids

    def gave_way() -> bool:
        has_libraries = "libarrow" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
        gives_way = os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert gives_way or not has_libraries, "it imports before it gives way"
        return gives_way

    until(gave_way)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    giving_way.encode(group_of(parquet(10)))
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + NICENESS, NICENESS_MAX)


def test_one_that_starves_is_replaced_by_one_that_does_not_give_way(giving_way: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(parquet(3000))
    giving_way.encode(group)
    (pid,) = giving_way.pids
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(encoding, "STARVED_S", 0.05)
    monkeypatch.setattr(encoding, "HURRIED_S", 3.0)
    asked: list[float] = []

    def starves(self: Turns, now_s: float) -> bool:
        asked.append(now_s)
        return len(asked) > 2  # it waits for something else first

    monkeypatch.setattr(Turns, "starves", starves)
    assert giving_way.encode(group) == encode_here(group)
    assert len(asked) == 3

    def gone() -> bool:
        children.collect()
        return not alive(pid)

    until(gone)
    (other,) = giving_way.pids
    assert os.sched_getscheduler(other) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, other) >= NICENESS
    monkeypatch.setattr(encoding, "STARVED_S", 600.0)

    def gives_way_again() -> bool:
        assert giving_way.encode(group) == encode_here(group)
        return [os.sched_getscheduler(pid) for pid in giving_way.pids] == [os.SCHED_IDLE]

    until(gives_way_again)


def test_a_process_that_died_while_it_rested(encoders: Encoders) -> None:
    group = group_of(parquet(10))
    first = encoders.encode(group)
    (pid,) = encoders.pids
    os.kill(pid, signal.SIGKILL)
    # A process is a zombie before the last of its threads has ended, and only then it can be waited for.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert encoders.encode(group) == first, "nobody hears of it"
    assert encoders.pids != [pid]


def interrupted(encoders: Encoders, group: RowGroupBytes, interrupt: Callable[[int], None]) -> HeadgateError:
    """The error of work if its process is stopped in the middle of it and then ended by `interrupt`."""
    encoders.encode(group)
    (pid,) = encoders.pids
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(encoders.encode, group)
        until(lambda: bool(encoders._busy))
        interrupt(pid)
        error = work.exception(PATIENCE_S)
    assert isinstance(error, HeadgateError)
    until(lambda: not alive(pid))
    return error


def test_a_process_that_dies_at_work(encoders: Encoders) -> None:
    group = group_of(parquet(10))
    error = interrupted(encoders, group, lambda pid: os.kill(pid, signal.SIGKILL))
    assert isinstance(error, RetryError)
    assert "Killed" in error.message
    assert encoders.pids == []
    assert encoders.encode(group) == encode_here(group)


def test_what_is_left_of_an_answer_is_nobodys(encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    data = parquet(3000)
    encoders.encode(group_of(data))
    (pid,) = encoders.pids

    def no_memory(end: socket.socket, size: int) -> memoryview:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "receive", no_memory)
        with pytest.raises(MemoryError):
            encoders.encode(group_of(data))
    until(lambda: not alive(pid))
    assert encoders.encode(group_of(data, 1)) == encode_here(group_of(data, 1))


def test_closing_ends_work(encoders: Encoders, caplog: pytest.LogCaptureFixture) -> None:
    group = group_of(parquet(10))
    error = interrupted(encoders, group, lambda pid: encoders.close())
    assert isinstance(error, ClosedError)
    assert caplog.records == [], "that was wanted"
    assert encoders.pids == []
    with pytest.raises(ClosedError):
        encoders.encode(group)


def test_rest(encoders: Encoders) -> None:
    group = group_of(parquet(10))
    encoders.encode(group)
    (pid,) = encoders.pids
    encoders.rest()
    until(lambda: not alive(pid))
    assert encoders.pids == []
    assert encoders.encode(group) == encode_here(group)


def test_as_many_as_callers(encoders: Encoders) -> None:
    group = group_of(parquet(3000))
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.extend(encoders.encode(group) == encode_here(group) for _ in range(20)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == [True] * 60
    assert 1 <= len(encoders.pids) <= 3


def test_one_begins_at_a_time(encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the first one begins, a caller waits for it; but not for ever."""
    group, asked = group_of(parquet(3000)), threading.Semaphore(0)
    monkeypatch.setattr(children, "collect", asked.release)
    monkeypatch.setattr(encoding, "BEGIN_S", PATIENCE_S)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(encoders.encode, group)
        until(lambda: bool(encoders.pids))
        (pid,) = encoders.pids
        os.kill(pid, signal.SIGSTOP)
        assert asked.acquire(timeout=PATIENCE_S)
        second = pool.submit(encoders.encode, group)
        assert asked.acquire(timeout=PATIENCE_S)
        assert encoders.pids == [pid]
        monkeypatch.setattr(encoding, "BEGIN_S", 0.01)
        third = pool.submit(encoders.encode, group)
        assert third.result(PATIENCE_S) == encode_here(group)
        assert second.result(PATIENCE_S) == encode_here(group)
        assert not first.done()
        os.kill(pid, signal.SIGCONT)
        assert first.result(PATIENCE_S) == encode_here(group)
    assert len(encoders.pids) == 2


def test_no_process_to_be_had(encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len(os.listdir("/proc/self/fd"))
    with raises(RetryError, Reason.OVERLOADED):
        encoders.encode(group_of(parquet(10)))
    assert len(os.listdir("/proc/self/fd")) <= before  # what others left open may be closed meanwhile


OWNER = """
import os, signal, sys, threading, time
from tests.unit.engine.test_encoding import Encoders, group_of, parquet, until
encoders, group = Encoders(), group_of(parquet(3000))
encoders.encode(group)
(pid,) = encoders.pids
if sys.argv[1] == "at work":
    os.kill(pid, signal.SIGSTOP)
    threading.Thread(target=encoders.encode, args=[group]).start()
    until(lambda: encoders._busy)
    time.sleep(0.2)
print(pid, flush=True)
time.sleep(600)
"""


@contextmanager
def owner(doing: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has an encoding process. Killed at the end, if it is still there."""
    with subprocess.Popen(
        python("-c", OWNER, doing), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_its_broker(number: signal.Signals) -> None:
    with owner("nothing") as broker:
        assert broker.stdout is not None
        pid = int(broker.stdout.readline())
        assert alive(pid)
        # A terminal and a supervisor send these signals to all processes at once; only the broker must act on them.
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
        assert alive(pid)
        broker.send_signal(number)
        # Its state, and the signals that it blocks and ignores.
        until(lambda: not alive(pid), Path(f"/proc/{broker.pid}/status").read_text)


def test_a_broker_that_is_killed_during_work() -> None:
    with owner("at work") as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        pid = int(broker.stdout.readline())
        broker.kill()
        broker.wait()
        os.kill(pid, signal.SIGCONT)
        until(lambda: not alive(pid))
        assert broker.stderr.read() == "", "its end is nothing to complain about"
