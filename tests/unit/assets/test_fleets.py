"""Fleets against the nearest real thing that runs here: the official Kubernetes client against kmock, boto3 against moto.

Compared: what the API holds afterwards, and the errors of what is not there or not allowed. Neither emulator starts pods or tasks;
what a cluster does with the number is not tested here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import boto3  # type: ignore[import-untyped]
import kmock
import pytest
from kubernetes import client as kubernetes  # type: ignore[import-untyped]

from assets.fleets.ecs import EcsFleet
from assets.fleets.interface import Fleet
from assets.fleets.kubernetes import KubernetesFleet
from assets.fleets.local import LocalFleet
from assets.resources import FleetResource
from broker.client.control import DesiredBrokers
from broker.runtime.errors import FatalError, RetryError
from tests.support.s3_server import S3Server
from tests.support.stand_in import StandInCluster, book


# -- local


def test_the_local_fleet_looks_on() -> None:
    fleet: Fleet = LocalFleet(lambda: DesiredBrokers(brokers=3, reasons=("a reservation",), live_brokers=2))
    assert fleet.follows and (fleet.scale(9).asked, fleet.state().running) == (3, 2)


def test_the_resource_makes_the_fleet_that_it_is_told() -> None:
    name, _ = book()
    assert FleetResource().fleet(StandInCluster(name=name)).name == "headgate up"


# -- kubernetes


@pytest.fixture
def api() -> Iterator[tuple[kubernetes.AppsV1Api, Any]]:
    """A client, and the emulator it talks to, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop: asyncio.Event | None = None
    found: dict[str, Any] = {}

    async def serve() -> None:
        nonlocal stop
        stop = asyncio.Event()
        async with kmock.Server(kmock.KubernetesEmulator()) as server:  # type: ignore[attr-defined]
            found["server"], found["url"] = server, str(server.url).rstrip("/")
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(30)
    configuration = kubernetes.Configuration(host=found["url"])
    configuration.retries = 0
    with kubernetes.ApiClient(configuration) as connection:
        yield kubernetes.AppsV1Api(connection), found["server"]
    assert stop is not None
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()
