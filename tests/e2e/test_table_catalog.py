"""A topic's table in a catalog of the user's, which cannot be reached at first: a real broker, PyIceberg with a catalog in a file.

Compared: the rows of the registered table with the number of records. Meanwhile producers write: they never wait for the catalog.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import OperationalError

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import mixed_topic
from tests.support.broker_process import HOST, BrokerProcess

RECORDS = 300
PATIENCE_S = 280.0
"""Loading PyIceberg takes minutes on a starved machine."""


def until_said(broker: BrokerProcess, event: str) -> None:
    """Wait for an event in the broker's log."""
    deadline = time.monotonic() + PATIENCE_S
    while event not in broker.output():
        broker.check_alive()
        assert time.monotonic() < deadline, f"no {event} in the log\n{broker.log_tail()}"
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_a_catalog_that_is_away_at_first_is_reported_once(make_broker: BrokerFactory, tmp_path: Path) -> None:
    place = tmp_path / "later"
    broker = make_broker(
        env={
            **mixed_topic.ENV, "HEADGATE_TABLE_CATALOG": "mine", "HEADGATE_TABLE_CATALOG_NAMESPACE": "lake",
            "PYICEBERG_CATALOG__MINE__TYPE": "sql", "PYICEBERG_CATALOG__MINE__URI": f"sqlite:///{place}/mine.db",
        }
    )  # fmt: skip
    broker.start()
    broker.wait_ready()
    topic = create_topic(broker.bootstrap, "clicks", mixed_topic.PARTITIONS, offline_after_bytes="0")
    mixed_topic.produce(broker, topic, 0, RECORDS)
    mixed_topic.until_folded(f"{HOST}:{broker.grpc_port}", topic, RECORDS // mixed_topic.PARTITIONS)
    until_said(broker, "table_catalog_failed")
    place.mkdir()
    until_said(broker, "table_catalog_works_again")
    assert broker.output().count("table_catalog_failed") == 1
    catalog: Any = load_catalog("mine", type="sql", uri=f"sqlite:///{place}/mine.db")
    # The catalog answered; the table comes as soon as the leader has written it.
    deadline = time.monotonic() + PATIENCE_S
    wanted = sorted([*range(RECORDS // mixed_topic.PARTITIONS)] * mixed_topic.PARTITIONS)
    while (found := offsets(catalog, topic)) != wanted:
        assert time.monotonic() < deadline, f"rows are missing. rows=`{len(found)}`\n{broker.log_tail()}"
        time.sleep(0.1)


def offsets(catalog: Any, topic: str) -> list[int]:
    """The offsets in the registered table; none while it is not registered. Such a catalog lacks it for a moment at each change."""
    try:
        return sorted(catalog.load_table(("lake", topic)).scan().to_arrow().column("offset").to_pylist())
    except (NoSuchTableError, OperationalError):
        return []
