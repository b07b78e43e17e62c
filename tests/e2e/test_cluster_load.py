"""The leader splits a segment with too much traffic, and merges it again when it is quiet, while foreign clients write and read.

Runs: two brokers with a low configured capacity, and a topic of four partitions. Idempotent producers and consumers of
librdkafka and aiokafka use two of these: all traffic falls on one segment. Later the writers slow down. Compared: the leader's
decisions and the segments; at the end the whole log with every ack and with the reads of the consumers. A mismatch means that
the cluster does not follow its load, or that a resharding harmed a record.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support.cluster import Brokers, Clients
from tests.support.waiting import until

HOT = 2
"""Partitions with writers: the first ones of the first segment."""
BUSY_PAUSE_S = 0.03
CALM_PAUSE_S = 2.0

LITTLE = {
    "HEADGATE_CLUSTER_BROKER_BYTES_PER_SECOND": "6MiB",
    "HEADGATE_CLUSTER_SPLIT_AFTER_MS": "1000",
    "HEADGATE_CLUSTER_MERGE_AFTER_MS": "2000",
    "HEADGATE_CLUSTER_COOLDOWN_MS": "1000",
}


def test_a_hot_segment_is_split_and_a_quiet_one_merged(
    make_broker: BrokerFactory, tmp_path: Path, report: Callable[[str], None]
) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env=LITTLE, count=2)
    brokers.start()
    create_topic(brokers.bootstrap, "t", 2 * HOT)
    clients = Clients(brokers, "t", HOT, pause_s=BUSY_PAUSE_S)
    with clients:
        follow(brokers, clients, report)


def follow(brokers: Brokers, clients: Clients, report: Callable[[str], None]) -> None:
    def decided(kind: str) -> list[str]:
        clients.check()
        return [row.why for row in brokers.describe().decisions if row.kind == kind and not row.under_way and not row.error]

    until(lambda: bool(decided("split")), "the hot segment is split")
    until(lambda: any(row.end_partition < HOT for row in brokers.segments("t")), "a segment ends between the busy partitions")
    clients.acked_in_all(20)
    for writer in clients.writers:
        writer.pause_s = CALM_PAUSE_S
    until(lambda: bool(decided("merge")), "quiet neighbours are merged")
    clients.acked_in_all(4)
    for kind in ("split", "merge"):
        report(f"load: {decided(kind)[-1]}")
    wrong = clients.judge()
    assert not wrong, f"complaints=`{len(wrong)}`\n" + "\n".join(wrong[:20])
