"""Skipped ranges in a cluster: any broker takes the request, and the next leader knows the range.

Runs: three real brokers over one directory; poison in a topic that checks headers only; `Admin.skip_records` at a broker that
does not lead the partition; then the leader is killed, and each broker is drained. Compared: the reads of foreign clients with
the good records. A mismatch means that readers stop at a skipped batch after a failover, or that an operator has to know the
leader.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.broker.client import Admin
from headgate.broker.runtime.errors import InvalidError
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.e2e.hostile import connect, produce
from tests.support.batches import patched
from tests.support.broker_process import HOST
from tests.support.clients.all import CLIENTS
from tests.support.cluster import PATIENT, Brokers
from tests.support.poison import GOOD, POISON
from tests.support.waiting import until

READERS = ("confluent", "aiokafka", "kafka-python")


def test_a_skip_holds_on_every_lead(make_broker: BrokerFactory, tmp_path: Path) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env=PATIENT)
    brokers.start()
    create_topic(brokers.bootstrap, "t", 1, headgate_check_records="header")
    until(lambda: brokers.leads("t").get(0) in (1, 2, 3), "the partition is led")
    lead = brokers.all[brokers.leads("t")[0] - 1]
    with connect(lead) as connection:
        first = [produce(connection, "t", data) for data in (GOOD, POISON["noise"], GOOD, patched(POISON["noise"], 70, b"x"), GOOD)]
    assert first == [0, 3, 6, 9, 12]
    other = next(one for one in brokers.all if one is not lead)
    asyncio.run(skip(f"{HOST}:{other.grpc_port}"))
    check(brokers)
    lead.kill()
    until(lambda: brokers.leads("t", brokers.others(lead)).get(0) not in (None, -1, brokers.number(lead)), "another one leads")
    check(brokers)
    lead.start()
    second = brokers.all[brokers.leads("t")[0] - 1]
    assert second.terminate() == 0
    check(brokers)


async def skip(cluster: str) -> None:
    async with Admin(cluster) as admin:
        found = (await admin.check_records("t", 0)).unreadable
        assert [(one.base_offset, one.end_offset) for one in found] == [(3, 6), (9, 12)]
        for one in found:
            skipped = await admin.skip_records("t", 0, one.base_offset, one.end_offset - 1)
            assert skipped == (one.base_offset, one.end_offset)
        with pytest.raises(InvalidError):
            await admin.skip_records("t", 0, 0, 15)
        assert (await admin.describe_topic("t")).partitions[0].skipped == ((3, 6), (9, 12))


def check(brokers: Brokers) -> None:
    for reader in READERS:
        shown = CLIENTS[reader].consume(brokers.bootstrap, "t", [0])[0]
        assert [one.offset for one in shown] == [0, 1, 2, 6, 7, 8, 12, 13, 14], reader
