"""Misconfigured clusters: two of them at one place, brokers of the wrong kind, wrong clocks, a store in trouble.

Runs: real brokers on a directory, or on S3 (a moto server) through a proxy that delays or fails everything for a while;
idempotent producers and consumers of librdkafka and aiokafka meanwhile. Compared: exit codes and the one line with the reason;
the member incarnations before and after; at the end the whole log with every ack. A mismatch means that a mistake is not
reported clearly, that it harms a healthy cluster, or that temporary trouble costs brokers or records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from headgate.broker.cluster.lease import Lease
from headgate.broker.engine.base import keys
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.cluster import PATIENT, Brokers, Clients
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server
from tests.support.skewed_broker import set_clock, use_clock
from tests.support.waiting import until

PARTITIONS = 3
HOUR_S = 3600
Report = Callable[[str], None]


def refused(broker: BrokerProcess) -> tuple[int, str]:
    """Start a broker that must refuse to run. Returns its exit code and its last line."""
    broker.spawn()
    code = broker.wait_exit()
    return code, broker.output().strip().splitlines()[-1]


def members(brokers: Brokers) -> dict[int, str]:
    """The incarnation of every broker."""
    return {row.member.broker_id: row.incarnation_id for row in brokers.describe().members}


def difference_s(broker: BrokerProcess) -> float:
    """The difference between a broker's clock and another one, in seconds, as its metric shows it."""
    with urlopen(f"http://{HOST}:{broker.http_port}/metrics", timeout=60) as response:
        (line,) = [line for line in response.read().decode().splitlines() if line.startswith("headgate_clock_difference_seconds")]
    return float(line.split()[-1])


def test_brokers_that_do_not_belong_here(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """A second cluster at the same place, and a broker with a used number, are refused, and the running clients notice nothing."""
    store = tmp_path / "store"
    brokers = Brokers(make_broker, store, env={**PATIENT, "HEADGATE_CLUSTER_NAME": "ours"}, count=2)
    brokers.start()
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    before = members(brokers)
    with Clients(brokers, "t", PARTITIONS) as clients:
        clients.acked_in_all(5)
        theirs = make_broker(store, arguments=("--cluster-name", "theirs", "--broker-id", "7"))
        code, why = refused(theirs)
        assert code == 1 and "the store belongs to another cluster" in why and "found=`ours` expected=`theirs`" in why
        code, why = refused(make_broker(store, arguments=("--broker-id", "2")))
        assert code == 2 and "another broker has this id: choose another with --broker-id. broker_id=`2`" in why
        clients.acked_in_all(20)
        wrong = clients.judge()
    assert not wrong, "\n".join(wrong[:20])
    assert members(brokers) == before


@pytest.mark.parametrize("what", ["store", "lease", "manifest"])
def test_an_older_broker(make_broker: BrokerFactory, tmp_path: Path, what: str) -> None:
    """A broker that finds files of a newer version says so and changes nothing."""
    store = tmp_path / "store"
    first = make_broker(store)
    first.start()
    assert first.terminate() == 0
    if what == "store":
        file = store / keys.CLUSTER_ID
        file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    elif what == "lease":
        newest = max((store / keys.LEASE).iterdir())
        lease = Lease(format=99, holder="f" * 32, broker_id=9, address="127.0.0.1:1", ttl_ms=100)
        (newest.parent / f"{int(newest.name) + 1:020d}").write_bytes(lease.encode())
    else:
        newest = max(file for file in (store / keys.MANIFEST).rglob("*") if file.is_file())
        newest.write_bytes(newest.read_bytes().replace(b" 1 ", b" 99 ", 1))
    # No broker holds the lease, which was given back: a broker may take it before it notices that the version is newer.
    files = {file: file.read_bytes() for file in store.rglob("*") if file.is_file() and file.parent != store / keys.LEASE}
    code, why = refused(make_broker(store, arguments=("--broker-id", "2")))
    assert code == 1 and "newer" in why and "upgrade this" in why, why
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file() and file in files} == files


def test_a_clock_that_jumps(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """One broker's wall clock, also the leader's, jumps by an hour, ahead and back: no broker is lost, no request waits."""
    patience = {"HEADGATE_CLUSTER_MEMBER_TIMEOUT_MS": "30s"}  # on a busy machine no broker may count as lost
    brokers = Brokers(make_broker, tmp_path / "store", env=patience)
    clocks = [tmp_path / f"clock-{number}" for number in range(len(brokers.all))]
    for broker, clock in zip(brokers.all, clocks, strict=True):
        use_clock(broker, clock)
    brokers.start()
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    leader = brokers.number(brokers.leader()) - 1
    before = members(brokers)
    with Clients(brokers, "t", PARTITIONS) as clients:
        clients.acked_in_all(5)
        for skew in (HOUR_S, -HOUR_S, 0):
            for clock in (clocks[leader], clocks[leader - 1]):
                set_clock(clock, skew)
                clients.acked_in_all(20)
        # The pause is long enough for a lease that trusts the clock to expire.
        set_clock(clocks[leader], -HOUR_S)
        time.sleep(4)
        until(lambda: difference_s(brokers.all[leader]) > HOUR_S / 2, "the metric shows the jump")
        clients.acked_in_all(5)
        wrong = clients.judge()
    assert not wrong, "\n".join(wrong[:20])
    assert members(brokers) == before, "a broker was replaced because of a clock"


class Trouble(S3Proxy):
    """An S3 that the test can slow down."""

    delay_s = 0.0

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        time.sleep(self.delay_s)
        return super().forward(method, path, headers, body)


def store_in_trouble(make: BrokerFactory, s3: S3Server, report: Report, how: str, seconds: float) -> None:
    with Trouble(s3) as proxy:
        url = f"s3://{s3.bucket()}/trouble?endpoint={proxy.endpoint}"
        brokers = Brokers(make, lambda number: url, env=s3.environment)
        try:
            brokers.start()
            create_topic(brokers.bootstrap, "t", PARTITIONS)
            before = members(brokers)
            with Clients(brokers, "t", PARTITIONS) as clients:
                clients.acked_in_all(5)
                if how == "failed":
                    proxy.fail_always("slow_down")
                else:
                    proxy.delay_s = 2.0
                if how == "slow, and the leader dies":
                    victim = brokers.leader()
                    del before[brokers.number(victim)]
                    victim.kill()
                time.sleep(seconds)
                for broker in brokers.all:
                    if brokers.number(broker) in before:
                        broker.check_alive()
                clients.check()
                proxy.delay_s = 0.0
                proxy.fail_always(None)
                began = time.monotonic()
                clients.acked_in_all(1)
                report(
                    f"store with {how} answers for {seconds:g} s: all partitions ack {time.monotonic() - began:.1f} s afterwards"
                )
                until(lambda: members(brokers) == before, "everybody who lives is a member, and none was replaced")
                wrong = clients.judge()
        finally:
            for broker in brokers.all:
                broker.kill()
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["failed", "slow", "slow, and the leader dies"])
def test_a_store_in_trouble_for_long(make_broker: BrokerFactory, s3_server: S3Server, report: Report, how: str) -> None:
    store_in_trouble(make_broker, s3_server, report, how, 30)
