"""One broker for all compatibility tests of a run.

With HEADGATE_COMPAT_BOOTSTRAP=host:port the tests run against a broker that already runs. Apache Kafka there checks the tests
themselves: a test that fails against Apache Kafka is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess

QUICK = {"HEADGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0", "HEADGATE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "6000"}
"""kafkajs reads in a group with one member: the coordinator need not wait for others. Members of consumer groups (KIP-848) have no
time-out of their own, and some die in the tests."""

EXTERNAL = os.environ.get("HEADGATE_COMPAT_BOOTSTRAP")


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a broker that serves."""
    if EXTERNAL:
        yield EXTERNAL
        return
    home = tmp_path_factory.mktemp("compat")
    with BrokerProcess(home / "store", home / "broker.log", env=QUICK) as broker:
        broker.start()
        yield broker.bootstrap
        broker.check_alive()
        assert broker.terminate() == 0, f"SIGTERM did not end the broker cleanly\n{broker.log_tail()}"
    broker.check_output()
