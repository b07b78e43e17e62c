"""The Spark session that all tests of one run share: starting one takes seconds. The fixture `spark` is found by its name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two threads, in which a task is tried four times, as on a cluster: after a kill of all Python workers Spark may
    give it some that were idle, and are dead."""
    from headgate.pipelines.session import session
    from headgate.pipelines.source import register

    conf = {
        "spark.sql.shuffle.partitions": "4",
        "spark.python.daemon.module": "tests.support.spark_daemon",
        # Tests are short: less compilation saves more time than it costs.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    started = session("local[2, 4]", app_name="headgate tests", driver_memory="2g", conf=conf)
    register(started)
    yield started
    with warnings.catch_warnings():
        # Spark leaves sockets open at its end; the collector closes them and warns.
        warnings.simplefilter("ignore", ResourceWarning)
        started.stop()
