"""One broker for all compatibility tests of a run.

With HEADGATE_COMPAT_BOOTSTRAP=host:port the tests run against a broker that is already there. Pointed at Apache Kafka, that checks
the tests themselves: what fails there is a wrong test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess

QUICK = {"HEADGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
"""kafkajs reads in a group of one: it need not wait for other members."""

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
