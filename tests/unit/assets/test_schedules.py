"""The sensor that raises brokers ahead of a flood, against a stand-in cluster.

A mismatch means that Dagster prepares a day that is in the topic, or that a cluster that does not answer fails the sensor.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import dagster as dg

from headgate.assets.build import flood_definitions
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.floods.cron import Cron
from headgate.pipelines.floods.model import Occurrences
from headgate.pipelines.floods.spans import gate_id
from tests.support.floods import flood
from tests.support.stand_in import StandInCluster, book


def test_a_day_that_is_in_the_topic_is_not_prepared() -> None:
    declared = flood(occurrences=Occurrences(cron=Cron.parse("* * * * *")))
    name, found = book()
    cluster = StandInCluster(name=name)
    repository = flood_definitions([declared], cluster=cluster).get_repository_def()
    sensor = repository.get_sensor_def("clicks_expected")

    def tick() -> dg.SensorExecutionData:
        with (
            dg.DagsterInstance.ephemeral() as instance,
            dg.build_sensor_context(instance, repository_def=repository, resources={"cluster": cluster}) as context,
        ):
            return sensor.evaluate_tick(context)

    requests = tick().run_requests or []
    assert requests and {one.job_name for one in requests} == {"clicks_prepare"}
    days = [f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%d}" for days in (0, 1, 2)]
    assert {one.partition_key for one in requests} <= set(days)
    for day in days:
        found.gates["clicks", gate_id(declared, day)] = SimpleNamespace(state="filled")
    again = tick()
    assert not again.run_requests and str(again.skip_message).startswith("in the topic already: ")
    found.error = RetryError(Reason.CLOSED, "no broker listens there")
    assert tick().skip_message == "the cluster does not say which partitions are loaded: no broker listens there"
