"""A broker's report about its load, and the leader's conversion of it."""

from __future__ import annotations

import os

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.segments import BrokerLoad, PartitionLoad, SegmentLoad
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.steps import Steps
from headgate.broker.wire.grpc.headgate.v1 import control_pb2

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STEP_PARTITIONS = 64
"""Partitions of a report that one step converts."""

WINDOW_S_MIN = 0.1
"""Shortest time, in seconds, over which rates are computed. Over a shorter time they mean nothing."""


class LoadMeter:
    """Counts the traffic between two reports; before the first report, since it was made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._at_s = engine.clock.monotonic()
        self._cpu_s = engine.clock.cpu_s()
        self._before = {log: (log.traffic.changes, log.traffic.counts()) for log in engine.all_logs() if log.traffic.changes}
        """The counts of partitions at the last report, and the number of their changes; only of those with traffic."""
        self._last = control_pb2.LoadReport(window_ms=round(WINDOW_S_MIN * 1000))
        self.draining = False

    def report(self, version: int, connections: int) -> control_pb2.LoadReport:
        """The traffic since the last report. A call directly after another one returns the same traffic. The leader computes
        rates from it."""
        if self._engine.clock.monotonic() - self._at_s >= WINDOW_S_MIN:
            self._last = self._measure()
        self._last.version, self._last.connections = version, connections
        self._last.trouble = trouble_of(self._engine)
        self._last.draining = self.draining
        return self._last

    def _measure(self) -> control_pb2.LoadReport:
        engine = self._engine
        now_s, cpu_s = engine.clock.monotonic(), engine.clock.cpu_s()
        window_s = now_s - self._at_s
        report = control_pb2.LoadReport(
            window_ms=max(round(window_s * 1000), 1),
            cpu_share=(cpu_s - self._cpu_s) / window_s,
            memory_bytes=memory_bytes(),
        )
        self._at_s, self._cpu_s = now_s, cpu_s
        before, led = self._before, 0
        rows: dict[int, control_pb2.SegmentReport] = {}
        # A broker may lead a hundred thousand partitions, of which most rest: a tenth of a microsecond for each of those.
        for log in engine.all_logs():
            changes = log.traffic.changes
            if not changes:
                continue
            led += 1
            last = before.get(log)
            if last is not None and last[0] == changes:
                continue
            now, then = log.traffic.counts(), (0, 0, 0) if last is None else last[1]
            before[log] = changes, now
            row = rows.get(log.segment_id)
            if row is None:
                row = rows[log.segment_id] = report.segments.add(segment_id=log.segment_id)
            row.partitions.append(log.number)
            row.bytes_in.append(now[0] - then[0])
            row.bytes_out.append(now[1] - then[1])
            row.requests.append(now[2] - then[2])
        if len(before) > 2 * led:
            self._before = {log: earlier for log, earlier in before.items() if log.closed is None}
        return report


def trouble_of(engine: Engine) -> str:
    """The reason why this broker cannot store records at the moment. Empty: it can."""
    trouble = engine.failed or engine.stalled
    return "" if trouble is None else trouble.message


def broker_load(incarnation: Incarnation, report: control_pb2.LoadReport) -> Steps[BrokerLoad]:
    """Convert a report to rates, for the planner. In steps: a broker may lead ten thousand partitions.

    Raises InvalidError(INVALID_REQUEST): a segment's lists have different lengths.
    """
    window_s = max(report.window_ms, 1) / 1000
    segments: list[SegmentLoad] = []
    for row in report.segments:
        if not len(row.partitions) == len(row.bytes_in) == len(row.bytes_out) == len(row.requests):
            raise InvalidError(Reason.INVALID_REQUEST, f"a report's lists differ in length. segment=`{row.segment_id}`")
        partitions: dict[int, PartitionLoad] = {}
        for number, bytes_in, bytes_out, requests in zip(row.partitions, row.bytes_in, row.bytes_out, row.requests, strict=True):
            partitions[number] = PartitionLoad(
                bytes_in_per_s=bytes_in / window_s,
                bytes_out_per_s=bytes_out / window_s,
                requests_per_s=requests / window_s,
            )
            if not len(partitions) % STEP_PARTITIONS:
                yield STEP_PARTITIONS
        segments.append(SegmentLoad(segment_id=row.segment_id, partitions=partitions))
        yield 1
    return BrokerLoad(
        incarnation_id=incarnation.id,
        broker_id=incarnation.broker_id,
        draining=report.draining,
        cpu_share=report.cpu_share,
        memory_bytes=report.memory_bytes,
        connections=report.connections,
        segments=tuple(segments),
    )


def memory_bytes() -> int:
    """Resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
